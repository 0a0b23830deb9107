//! [`SharedQueue`]: the order of a group's operations over shared memory, and the threads that run them.
//!
//! A blocking call runs on the caller's thread if nothing is pending, which avoids waking another thread;
//! started operations run on a worker. In both cases they run one after another in the order of their calls.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};

use ronde_core::buffer::AllocationError;
use ronde_core::{Buffer, CollectiveError, DType, Operation, Work};
use ronde_schedule::Hosts;

use super::executor::{OperationOutcome, OperationStart, SharedExecutor};
use super::pool::MemoryPool;
use super::wait::SpinBudget;
use crate::flight::RecordedRequest;
use crate::frame::Call;
use crate::running::CollectiveRequest;
use crate::stream_executor::{ExecutorCommand, Mailbox};
use crate::work::{Completion, pending};

struct QueueLine {
    waiting: VecDeque<CollectiveRequest>,
    leaving: bool,
}

/// The operations of one member over shared memory.
pub(crate) struct SharedQueue {
    /// Locked by the thread that runs an operation, as long as it runs.
    executor: Mutex<Box<SharedExecutor>>,
    line: Mutex<QueueLine>,
    /// Number of operations that were queued for the worker and have not ended.
    left: AtomicUsize,
    moved: Condvar,
    mailbox: Arc<Mailbox>,
    pool: Arc<MemoryPool>,
    spin_budget: SpinBudget,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for SharedQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to run an operation.
struct QueueTurn<'a> {
    queue: &'a SharedQueue,
    executor: MutexGuard<'a, Box<SharedExecutor>>,
}

impl<'a> QueueTurn<'a> {
    /// Returns the turn, unless another thread has it or operations are queued.
    fn at_once(queue: &'a SharedQueue) -> Option<Self> {
        if queue.left.load(Ordering::Acquire) > 0 {
            return None;
        }
        let executor = match queue.executor.try_lock() {
            Ok(executor) => executor,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Self { queue, executor })
    }

    fn run(
        &mut self,
        operation: &Operation,
        call: &Call,
        buffer: &mut Buffer,
        begun: OperationStart,
    ) -> Result<OperationOutcome, CollectiveError> {
        let around = (&*self.queue.mailbox, &self.queue.spin_budget, begun);
        self.executor.run(around, operation, call, buffer)
    }
}

impl Drop for QueueTurn<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.queue.mailbox.abort("an operation panicked");
        }
    }
}

impl SharedQueue {
    /// Starts the worker.
    pub(super) fn open(
        executor: SharedExecutor,
        spin_budget: SpinBudget,
        name: &str,
    ) -> std::io::Result<Arc<Self>> {
        let queue = Arc::new(Self {
            left: AtomicUsize::new(0),
            moved: Condvar::new(),
            mailbox: Arc::clone(&executor.mailbox),
            pool: Arc::clone(&executor.pool),
            executor: Mutex::new(Box::new(executor)),
            line: Mutex::new(QueueLine {
                waiting: VecDeque::new(),
                leaving: false,
            }),
            spin_budget,
            worker: Mutex::new(None),
        });
        let its = Arc::clone(&queue);
        let builder = thread::Builder::new().name(format!("ronde {name} shared"));
        let worker = builder.spawn(move || its.work())?;
        *lock(&queue.worker) = Some(worker);
        Ok(queue)
    }

    /// Returns a zeroed buffer that peers can read and write in place.
    ///
    /// # Errors
    /// The system has no memory for the elements.
    pub(crate) fn allocate(&self, dtype: DType, len: usize) -> Result<Buffer, AllocationError> {
        self.pool.allocate(dtype, len, true)
    }

    /// Returns the memory of dropped buffers to the system.
    pub(crate) fn release_free_memory(&self) {
        self.pool.release_free_memory();
    }

