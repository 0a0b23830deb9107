//! [`ProcessClock`]: the clock of a simulated process, with an offset and a small drift.

use ronde_protocol::Time;

use crate::rng::Rng;

/// The number of nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;
/// The number of nanoseconds of a second.
pub const SECOND: u64 = 1_000 * MS;

/// A map from the simulation's time to a process's time.
#[derive(Debug, Clone, Copy)]
pub struct ProcessClock {
    offset: u64,
    parts_per_thousand: u64,
}

impl ProcessClock {
    /// Creates a clock that is up to one percent fast or slow.
    pub fn new(rng: &mut Rng) -> Self {
        Self {
            offset: rng.range(0, 1000 * SECOND),
            parts_per_thousand: rng.range(990, 1010),
        }
    }

    /// Returns the process's time at a time of the simulation.
    #[must_use]
    pub fn show(&self, now: u64) -> Time {
        Time(self.offset + now / 1000 * self.parts_per_thousand)
    }

    /// Returns the earliest time of the simulation at which the clock shows `time`.
    #[must_use]
    pub fn when(&self, time: Time) -> u64 {
        (time.0.saturating_sub(self.offset) / self.parts_per_thousand + 1).saturating_mul(1000)
    }
}
