//! [`StopFlag`]: a stop request from a signal handler to the supervisor.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Signals within this time count as one: process managers, terminals and wrappers repeat and forward them.
const SIGNALS_MERGED: Duration = Duration::from_secs(1);
/// The request that kills, whichever signals they are.
const REQUESTS_MAX: u32 = 3;
/// The signal of Ctrl-C, with which a waiting user ends the job at once.
const SIGINT: i32 = 2;

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
/// The first signal requests a stop. Signals within a second count as one, of any kind. After that SIGINT means kill,
/// and so does the third signal; a second one of another kind changes nothing.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<Mutex<StopRequests>>);

#[derive(Debug, Default)]
struct StopRequests {
    /// The signal of the first request.
    signal: i32,
    /// The number of requests.
    count: u32,
    /// When the last request began.
    latest: Option<Instant>,
    kills: bool,
}

impl StopRequests {
    fn request(&mut self, signal: i32, now: Instant) {
        let is_same = |latest| now.saturating_duration_since(latest) < SIGNALS_MERGED;
        if self.latest.is_some_and(is_same) {
            return;
        }
        if self.count == 0 {
            self.signal = signal;
        }
        (self.count, self.latest) = (self.count.saturating_add(1), Some(now));
        self.kills |= self.count >= REQUESTS_MAX || self.count > 1 && signal == SIGINT;
    }

    fn level(&self) -> StopLevel {
        match self.count {
            _ if self.kills => StopLevel::KillNow,
            0 => StopLevel::Run,
            _ => StopLevel::Stop,
        }
    }
}

impl StopFlag {
    /// Returns a flag without a request.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a request caused by `signal`.
    pub fn request(&self, signal: i32) {
        self.lock().request(signal, ronde_clock::now());
    }

    /// Returns the current level.
    #[must_use]
    pub fn level(&self) -> StopLevel {
        self.lock().level()
    }

    /// Returns the signal of the first request; 0 if there was none.
    #[must_use]
    pub fn signal(&self) -> i32 {
        self.lock().signal
    }

    fn lock(&self) -> MutexGuard<'_, StopRequests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUP: i32 = 1;
    const INT: i32 = 2;
    const TERM: i32 = 15;

    /// Returns the level after signals at times in milliseconds.
    fn level(signals: &[(u64, i32)]) -> StopLevel {
        let (begun, mut requests) = (ronde_clock::now(), StopRequests::default());
        for (ms, signal) in signals {
            requests.request(*signal, begun + Duration::from_millis(*ms));
        }
        assert_eq!(
            requests.signal,
            signals.first().map_or(0, |(_, signal)| *signal)
        );
        requests.level()
    }

    #[test]
    fn signals_within_a_second_count_as_one() {
        for (signals, expected) in [
            (&[][..], StopLevel::Run),
            (&[(0, TERM)], StopLevel::Stop),
            (&[(0, TERM), (0, TERM)], StopLevel::Stop),
            (&[(0, TERM), (20, HUP), (999, INT)], StopLevel::Stop),
            (&[(0, INT), (500, INT), (999, INT)], StopLevel::Stop),
            (&[(0, TERM), (1000, INT)], StopLevel::KillNow),
            (&[(0, INT), (1000, INT)], StopLevel::KillNow),
            (&[(0, INT), (1000, TERM)], StopLevel::Stop),
            (&[(0, TERM), (1000, TERM)], StopLevel::Stop),
            (&[(0, TERM), (1000, HUP), (1500, INT)], StopLevel::Stop),
            (&[(0, TERM), (1000, TERM), (1999, TERM)], StopLevel::Stop),
            (&[(0, TERM), (1000, TERM), (2000, TERM)], StopLevel::KillNow),
            (&[(0, TERM), (5000, HUP), (9000, INT)], StopLevel::KillNow),
        ] {
            assert_eq!(level(signals), expected, "{signals:?}");
        }
    }

    #[test]
    fn clones_share_a_request() {
        let flag = StopFlag::new();
        assert_eq!((flag.level(), flag.signal()), (StopLevel::Run, 0));
        let other = flag.clone();
        other.request(INT);
        other.request(TERM);
        assert_eq!((flag.level(), flag.signal()), (StopLevel::Stop, INT));
    }
}
