//! [`ScheduleConfig`]: the learning rate of each step.

use serde::{Deserialize, Serialize};

/// How the learning rate changes over a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScheduleConfig {
    /// The base rate, after a linear rise.
    Constant {
        /// Steps of the rise; the first step has `base / warmup_steps`.
        #[serde(default)]
        warmup_steps: u64,
    },
    /// Half a cosine from the base rate to zero, after a linear rise. Source: Loshchilov and
    /// Hutter, "SGDR", ICLR 2017, equation 5, without restarts.
    Cosine {
        /// Steps of the rise; the first step has `base / warmup_steps`.
        #[serde(default)]
        warmup_steps: u64,
    },
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self::Constant { warmup_steps: 0 }
    }
}

impl ScheduleConfig {
    /// The rate of `step`, counted from 0, in a run of `steps`; past the end that of the end.
    #[must_use]
    pub fn rate(&self, base: f64, step: u64, steps: u64) -> f64 {
        let (Self::Constant { warmup_steps } | Self::Cosine { warmup_steps }) = *self;
        if step < warmup_steps {
            return base * ((step + 1) as f64 / warmup_steps as f64);
        }
        match self {
            Self::Constant { .. } => base,
            Self::Cosine { .. } => {
                let length = steps.saturating_sub(warmup_steps).max(1);
                let done = ((step - warmup_steps) as f64 / length as f64).min(1.0);
                base * (0.5 * (1.0 + libm::cos(std::f64::consts::PI * done)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn runs_shorter_than_the_rise_are_defined() {
        let cosine = ScheduleConfig::Cosine { warmup_steps: 10 };
        assert_eq!(cosine.rate(1.0, 3, 4), 0.4);
        assert_eq!(cosine.rate(1.0, 10, 4), 1.0);
        assert_eq!(cosine.rate(1.0, 11, 4), 0.0);
    }
}
