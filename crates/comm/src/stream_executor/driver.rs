//! [`ExecutorDriver`]: decides which thread drives the stream executor. A caller that waits for its operation
//! drives it itself, because then no other thread has to be woken; otherwise the progress thread does.
//!
//! After a caller has returned, the progress thread leaves an idle executor alone for a moment,
//! because the next call usually follows soon.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use ronde_core::CollectiveError;

use super::incoming::WaitMode;
use super::mailbox::{Mailbox, MailboxCloser};
use super::{ExecutorCommand, StreamExecutor};
use crate::work::PendingOperation;

/// The executor behind a lock; the thread that holds the lock drives it.
pub(crate) struct ExecutorDriver {
    engine: Mutex<Option<StreamExecutor>>,
    mailbox: Arc<Mailbox>,
}

impl std::fmt::Debug for ExecutorDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat")
            .field("signs", &self.mailbox.flags)
            .finish_non_exhaustive()
    }
}

impl ExecutorDriver {
    pub(crate) fn new(engine: StreamExecutor, mailbox: Arc<Mailbox>) -> Self {
        Self {
            engine: Mutex::new(Some(engine)),
            mailbox,
        }
    }

    /// Runs the progress thread until the group is left.
    pub(crate) fn run_progress_thread(&self) {
        let _closing = MailboxCloser(Arc::clone(&self.mailbox));
        let flags = &self.mailbox.flags;
        let _only_once = flags.progress.set(thread::current());
        let mut drives_seen = 0;
        loop {
            flags.pause(&mut drives_seen);
            // A caller that panicked has left the executor in an invalid state.
            let Ok(mut place) = self.engine.lock() else {
                return;
            };
            let Some(engine) = place.as_mut() else {
                return;
            };
            flags.watched.store(true, Ordering::SeqCst);
            flags.urgent.store(false, Ordering::SeqCst);
            while !flags.driven.load(Ordering::SeqCst) {
                engine.act();
                if engine.leaving {
                    let engine = place.take();
                    drop(place);
                    return engine.map_or((), StreamExecutor::depart);
                }
                engine.await_news(WaitMode::Asleep);
            }
            flags.watched.store(false, Ordering::SeqCst);
        }
    }

    /// Posts a command. Unless another caller already drives the executor, this caller then drives it
    /// until `work` has ended.
    ///
    /// # Errors
    /// The error that ended the group.
    pub(crate) fn run(
        &self,
        command: ExecutorCommand,
        work: &PendingOperation,
    ) -> Result<(), CollectiveError> {
        let Some(mut drive) = self.try_drive() else {
            return self.mailbox.post(command);
        };
        self.mailbox.post_unsignalled(command)?;
        drive.until_ended(work);
        Ok(())
    }

    fn try_drive(&self) -> Option<DriverGuard<'_>> {
        let flags = &self.mailbox.flags;
        if flags.driven.swap(true, Ordering::SeqCst) {
            return None;
        }
        if flags.watched.load(Ordering::SeqCst) {
            flags.waker.wake();
        }
        let mut drive = DriverGuard {
            seat: self,
            engine: None,
        };
        // From here on dropping `drive` releases the executor.
        let engine = self.engine.lock().ok()?;
        drive.engine = engine.is_some().then_some(engine);
        drive.engine.is_some().then_some(drive)
    }
}

/// The right of a caller to drive the executor.
struct DriverGuard<'a> {
    seat: &'a ExecutorDriver,
    engine: Option<MutexGuard<'a, Option<StreamExecutor>>>,
}

impl DriverGuard<'_> {
    fn until_ended(&mut self, work: &PendingOperation) {
        let Some(engine) = self.engine.as_mut().and_then(|engine| engine.as_mut()) else {
            return;
        };
        loop {
            engine.act();
            if work.has_ended() || engine.leaving {
                return;
            }
            engine.await_news(WaitMode::Awake);
        }
    }
}

impl Drop for DriverGuard<'_> {
    fn drop(&mut self) {
        let flags = &self.seat.mailbox.flags;
        if let Some(engine) = self.engine.take() {
            let busy = engine.as_ref().is_some_and(StreamExecutor::is_busy);
            flags.drives.fetch_add(1, Ordering::SeqCst);
            if busy {
                flags.urgent.store(true, Ordering::SeqCst);
            }
        }
        flags.driven.store(false, Ordering::SeqCst);
        if flags.urgent.load(Ordering::SeqCst) {
            flags.unpark();
        }
    }
}
