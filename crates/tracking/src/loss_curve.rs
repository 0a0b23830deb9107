//! [`LossCurve`]: the loss of a run over its steps, bounded in size.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use ronde_core::{Event, Tracker};

use crate::event_file::read_events;

/// The largest number of points of a curve. A curve that reaches it is halved by averaging neighbours.
const POINTS_MAX: usize = 4_096;

/// The loss of a run over its steps, computed from its events: of training and of evaluations.
///
/// Each curve has at most 4,096 points; a point of a longer curve is the mean of several steps. Losses that are not
/// finite are left out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LossCurve {
    /// The run's name.
    pub name: String,
    /// The number of steps of the whole run; 0 until it is known.
    pub steps: u64,
    train: MeanSeries,
    test: MeanSeries,
}

impl LossCurve {
    /// Returns the curve of the events in the event files of a run, whose newest one is `path`.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        let mut curve = Self::default();
        read_events(path, &mut |_, event| curve.apply(event))?;
        Ok(curve)
    }

    /// Updates the curve by an event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::RunStarted { name, steps, .. } => {
                self.name.clone_from(name);
                self.steps = *steps;
            }
            Event::StepCommitted { step, loss, .. } => {
                self.train.add(step.0.saturating_add(1), *loss)
            }
            Event::Evaluated { step, loss, .. } => self.test.add(step.0.saturating_add(1), *loss),
            Event::CheckpointLoaded { step, .. } => self.restart_at(step.0),
            Event::RunRestarted { .. } => self.restart_at(0),
            _ => {}
        }
    }

    /// Removes the points after `steps` committed steps, which are computed again.
    fn restart_at(&mut self, steps: u64) {
        self.train.remove_after(steps);
        self.test.remove_after(steps);
    }

    /// Returns the number of committed steps and the loss of each point of the training.
    #[must_use]
    pub fn train(&self) -> &[(f64, f64)] {
        &self.train.points
    }

    /// Returns the number of committed steps and the loss of each evaluation.
    #[must_use]
    pub fn test(&self) -> &[(f64, f64)] {
        &self.test.points
    }

    /// Returns the training loss, each point averaged with earlier ones by weights that halve about every fiftieth of
    /// the curve.
    #[must_use]
    pub fn smoothed(&self) -> Vec<(f64, f64)> {
        let points = self.train();
        let keep = 0.5_f64.powf(50.0 / points.len().max(50) as f64);
        let (mut sum, mut weight) = (0.0, 0.0);
        let smooth = |&(step, loss): &(f64, f64)| {
            sum = keep * sum + loss;
            weight = keep * weight + 1.0;
            (step, sum / weight)
        };
        points.iter().map(smooth).collect()
    }
}

/// A tracker that keeps the loss of a run.
#[derive(Debug, Default)]
pub struct LossRecorder(Mutex<LossCurve>);

impl LossRecorder {
    /// Continues a curve.
    #[must_use]
    pub fn new(curve: LossCurve) -> Self {
        Self(Mutex::new(curve))
    }

    /// Returns the curve so far.
    #[must_use]
    pub fn curve(&self) -> LossCurve {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Tracker for LossRecorder {
    fn record(&self, event: Event) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .apply(&event);
    }
}

/// Means of consecutive values, at most [`POINTS_MAX`].
#[derive(Debug, Clone, PartialEq)]
struct MeanSeries {
    points: Vec<(f64, f64)>,
    /// The number of values of a point.
    per_point: u32,
    /// The number of values and the sum of the next point.
    begun: (u32, f64),
}

impl Default for MeanSeries {
    fn default() -> Self {
        Self {
            points: Vec::new(),
            per_point: 1,
            begun: (0, 0.0),
        }
    }
}

impl MeanSeries {
    fn add(&mut self, step: u64, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.begun = (self.begun.0 + 1, self.begun.1 + value);
        let (values, sum) = self.begun;
        if values < self.per_point {
            return;
        }
        self.points.push((step as f64, sum / f64::from(values)));
        self.begun = (0, 0.0);
        if self.points.len() >= POINTS_MAX {
            let halved = self.points.chunks(2).map(|pair| {
                let sum: f64 = pair.iter().map(|point| point.1).sum();
                (pair[pair.len() - 1].0, sum / pair.len() as f64)
            });
            self.points = halved.collect();
            self.per_point = self.per_point.saturating_mul(2);
        }
    }

    fn remove_after(&mut self, step: u64) {
        self.points.retain(|point| point.0 <= step as f64);
        self.begun = (0, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::Step;

    use super::*;

    #[test]
    fn a_long_curve_is_bounded_and_keeps_its_mean() {
        let mut series = MeanSeries::default();
        for step in 1..=100_000 {
            series.add(step, if step % 2 == 0 { 1.0 } else { 3.0 });
        }
        assert!(series.points.len() < POINTS_MAX);
        assert!(series.points.iter().all(|point| point.1 == 2.0));
        assert!(series.points.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn steps_after_a_checkpoint_are_replaced_and_nan_is_left_out() {
        let mut curve = LossCurve::default();
        for (step, loss) in [(1, 4.0), (2, 3.0), (3, f64::NAN), (4, 2.0)] {
            curve.train.add(step, loss);
        }
        curve.apply(&Event::CheckpointLoaded {
            step: Step(2),
            world_size: 1,
            bytes: 0,
            duration_s: 0.0,
            address: None,
            skipped: Vec::new(),
        });
        curve.train.add(3, 1.0);
        assert_eq!(curve.train(), [(1.0, 4.0), (2.0, 3.0), (3.0, 1.0)]);
        assert_eq!(curve.smoothed().len(), 3);
    }
}
