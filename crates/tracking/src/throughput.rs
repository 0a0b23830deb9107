//! [`Throughput`]: samples per second, recent and overall.

use std::collections::VecDeque;

/// Length of the recent window in seconds.
const WINDOW_S: f64 = 5.0;
/// Maximum number of steps in the recent window.
const WINDOW_COMMITS: usize = 1_024;

/// Counts committed steps and their durations; needs no clock.
#[derive(Debug, Clone, Default)]
pub struct Throughput {
    recent: VecDeque<(u64, f64)>,
    samples: u64,
    seconds: f64,
}

impl Throughput {
    /// Adds a committed step of `samples` samples that took `duration_s`. A duration that is negative or
    /// not finite counts as zero.
    pub fn add(&mut self, samples: u64, duration_s: f64) {
        let duration_s = self.add_again(samples, duration_s);
        self.samples += samples;
        self.seconds += duration_s;
    }

    /// Adds a step that was committed before and is computed again: it counts for the recent speed only. Returns
    /// the duration as it is counted.
    pub(crate) fn add_again(&mut self, samples: u64, duration_s: f64) -> f64 {
        let duration_s = if duration_s.is_finite() {
            duration_s.max(0.0)
        } else {
            0.0
        };
        self.recent.push_back((samples, duration_s));
        let mut held: f64 = self.recent.iter().map(|&(_, s)| s).sum();
        while self.recent.len() > 1 && (held > WINDOW_S || self.recent.len() > WINDOW_COMMITS) {
            held -= self.recent.pop_front().map_or(0.0, |(_, s)| s);
        }
        duration_s
    }

    /// Sets the totals and forgets the recent steps.
    pub(crate) fn set_totals(&mut self, samples: u64, seconds: f64) {
        *self = Self {
            samples,
            seconds,
            ..Self::default()
        };
    }

    /// Returns the samples per second of the last few seconds.
    #[must_use]
    pub fn recent(&self) -> Option<f64> {
        let samples: u64 = self.recent.iter().map(|&(n, _)| n).sum();
        ratio(samples, self.recent_s())
    }

    /// Returns the samples per second since the run began.
    #[must_use]
    pub fn overall(&self) -> Option<f64> {
        ratio(self.samples, self.seconds)
    }

    /// Returns the number of samples since the run began.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the seconds since the run began.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    fn recent_s(&self) -> f64 {
        self.recent.iter().map(|&(_, s)| s).sum()
    }
}

fn ratio(count: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| count as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recent_rate_uses_the_window_and_the_overall_rate_everything() {
        let mut throughput = Throughput::default();
        assert_eq!((throughput.recent(), throughput.overall()), (None, None));
        for _ in 0..10 {
            throughput.add(64, 1.0);
        }
        assert_eq!(throughput.recent(), Some(64.0));
        for _ in 0..10 {
            throughput.add(64, 0.5);
        }
        assert_eq!(throughput.recent(), Some(128.0));
        assert_eq!(throughput.overall(), Some(1280.0 / 15.0));
        throughput.add(64, 60.0);
        assert_eq!(
            throughput.recent(),
            Some(64.0 / 60.0),
            "one long step counts"
        );
    }

    #[test]
    fn invalid_durations_count_as_zero() {
        let mut throughput = Throughput::default();
        for duration in [f64::NAN, -1.0, f64::INFINITY, 0.0] {
            throughput.add(10, duration);
        }
        assert_eq!(throughput.recent(), None);
        throughput.add(10, 1.0);
        assert_eq!(throughput.overall(), Some(50.0));
    }
}
