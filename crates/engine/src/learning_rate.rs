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
    /// The base rate, multiplied by `(1 - done)^power` until it is zero at the end, after a linear warm-up; `done` is the
    /// share of the remaining steps. With a power of 1 it falls linearly.
    Polynomial {
        /// The power.
        #[serde(default = "one")]
        power: f64,
        /// The number of warm-up steps; the first step has `base / warmup_steps`.
        #[serde(default)]
        warmup_steps: u64,
    },
    /// Half a cosine from a lower rate up to the base rate, and another one down to almost zero. The formula of PyTorch's
    /// `OneCycleLR`; the momentum does not change. Source: Smith and Topin, arXiv:1708.07120.
    OneCycle {
        /// The share of the steps in which the rate rises.
        #[serde(default = "three_tenths")]
        rising_share: f64,
        /// The first rate is the base rate divided by this.
        #[serde(default = "twenty_five")]
        first_divisor: f64,
        /// The last rate is the first one divided by this.
        #[serde(default = "ten_thousand")]
        last_divisor: f64,
    },
}

fn tenth() -> f64 {
    0.1
}

fn one() -> f64 {
    1.0
}

fn three_tenths() -> f64 {
    0.3
}

fn twenty_five() -> f64 {
    25.0
}

fn ten_thousand() -> f64 {
    1e4
}

