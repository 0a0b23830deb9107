//! [`StopFlag`]: a stop request from a signal handler to the supervisor.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

/// The urgency of a stop request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopLevel {
    /// No stop was requested.
    Run,
    /// Stop the workers and give them time to end in good order.
    Stop,
    /// Kill the workers immediately.
    KillNow,
}

/// A stop request whose level only increases. Clones share it.
///
/// Uses only atomics, so that [`StopFlag::request`] may be called from a signal handler.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<StopState>);

#[derive(Debug, Default)]
struct StopState {
    level: AtomicU8,
    signal: AtomicI32,
}

impl StopFlag {
    /// Returns a flag without a request.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a request caused by `signal`: the first one means stop, the second one means kill.
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

    /// Returns the current level.
    #[must_use]
    pub fn level(&self) -> StopLevel {
        match self.0.level.load(Ordering::SeqCst) {
            0 => StopLevel::Run,
            1 => StopLevel::Stop,
            _ => StopLevel::KillNow,
        }
    }

    /// Returns the signal of the first request; 0 if there was none.
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
