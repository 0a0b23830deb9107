//! [`Time`]: a point in time on the clock of the process that drives a machine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds since an arbitrary start. Times of two processes are never compared; their clocks
/// only need to run at about the same rate. The clock must advance while the process is stopped or
/// the machine sleeps (`CLOCK_BOOTTIME`).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// Returns the point in time `duration` later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanoseconds))
    }

    /// Returns the time elapsed since `earlier`, or zero if `earlier` is in the future.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_end_overflows() {
        assert_eq!(Time(5).since(Time(9)), Duration::ZERO);
        assert_eq!(Time(9).since(Time(5)), Duration::from_nanos(4));
        assert_eq!(Time(1).after(Duration::MAX), Time(u64::MAX));
    }
}
