//! [`DriverFlags`]: which thread drives the stream executor, and whether it has something to do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::transport::Waker;

/// How long the streams of an idle group are not polled after a blocking call.
const PAUSE: Duration = Duration::from_millis(2);

/// Flags shared by callers and the progress thread without a lock.
#[derive(Debug)]
pub(super) struct DriverFlags {
    /// A caller drives the executor, or is about to.
    pub(super) driven: AtomicBool,
    /// The progress thread has the executor, and may be waiting with it.
    pub(super) watched: AtomicBool,
    /// The progress thread has something to do.
    pub(super) urgent: AtomicBool,
    /// There are unread commands.
    pub(super) commands_waiting: AtomicBool,
    /// Number of times a caller has driven the executor.
    pub(super) drives: AtomicU64,
    pub(super) progress: OnceLock<Thread>,
    pub(super) waker: Arc<dyn Waker>,
}

impl DriverFlags {
    pub(super) fn new(waker: Arc<dyn Waker>) -> Self {
        Self {
            driven: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            urgent: AtomicBool::new(false),
            commands_waiting: AtomicBool::new(false),
            drives: AtomicU64::new(0),
            progress: OnceLock::new(),
            waker,
        }
    }

    /// Signals a new command to the driving thread, or to the progress thread if none drives.
    pub(super) fn call(&self) {
        self.commands_waiting.store(true, Ordering::SeqCst);
        self.urgent.store(true, Ordering::SeqCst);
        self.waker.wake();
        self.unpark();
    }

    /// Returns whether there are unread commands.
    pub(super) fn has_commands(&self) -> bool {
        self.commands_waiting.load(Ordering::SeqCst)
    }

    /// Clears the signal; the caller reads the commands next.
    pub(super) fn clear(&self) {
        self.commands_waiting.store(false, Ordering::SeqCst);
    }

    pub(super) fn unpark(&self) {
        if let Some(progress) = self.progress.get() {
            progress.unpark();
        }
    }

    /// Sleeps until the progress thread must take the executor.
    pub(super) fn pause(&self, drives_seen: &mut u64) {
        loop {
            if !self.driven.load(Ordering::SeqCst) {
                let drives = self.drives.load(Ordering::SeqCst);
                if self.urgent.load(Ordering::SeqCst) || drives == *drives_seen {
                    return;
                }
                *drives_seen = drives;
            }
            thread::park_timeout(PAUSE);
        }
    }
}
