//! [`LearningRate`]: the learning rate of each step; [`ScheduleConfig`]: the built-in schedules.

use std::fmt;
use std::sync::Arc;

use ronde_core::Step;

use serde::{Deserialize, Serialize};

/// The learning rate of each step, as a function with a name.
///
/// ```
/// use ronde_core::Step;
/// use ronde_engine::LearningRate;
///
/// let triangle = LearningRate::new("triangle(20)", |step: Step| {
///     let phase = (step.0 % 20) as f64 / 20.0;
///     0.1 * (1.0 - (2.0 * phase - 1.0).abs())
/// });
/// assert_eq!(triangle.at(Step(10)), 0.1);
/// ```
#[derive(Clone)]
pub struct LearningRate {
    name: String,
    rate: Arc<dyn Fn(Step) -> f64 + Send + Sync>,
}

impl LearningRate {
    /// Creates a learning rate from a function of the step, counted from 0. The result must be the same in every
    /// process and on every machine.
    ///
    /// The name is part of the run's identity: it must contain all constants, and change with the function.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        rate: impl Fn(Step) -> f64 + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            rate: Arc::new(rate),
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the rate of a step.
    #[must_use]
    pub fn at(&self, step: Step) -> f64 {
        (self.rate)(step)
    }
}

impl fmt::Debug for LearningRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The change of the learning rate over a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScheduleConfig {
    /// The base rate, after a linear warm-up.
    Constant {
        /// The number of warm-up steps; the first step has `base / warmup_steps`.
        #[serde(default)]
        warmup_steps: u64,
    },
    /// Half a cosine from the base rate to zero, after a linear warm-up. Source: Loshchilov and
    /// Hutter, "SGDR", ICLR 2017, equation 5, without restarts.
    Cosine {
        /// The number of warm-up steps; the first step has `base / warmup_steps`.
        #[serde(default)]
        warmup_steps: u64,
    },
    /// The base rate, multiplied by a factor at regular intervals, after a linear warm-up.
    Step {
        /// The number of steps from the start of the run to the first change, and between changes.
        every_steps: u64,
        /// The factor.
        #[serde(default = "tenth")]
        factor: f64,
        /// The number of warm-up steps; the first step has `base / warmup_steps`.
        #[serde(default)]
        warmup_steps: u64,
    },
}

fn tenth() -> f64 {
    0.1
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self::Constant { warmup_steps: 0 }
    }
}

impl ScheduleConfig {
    /// Returns the number of warm-up steps.
    #[must_use]
    pub fn warmup_steps(&self) -> u64 {
        let (Self::Constant { warmup_steps }
        | Self::Cosine { warmup_steps }
        | Self::Step { warmup_steps, .. }) = *self;
        warmup_steps
    }

    /// Returns the schedule as a function of the step, in a run of `steps`.
    #[must_use]
    pub fn learning_rate(self, base: f64, steps: u64) -> LearningRate {
        LearningRate::new("schedule", move |step| self.rate(base, step.0, steps))
    }

    /// Returns the rate of `step`, counted from 0, in a run of `steps`; later steps have the rate
    /// of the last one.
    #[must_use]
    pub fn rate(&self, base: f64, step: u64, steps: u64) -> f64 {
        let warmup_steps = self.warmup_steps();
        if step < warmup_steps {
            return base * ((step + 1) as f64 / warmup_steps as f64);
        }
        match *self {
            Self::Constant { .. } => base,
            Self::Step {
                every_steps,
                factor,
                ..
            } => base * libm::pow(factor, (step / every_steps.max(1)) as f64),
            Self::Cosine { .. } => {
                let length = steps.saturating_sub(warmup_steps).max(1);
                let done = ((step - warmup_steps) as f64 / length as f64).min(1.0);
                base * (0.5 * (1.0 + libm::cos(std::f64::consts::PI * done)))
            }
        }
    }
}

/// The dependence of the base rate on the global batch size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RateScaling {
    /// No dependence.
    #[default]
    None,
    /// Proportional. Source: Goyal et al., arXiv:1706.02677, section 2.1.
    Linear,
    /// With the square root. Source: Krizhevsky, arXiv:1404.5997, section 5.
    SquareRoot,
}

impl RateScaling {
    /// Returns the factor that converts a rate for batches of `from` into one for batches of `to`.
    #[must_use]
    pub fn factor(self, from: u64, to: u64) -> f64 {
        let ratio = to as f64 / from.max(1) as f64;
        match self {
            Self::None => 1.0,
            Self::Linear => ratio,
            Self::SquareRoot => ratio.sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_fall_by_the_factor() {
        let steps: ScheduleConfig =
            serde_json::from_str(r#"{"kind": "step", "every_steps": 3, "warmup_steps": 2}"#)
                .unwrap();
        let expected = [0.5, 1.0, 1.0, 0.1, 0.1, 0.1, 0.01];
        for (step, expected) in expected.into_iter().enumerate() {
            let rate = steps.rate(1.0, step as u64, 7);
            assert!((rate - expected).abs() < 1e-15, "step {step}: {rate}");
        }
        assert!(serde_json::from_str::<ScheduleConfig>(r#"{"kind": "step"}"#).is_err());
    }

    #[test]
    fn rates_scale_with_the_batch() {
        assert_eq!(RateScaling::None.factor(256, 8192), 1.0);
        assert_eq!(RateScaling::Linear.factor(256, 8192), 32.0);
        assert_eq!(RateScaling::SquareRoot.factor(256, 4096), 4.0);
    }

    #[test]
    fn rises_stays_and_falls() {
        let constant = ScheduleConfig::Constant { warmup_steps: 4 };
        let rates: Vec<f64> = (0..6).map(|step| constant.rate(2.0, step, 6)).collect();
        assert_eq!(rates, [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]);
        let cosine = ScheduleConfig::Cosine { warmup_steps: 2 };
        let rates: Vec<f64> = (0..8).map(|step| cosine.rate(1.0, step, 6)).collect();
        let expected = [0.5, 1.0, 1.0, 0.853_553_39, 0.5, 0.146_446_61, 0.0, 0.0];
        for (rate, expected) in rates.iter().zip(expected) {
            assert!((rate - expected).abs() < 1e-8, "{rates:?}");
        }
        assert_eq!(ScheduleConfig::default().rate(0.1, 99, 5), 0.1);
    }

    #[test]
    fn runs_shorter_than_the_warmup_are_defined() {
        let cosine = ScheduleConfig::Cosine { warmup_steps: 10 };
        assert_eq!(cosine.rate(1.0, 3, 4), 0.4);
        assert_eq!(cosine.rate(1.0, 10, 4), 1.0);
        assert_eq!(cosine.rate(1.0, 11, 4), 0.0);
    }
}
