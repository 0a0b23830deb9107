//! [`Clock`]: a process's own idea of time, shifted and a little fast or slow.

use ronde_elastic::Time;

use crate::rng::Rng;

/// Nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;
/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000 * MS;

/// Maps the simulation's time to a process's.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    offset: u64,
    parts_per_thousand: u64,
}

impl Clock {
    /// A clock that runs up to one percent fast or slow.
    pub fn new(rng: &mut Rng) -> Self {
        Self {
            offset: rng.range(0, 1000 * SECOND),
            parts_per_thousand: rng.range(990, 1010),
        }
    }

    /// What it shows.
    #[must_use]
    pub fn show(&self, now: u64) -> Time {
        Time(self.offset + now / 1000 * self.parts_per_thousand)
    }

    /// When it will show `time`, at the earliest.
    #[must_use]
    pub fn when(&self, time: Time) -> u64 {
        (time.0.saturating_sub(self.offset) / self.parts_per_thousand + 1).saturating_mul(1000)
    }
}
