//! [`HandlerQueue`]: received calls that wait for a thread, bounded by number; and the threads that run functions.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::connection::RpcConnection;
use crate::frame::{CallHead, FailureCode, FrameBody, RpcFrameKind, check_size};
use crate::function::{ErasedResult, RegisteredFunction};
use crate::lease::ProcessName;
use crate::node::{CallContext, NodeShared};
use crate::values::CallValues;

/// A received call whose function was found.
pub(crate) struct FunctionRun {
    pub(crate) caller: Arc<ProcessName>,
    pub(crate) frame: FrameBody,
    pub(crate) deadline: Duration,
    pub(crate) function: RegisteredFunction,
}

/// Objects without holders, which may take long to drop.
type EndedObjects = Vec<Arc<dyn Any + Send + Sync>>;

/// Work for a thread.
enum HandlerTask {
    Run(Box<FunctionRun>),
    Drop(EndedObjects),
}

#[derive(Default)]
struct QueuedRuns {
    runs: VecDeque<FunctionRun>,
    ended: EndedObjects,
    bytes: usize,
    is_closing: bool,
}

/// Received calls that wait for a thread.
#[derive(Default)]
pub(crate) struct HandlerQueue {
    queued: Mutex<QueuedRuns>,
    is_filled: Condvar,
}

impl HandlerQueue {
    /// Adds a call unless `max` wait already; returns whether it was added.
    pub(crate) fn push(&self, run: FunctionRun, max: usize) -> bool {
        let mut queued = self.lock();
        if queued.runs.len() >= max {
            return false;
        }
        queued.bytes += run.frame.bytes();
        queued.runs.push_back(run);
        drop(queued);
        self.is_filled.notify_one();
        true
    }

    /// Drops objects on one of the threads.
    pub(crate) fn drop_objects(&self, ended: EndedObjects) {
        if !ended.is_empty() {
            self.lock().ended.extend(ended);
            self.is_filled.notify_one();
        }
    }

    /// Returns the bytes of waiting calls.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Ends the threads after their current call.
    pub(crate) fn close(&self) {
        self.lock().is_closing = true;
        self.is_filled.notify_all();
    }

    /// Waits for a call; `None` once the queue is closed.
    fn pop(&self) -> Option<HandlerTask> {
        let mut queued = self.lock();
        loop {
            if queued.is_closing {
                return None;
            }
            if !queued.ended.is_empty() {
                return Some(HandlerTask::Drop(std::mem::take(&mut queued.ended)));
            }
            if let Some(run) = queued.runs.pop_front() {
                queued.bytes -= run.frame.bytes();
                return Some(HandlerTask::Run(Box::new(run)));
            }
            queued = self
                .is_filled
                .wait(queued)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueuedRuns> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs functions until the queue is closed.
pub(crate) fn run_all(shared: &Arc<NodeShared>) {
    while let Some(task) = shared.handlers.pop() {
        match task {
            HandlerTask::Drop(ended) => drop(ended),
            HandlerTask::Run(run) => {
                if let Some(connection) = execute(shared, *run) {
                    shared.write(&connection);
                }
            }
        }
        if shared.is_paused.swap(false, Ordering::SeqCst) {
            shared.wake();
        }
    }
}

/// Runs one function and queues the answer of its call; returns the connection to write to.
pub(crate) fn execute(
    shared: &Arc<NodeShared>,
    mut run: FunctionRun,
) -> Option<Arc<RpcConnection>> {
    let call = run.frame.call;
    if !shared.expects_answer(&run) {
        return None;
    }
    let result = if shared.clock.elapsed() >= run.deadline && run.frame.kind == RpcFrameKind::Call {
        let text = "its deadline passed while it waited for a thread";
        Err((FailureCode::DeadlinePassed, text.to_owned()))
    } else {
        call_function(shared, &mut run)
    };
    let answer = match result {
        Ok((head, values)) => match check_size(head.len(), values.len(), &shared.limits) {
            Ok(()) => FrameBody {
                kind: RpcFrameKind::Answer,
                call,
                head,
                values,
            },
            Err((bytes, limit)) => {
                let text = format!("its result has {bytes} bytes, limit {limit}");
                FrameBody::failure(call, FailureCode::TooLarge, &text)
            }
        },
        Err((code, text)) => FrameBody::failure(call, code, &text),
    };
    shared.answer(&run.caller, answer)
}

fn call_function(shared: &Arc<NodeShared>, run: &mut FunctionRun) -> ErasedResult {
    let values: CallValues = std::mem::take(&mut run.frame.values);
    let context = CallContext::new(shared, &run.caller, run.deadline);
    let head = CallHead::decode(&run.frame.head);
    let head = head.map_err(|cause| (FailureCode::Arguments, cause.to_string()))?;
    let call = || (run.function.run)(&context, head.arguments, values);
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = format!("it panicked: {}", panic_text(&*panic));
        Err((FailureCode::FunctionFailed, text))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}
