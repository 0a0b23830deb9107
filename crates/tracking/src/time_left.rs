//! [`TimeLeft`]: the estimated time until the last step.

use ronde_core::{Epoch, Generation};

/// Estimates the time that the remaining steps take, from the durations of committed steps; needs no clock.
///
/// The first step of an epoch also takes the time of an evaluation or a checkpoint after the previous one, so such steps
/// have a separate mean. A change of the membership begins a new estimate, without its first step, which also takes
/// the time of the change.
#[derive(Debug, Clone, Default)]
pub(crate) struct TimeLeft {
    generation: Option<Generation>,
    epoch: Option<Epoch>,
    plain: RecentMean,
    first_of_epoch: RecentMean,
}

impl TimeLeft {
    /// Adds a committed step.
    pub(crate) fn add(&mut self, generation: Generation, epoch: Epoch, duration_s: f64) {
        let begins = self.generation != Some(generation);
        if begins {
            *self = Self {
                generation: Some(generation),
                epoch: Some(epoch),
                ..Self::default()
            };
            return;
        }
        let begins_epoch = self.epoch != Some(epoch);
        self.epoch = Some(epoch);
        if !(duration_s.is_finite() && duration_s >= 0.0) {
            return;
        }
        match begins_epoch {
            true => self.first_of_epoch.add(duration_s),
            false => self.plain.add(duration_s),
        }
    }

    /// Forgets all steps: the run is restarted.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Returns the seconds that `steps` remaining steps take, among them the first ones of `epochs` epochs.
    pub(crate) fn seconds(&self, steps: u64, epochs: u64) -> Option<f64> {
        let plain = self.plain.mean().or_else(|| self.first_of_epoch.mean())?;
        let first = self.first_of_epoch.mean().unwrap_or(plain);
        let epochs = epochs.min(steps);
        Some(plain * (steps - epochs) as f64 + first * epochs as f64)
    }
}

/// The mean of the newest half to three quarters of all values, so that a slow start is forgotten.
#[derive(Debug, Clone, Default)]
struct RecentMean {
    values: u64,
    window: (u64, f64),
    /// The part of the window that becomes the next window.
    next: (u64, f64),
}

impl RecentMean {
    fn add(&mut self, value: f64) {
        self.values += 1;
        self.window = (self.window.0 + 1, self.window.1 + value);
        self.next = (self.next.0 + 1, self.next.1 + value);
        if 2 * self.next.0 >= self.values {
            self.window = std::mem::take(&mut self.next);
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.window.0 > 0).then(|| self.window.1 / self.window.0 as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PER_EPOCH: u64 = 23;
    const EPOCHS: u64 = 10;

    /// Returns the largest relative error of the estimate over a run, from step `from` until the last five steps.
    fn worst(durations: &[f64], generation: impl Fn(u64) -> u64, from: u64) -> f64 {
        let mut left = TimeLeft::default();
        let mut worst = 0.0_f64;
        for step in 0..durations.len() as u64 {
            let epoch = step / PER_EPOCH;
            left.add(
                Generation(generation(step)),
                Epoch(epoch),
                durations[step as usize],
            );
            let steps = durations.len() as u64 - step - 1;
            if step >= from && steps >= 5 {
                let actual: f64 = durations[step as usize + 1..].iter().sum();
                let estimate = left.seconds(steps, EPOCHS - 1 - epoch).unwrap();
                worst = worst.max((estimate / actual - 1.0).abs());
            }
        }
        worst
    }

    /// Returns the durations of a run with a slow first step, noise of 20 % and a pause of `pause_s` after each epoch.
    fn durations(pause_s: f64) -> Vec<f64> {
        let noise = |step: u64| [0.8, 1.2, 1.0, 0.9, 1.1][(step % 5) as usize];
        let mut all: Vec<f64> = (0..EPOCHS * PER_EPOCH)
            .map(|step| 0.1 * noise(step))
            .collect();
        all[0] = 5.0;
        for epoch in 1..EPOCHS {
            all[(epoch * PER_EPOCH) as usize] += pause_s;
        }
        all
    }

    #[test]
    fn the_estimate_is_within_a_tenth_after_the_first_tenth() {
        for pause_s in [0.0, 0.5, 5.0] {
            let error = worst(&durations(pause_s), |_| 1, PER_EPOCH);
            assert!(error < 0.1, "pause {pause_s} s: {error}");
        }
    }

    #[test]
    fn the_estimate_is_right_again_after_a_worker_is_lost() {
        let mut all = durations(0.5);
        let lost = 4 * PER_EPOCH + 7;
        for (step, duration) in all.iter_mut().enumerate().skip(lost as usize) {
            *duration *= if step as u64 == lost { 20.0 } else { 1.5 };
        }
        let error = worst(&all, |step| u64::from(step >= lost), 5 * PER_EPOCH);
        assert!(error < 0.1, "{error}");
    }

    #[test]
    fn invalid_durations_are_left_out() {
        let mut left = TimeLeft::default();
        assert_eq!(left.seconds(10, 0), None);
        for duration in [9.0, f64::NAN, f64::INFINITY, -1.0, 0.5] {
            left.add(Generation(1), Epoch(0), duration);
        }
        assert_eq!(left.seconds(10, 0), Some(5.0));
    }
}