/// Returns a value on half a cosine between two values; `done` is 0 to 1.
fn half_cosine([from, to]: [f64; 2], done: f64) -> f64 {
    to + (from - to) / 2.0 * (1.0 + libm::cos(std::f64::consts::PI * done))
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
        match *self {
            Self::Constant { warmup_steps }
            | Self::Cosine { warmup_steps }
            | Self::Step { warmup_steps, .. }
            | Self::Polynomial { warmup_steps, .. } => warmup_steps,
            Self::OneCycle { .. } => 0,
        }
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
        let length = steps.saturating_sub(warmup_steps).max(1);
        let done = ((step - warmup_steps) as f64 / length as f64).min(1.0);
        match *self {
            Self::Constant { .. } => base,
            Self::Step {
                every_steps,
                factor,
                ..
            } => base * libm::pow(factor, (step / every_steps.max(1)) as f64),
            Self::Cosine { .. } => base * (0.5 * (1.0 + libm::cos(std::f64::consts::PI * done))),
            Self::Polynomial { power, .. } => base * libm::pow(1.0 - done, power),
            Self::OneCycle {
                rising_share,
                first_divisor,
                last_divisor,
            } => {
                let first = base / first_divisor;
                let last = first / last_divisor;
                // Below 0 if the rate rises in less than one step; it then falls from a point before the first step.
                let peak = rising_share * steps as f64 - 1.0;
                let end = (steps as f64 - 1.0).max(peak);
                let step = (step as f64).min(end);
                if step <= peak {
                    let done = if peak > 0.0 { step / peak } else { 0.0 };
                    half_cosine([first, base], done)
                } else {
                    half_cosine([base, last], (step - peak) / (end - peak))
                }
            }
        }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// A sentence that names the key and its range.
    pub fn check(&self) -> Result<(), String> {
        let Self::OneCycle {
            rising_share,
            first_divisor,
            last_divisor,
        } = *self
        else {
            return Ok(());
        };
        if !(0.0..=1.0).contains(&rising_share) {
            return Err(format!(
                "`rising_share` is {rising_share}, but must be 0 to 1"
            ));
        }
        for (key, divisor) in [
            ("first_divisor", first_divisor),
            ("last_divisor", last_divisor),
        ] {
            if !(divisor.is_finite() && divisor > 0.0) {
                return Err(format!("`{key}` is {divisor}, but must be above 0"));
            }
        }
        Ok(())
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

    /// The values of `torch.optim.lr_scheduler.OneCycleLR(max_lr=1, total_steps=10)`, and of one with `pct_start=0.5`,
    /// `div_factor=4` and `final_div_factor=10`.
    #[test]
    fn one_cycle_has_the_rates_of_pytorch() {
        let read = |text: &str| serde_json::from_str::<ScheduleConfig>(text).unwrap();
        let rates = |schedule: ScheduleConfig| -> Vec<f64> {
            (0..10).map(|step| schedule.rate(1.0, step, 10)).collect()
        };
        let plain = rates(read(r#"{"kind": "one_cycle"}"#));
        let expected = [
            0.04,
            0.52,
            1.0,
            0.950_484_632_013_473_7,
            0.811_745_653_949_763_1,
            0.611_262_021_936_289_3,
            0.388_741_978_063_710_75,
            0.188_258_346_050_236_97,
            0.049_519_367_986_526_286,
            4e-6,
        ];
        for (rate, expected) in plain.iter().zip(expected) {
            assert!((rate - expected).abs() < 1e-12, "{plain:?}");
        }
        let other = rates(read(
            r#"{"kind": "one_cycle", "rising_share": 0.5, "first_divisor": 4, "last_divisor": 10}"#,
        ));
        let expected = [
            0.25,
            0.359_834_957_055_044_76,
            0.625,
            0.890_165_042_944_955_2,
            1.0,
            0.906_895_784_757_786_9,
            0.663_145_784_757_786_8,
            0.361_854_215_242_213_2,
            0.118_104_215_242_213_2,
            0.025,
        ];
        for (rate, expected) in other.iter().zip(expected) {
            assert!((rate - expected).abs() < 1e-12, "{other:?}");
        }
        // Beyond the end.
        let cycle = read(r#"{"kind": "one_cycle"}"#);
        assert_eq!(cycle.rate(1.0, 99, 10), cycle.rate(1.0, 9, 10));
        assert!(cycle.check().is_ok());
        let wrong = read(r#"{"kind": "one_cycle", "rising_share": 1.5}"#);
        assert!(wrong.check().unwrap_err().contains("rising_share"));
        let wrong = read(r#"{"kind": "one_cycle", "last_divisor": 0}"#);
        assert!(wrong.check().unwrap_err().contains("last_divisor"));
    }

    /// The values of PyTorch's `OneCycleLR` with `pct_start=0.1` of 5 steps, 0.3 of 2 and of 1, and 0 of 3.
    #[test]
    fn one_cycle_falls_from_before_the_first_step_if_it_rises_for_less_than_one() {
        for (share, expected) in [
            (
                "0.1",
                &[0.969_846_431_007_712_6, 0.750_001, 0.413_178_258_462_890_2][..],
            ),
            ("0.3", &[0.811_745_653_949_763, 4e-6]),
            ("0.3", &[4e-6]),
            ("0.0", &[0.750_001, 0.250_003, 4e-6]),
        ] {
            let text = format!(r#"{{"kind": "one_cycle", "rising_share": {share}}}"#);
            let cycle: ScheduleConfig = serde_json::from_str(&text).unwrap();
            let steps = if share == "0.1" {
                5
            } else {
                expected.len() as u64
            };
            for (step, expected) in (0..).zip(expected) {
                let rate = cycle.rate(1.0, step, steps);
                assert!(
                    (rate - expected).abs() < 1e-12,
                    "{share}, step {step}: {rate}"
                );
            }
        }
    }

    #[test]
    fn a_polynomial_falls_to_zero() {
        let line = ScheduleConfig::Polynomial {
            power: 1.0,
            warmup_steps: 2,
        };
        let rates: Vec<f64> = (0..7).map(|step| line.rate(1.0, step, 6)).collect();
        assert_eq!(rates, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]);
        let square = ScheduleConfig::Polynomial {
            power: 2.0,
            warmup_steps: 0,
        };
        assert_eq!(square.rate(1.0, 3, 6), 0.25);
    }

    #[test]
    fn runs_shorter_than_the_warmup_are_defined() {
        let cosine = ScheduleConfig::Cosine { warmup_steps: 10 };
        assert_eq!(cosine.rate(1.0, 3, 4), 0.4);
        assert_eq!(cosine.rate(1.0, 10, 4), 1.0);
        assert_eq!(cosine.rate(1.0, 11, 4), 0.0);
    }
}
