//! [`StopFlag`]: how a signal handler tells the supervision to end the job.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

/// How urgently a job should end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopLevel {
    /// Go on.
    Run,
    /// End the workers, give them the grace to do it well.
    Stop,
    /// Kill the workers at once.
    KillNow,
}

/// A request to stop that only ever grows. Clones share it.
///
/// Only atomics are touched, so that [`StopFlag::request`] may be called from a signal handler.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    level: AtomicU8,
    signal: AtomicI32,
}

impl StopFlag {
    /// Nobody has asked for a stop yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One more request because of `signal`: the first means stop, the second means kill now.
    pub fn request(&self, signal: i32) {
        let _ = self
            .0
            .signal
            .compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
        let _ = self
            .0
            .level
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |level| {
                Some((level + 1).min(2))
            });
    }

    /// How urgent it is.
    #[must_use]
    pub fn level(&self) -> StopLevel {
        match self.0.level.load(Ordering::SeqCst) {
            0 => StopLevel::Run,
            1 => StopLevel::Stop,
            _ => StopLevel::KillNow,
        }
    }

    /// The signal of the first request; 0 when there was none.
    #[must_use]
    pub fn signal(&self) -> i32 {
        self.0.signal.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_grow_and_the_first_signal_is_kept() {
        let flag = StopFlag::new();
        assert_eq!((flag.level(), flag.signal()), (StopLevel::Run, 0));
        let other = flag.clone();
        other.request(2);
        assert_eq!((flag.level(), flag.signal()), (StopLevel::Stop, 2));
        other.request(15);
        other.request(15);
        assert_eq!((flag.level(), flag.signal()), (StopLevel::KillNow, 2));
    }
}
