//! [`Lane`]: the order of a group's operations over shared memory, and who runs them.
//!
//! A blocking call runs on the caller's thread when nothing is pending, so nothing is handed over;
//! started operations run on a worker. Either way they run one after the other as they were called.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use ronde_core::{Buffer, CollectiveError, DType, Operation, Work};

use super::exchange::{Done, Exchange};
use super::pool::Pool;
use super::wait::Patience;
use ronde_schedule::Hosts;

use crate::engine::{Command, Mailbox};
use crate::frame::Call;
use crate::running::Asked;
use crate::work::{Completion, pending};

struct Line {
    waiting: VecDeque<Asked>,
    /// Gone while somebody runs an operation.
    exchange: Option<Box<Exchange>>,
    leaving: bool,
}

/// The operations of one member over shared memory.
pub(crate) struct Lane {
    line: Mutex<Line>,
    moved: Condvar,
    mailbox: Arc<Mailbox>,
    pool: Arc<Pool>,
    patience: Patience,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to run an operation; the exchange goes back to its place in the end.
struct Turn<'a> {
    lane: &'a Lane,
    exchange: Option<Box<Exchange>>,
}

impl<'a> Turn<'a> {
    fn run(
        &mut self,
        operation: &Operation,
        call: &Call,
        buffer: Buffer,
    ) -> Result<Done, CollectiveError> {
        let waiting = (&*self.lane.mailbox, &self.lane.patience);
        match &mut self.exchange {
            Some(exchange) => exchange.run(waiting, operation, call, buffer),
            None => Err(CollectiveError::Aborted {
                by: "this rank".to_owned(),
                reason: "the group has ended".to_owned(),
            }),
        }
    }

    fn of(lane: &'a Lane, line: &mut Line) -> Option<Self> {
        let exchange = line.exchange.take()?;
        Some(Self {
            lane,
            exchange: Some(exchange),
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.lane.mailbox.abort("an operation panicked");
        }
        let mut line = lock(&self.lane.line);
        line.exchange = self.exchange.take();
        if !line.waiting.is_empty() || line.leaving {
            self.lane.moved.notify_one();
        }
    }
}

impl Lane {
    /// Starts the worker.
    pub(super) fn open(
        exchange: Exchange,
        patience: Patience,
        name: &str,
    ) -> std::io::Result<Arc<Self>> {
        let lane = Arc::new(Self {
            moved: Condvar::new(),
            mailbox: Arc::clone(&exchange.mailbox),
            pool: Arc::clone(&exchange.pool),
            line: Mutex::new(Line {
                waiting: VecDeque::new(),
                exchange: Some(Box::new(exchange)),
                leaving: false,
            }),
            patience,
            worker: Mutex::new(None),
        });
        let its = Arc::clone(&lane);
        let builder = thread::Builder::new().name(format!("ronde {name} shared"));
        let worker = builder.spawn(move || its.work())?;
        *lock(&lane.worker) = Some(worker);
        Ok(lane)
    }

    /// A zeroed buffer that peers can read and write in place.
    pub(crate) fn allocate(&self, dtype: DType, len: usize) -> Buffer {
        self.pool.allocate(dtype, len, true)
    }

    /// Runs an operation and waits for its end.
    pub(crate) fn run(
        &self,
        operation: Operation,
        call: Call,
        buffer: Buffer,
        hosts: Arc<Hosts>,
    ) -> Result<Buffer, CollectiveError> {
        let mut line = lock(&self.line);
        let turn = if line.waiting.is_empty() {
            Turn::of(self, &mut line)
        } else {
            None
        };
        let Some(mut turn) = turn else {
            let (mut completion, work) = pending();
            self.record(&call, &buffer, &mut completion);
            line.waiting.push_back(Asked {
                operation,
                call,
                buffer,
                completion,
                hosts,
            });
            self.moved.notify_one();
            drop(line);
            return Box::new(work).wait();
        };
        let ticket = self.mailbox.issue(&call, buffer.bytes().len());
        drop(line);
        let flight = self.mailbox.flight();
        flight.begun(ticket);
        let outcome = turn.run(&operation, &call, buffer);
        if !matches!(outcome, Ok(Done::Over(_))) {
            flight.ended(ticket, outcome.is_err());
        }
        match outcome? {
            Done::Result(buffer) => Ok(buffer),
            Done::Over(buffer) => {
                let (mut completion, work) = pending();
                completion.recorded_by(flight, ticket);
                self.mailbox.post(Command::Collective(Asked {
                    operation,
                    call,
                    buffer,
                    completion,
                    hosts,
                }))?;
                drop(turn);
                Box::new(work).wait()
            }
        }
    }

    /// Starts an operation.
    pub(crate) fn start(&self, mut asked: Asked) -> Result<(), CollectiveError> {
        if let Some(error) = self.mailbox.error() {
            return Err(error);
        }
        let mut line = lock(&self.line);
        self.record(&asked.call, &asked.buffer, &mut asked.completion);
        line.waiting.push_back(asked);
        drop(line);
        self.moved.notify_one();
        Ok(())
    }

    /// Tells the recorder, in the order of the line.
    fn record(&self, call: &Call, buffer: &Buffer, completion: &mut Completion) {
        let ticket = self.mailbox.issue(call, buffer.bytes().len());
        completion.recorded_by(self.mailbox.flight(), ticket);
    }

    /// What the worker does: started operations, until the group is left.
    fn work(&self) {
        loop {
            let mut line = lock(&self.line);
            while line.exchange.is_none() || (line.waiting.is_empty() && !line.leaving) {
                line = self
                    .moved
                    .wait(line)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let Some(asked) = line.waiting.pop_front() else {
                return;
            };
            let Some(mut turn) = Turn::of(self, &mut line) else {
                return;
            };
            drop(line);
            let Asked {
                operation,
                call,
                buffer,
                completion,
                hosts,
            } = asked;
            if let Some(ticket) = completion.ticket() {
                self.mailbox.flight().begun(ticket);
            }
            let outcome = turn.run(&operation, &call, buffer);
            match outcome {
                Ok(Done::Result(buffer)) => {
                    // First: who hears that it is done may drop the group.
                    drop(turn);
                    completion.complete(Ok(buffer));
                }
                Ok(Done::Over(buffer)) => {
                    let asked = Asked {
                        operation,
                        call,
                        buffer,
                        completion,
                        hosts,
                    };
                    // When the group has failed the completion says so as it is dropped.
                    let _ended = self.mailbox.post(Command::Collective(asked));
                    drop(turn);
                }
                Err(error) => {
                    drop(turn);
                    completion.complete(Err(error));
                }
            }
        }
    }

    /// Ends the worker; operations that are pending fail, here and there.
    pub(crate) fn leave(&self) {
        let mut line = lock(&self.line);
        line.leaving = true;
        if line.exchange.is_none() || !line.waiting.is_empty() {
            self.mailbox
                .abort("the group was dropped while operations were pending");
        }
        drop(line);
        self.moved.notify_one();
        if let Some(worker) = lock(&self.worker).take() {
            // A worker that panicked has failed the group already.
            let _ended = worker.join();
        }
    }
}
