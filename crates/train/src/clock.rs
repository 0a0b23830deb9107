//! The only module of this crate that reads the clock.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Measures consecutive periods of time.
#[derive(Debug, Clone, Copy)]
pub struct LapTimer(Instant);

impl LapTimer {
    /// Starts a stopwatch.
    #[must_use]
    pub fn start() -> Self {
        Self(now())
    }

    /// Returns the seconds since the start or the last lap.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        (now() - self.0).as_secs_f64()
    }

    /// Returns the seconds since the start or the last lap, and starts the next lap.
    pub fn lap_s(&mut self) -> f64 {
        let now = now();
        let seconds = (now - self.0).as_secs_f64();
        self.0 = now;
        seconds
    }
}

/// Returns the seconds of a monotonic clock; only differences are meaningful.
pub(crate) fn seconds() -> f64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let now = now();
    (now - *BEGUN.get_or_init(|| now)).as_secs_f64()
}

/// Returns nanoseconds of the host's monotonic clock: all of its processes read the same value at the same time.
pub(crate) fn host_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Returns a number that processes have in common if they read the same [`host_ns`]; 0 if the system does not tell.
pub(crate) fn host_identity() -> i64 {
    let mut identity = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if identity.is_empty() {
        return 0;
    }
    // A container may have a time namespace.
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    identity.extend(namespace.as_os_str().as_encoded_bytes());
    let hash = blake3::hash(&identity);
    let first = hash.as_bytes().first_chunk::<8>();
    first.map_or(0, |first| i64::from_le_bytes(*first))
}

#[expect(
    clippy::disallowed_methods,
    reason = "this module owns the time of a step"
)]
fn now() -> Instant {
    Instant::now()
}

/// Returns the Unix time in milliseconds; 0 if the clock is set before 1970.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