    /// Runs an operation and waits for its end.
    pub(crate) fn run(
        &self,
        operation: Operation,
        call: Call,
        mut buffer: Buffer,
        hosts: &Arc<Hosts>,
    ) -> Result<Buffer, CollectiveError> {
        let request = |operation, buffer, completion| CollectiveRequest {
            operation,
            call,
            buffer,
            completion,
            hosts: Arc::clone(hosts),
        };
        let Some(mut turn) = QueueTurn::at_once(self) else {
            let (completion, work) = pending();
            self.join_line(request(operation, buffer, completion));
            return Box::new(work).wait();
        };
        let (flight, ns) = (self.mailbox.flight(), ronde_clock::host_ns());
        let ticket = flight.issued_and_begun(call, buffer.bytes().len(), ns);
        let begun = OperationStart { ticket, ns };
        match turn.run(&operation, &call, &mut buffer, begun) {
            Ok(OperationOutcome::InPlace { end_ns }) => {
                flight.ended_at(ticket, false, end_ns.unwrap_or_else(ronde_clock::host_ns));
                Ok(buffer)
            }
            Ok(OperationOutcome::Result(result)) => {
                flight.ended(ticket, false);
                Ok(result)
            }
            Ok(OperationOutcome::NeedsStreams) => {
                let (mut completion, work) = pending();
                completion.recorded_by(flight, ticket);
                let request = request(operation, buffer, completion);
                self.mailbox.post(ExecutorCommand::Collective(request))?;
                drop(turn);
                Box::new(work).wait()
            }
            Err(error) => {
                flight.ended(ticket, true);
                Err(error)
            }
        }
    }

    /// Starts an operation.
    pub(crate) fn start(&self, request: CollectiveRequest) -> Result<(), CollectiveError> {
        if let Some(error) = self.mailbox.error() {
            return Err(error);
        }
        self.join_line(request);
        Ok(())
    }

    /// Queues an operation for the worker.
    fn join_line(&self, mut request: CollectiveRequest) {
        let mut line = lock(&self.line);
        self.record(&request.call, &request.buffer, &mut request.completion);
        line.waiting.push_back(request);
        // The next blocking call of this thread sees this and waits for its turn.
        self.left.fetch_add(1, Ordering::Release);
        drop(line);
        self.moved.notify_one();
    }

    /// Adds the operation to the recorder, in the order of the queue.
    fn record(&self, call: &Call, buffer: &Buffer, completion: &mut Completion) {
        let flight = self.mailbox.flight();
        let ticket = flight.issued(RecordedRequest::Collective, *call, buffer.bytes().len());
        completion.recorded_by(flight, ticket);
    }

    /// Runs the worker: started operations, until the group is left.
    fn work(&self) {
        loop {
            let mut line = lock(&self.line);
            while line.waiting.is_empty() && !line.leaving {
                line = self
                    .moved
                    .wait(line)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if line.waiting.is_empty() {
                return;
            }
            drop(line);
            let executor = lock(&self.executor);
            let turn = QueueTurn {
                queue: self,
                executor,
            };
            let request = lock(&self.line).waiting.pop_front();
            if let Some(request) = request {
                self.work_on(turn, request);
            }
        }
    }

    fn work_on(&self, mut turn: QueueTurn<'_>, mut request: CollectiveRequest) {
        let Some(ticket) = request.completion.ticket() else {
            // Every queued operation was recorded; if this one were dropped it would end with an error.
            return;
        };
        let ns = ronde_clock::host_ns();
        self.mailbox.flight().begun(ticket, ns);
        let begun = OperationStart { ticket, ns };
        let outcome = turn.run(
            &request.operation,
            &request.call,
            &mut request.buffer,
            begun,
        );
        // A caller that waits for the end must find the turn free and the queue empty.
        let over = || self.left.fetch_sub(1, Ordering::Release);
        if matches!(outcome, Ok(OperationOutcome::NeedsStreams)) {
            over();
            // If the group has failed, the completion reports it when it is dropped.
            let _ended = self.mailbox.post(ExecutorCommand::Collective(request));
            return;
        }
        drop(turn);
        over();
        request.complete(outcome.map(|outcome| match outcome {
            OperationOutcome::Result(result) => Some(result),
            OperationOutcome::InPlace { .. } | OperationOutcome::NeedsStreams => None,
        }));
    }

    /// Ends the worker; operations that are pending fail on all ranks.
    pub(crate) fn leave(&self) {
        lock(&self.line).leaving = true;
        if self.left.load(Ordering::Acquire) > 0 {
            self.mailbox
                .abort("the group was dropped while operations were pending");
        }
        self.moved.notify_one();
        if let Some(worker) = lock(&self.worker).take() {
            // A worker that panicked has failed the group already.
            let _ended = worker.join();
        }
    }
}
