//! The clock that people read and set.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the date, for people, files and certificates. This clock can be set at any time.
#[must_use]
pub fn date() -> SystemTime {
    SystemTime::now()
}

/// Returns the time from 1970 until a date; zero for an earlier one.
#[must_use]
pub fn since_1970(date: SystemTime) -> Duration {
    date.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the seconds since 1970.
#[must_use]
pub fn unix_s() -> f64 {
    since_1970(date()).as_secs_f64()
}

/// Returns the milliseconds since 1970.
#[must_use]
pub fn unix_ms() -> u64 {
    u64::try_from(since_1970(date()).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_before_1970_counts_as_1970() {
        let early = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(since_1970(early), Duration::ZERO);
    }
}
