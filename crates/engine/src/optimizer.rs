//! [`OptimizerConfig`]: update rules on flat slices, element by element.
//!
//! Every element is updated from its own values alone, so any slice of a sharded state gets the
//! bits that the whole would. Defaults and order of operations are PyTorch's; the arithmetic is
//! f32, the few per-step factors are f64.

use serde::{Deserialize, Serialize};

/// An update rule and its constants.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Stochastic gradient descent.
    Sgd {
        /// Share of the last update that is kept.
        #[serde(default)]
        momentum: f64,
        /// Look ahead along the momentum. Source: Sutskever et al., ICML 2013, section 2.
        #[serde(default)]
        nesterov: bool,
        /// Added to the gradient, times the parameter.
        #[serde(default)]
        weight_decay: f64,
    },
    /// Source: Kingma and Ba, "Adam", ICLR 2015, algorithm 1; weight decay is added to the gradient.
    Adam {
        /// Decay of the mean of gradients.
        #[serde(default = "beta1")]
        beta1: f64,
        /// Decay of the mean of squared gradients.
        #[serde(default = "beta2")]
        beta2: f64,
        /// Added to the denominator.
        #[serde(default = "epsilon")]
        epsilon: f64,
        /// Added to the gradient, times the parameter.
        #[serde(default)]
        weight_decay: f64,
    },
    /// Source: Loshchilov and Hutter, "Decoupled weight decay", ICLR 2019, algorithm 2.
    #[serde(rename = "adamw")]
    AdamW {
        /// Decay of the mean of gradients.
        #[serde(default = "beta1")]
        beta1: f64,
        /// Decay of the mean of squared gradients.
        #[serde(default = "beta2")]
        beta2: f64,
        /// Added to the denominator.
        #[serde(default = "epsilon")]
        epsilon: f64,
        /// Share of a parameter that is taken away each step, times the learning rate.
        #[serde(default = "decoupled_weight_decay")]
        weight_decay: f64,
    },
}

fn beta1() -> f64 {
    0.9
}

fn beta2() -> f64 {
    0.999
}

fn epsilon() -> f64 {
    1e-8
}

fn decoupled_weight_decay() -> f64 {
    1e-2
}

impl OptimizerConfig {
    /// The names of the states that each parameter has, in the order that [`OptimizerConfig::step`]
    /// takes them; all start at zero.
    #[must_use]
    pub fn state_names(&self) -> &'static [&'static str] {
        match self {
            Self::Sgd { momentum: 0.0, .. } => &[],
            Self::Sgd { .. } => &["momentum"],
            Self::Adam { .. } | Self::AdamW { .. } => &["mean", "mean_square"],
        }
    }

    /// Says what is wrong with the constants, if anything.
    ///
    /// # Errors
    /// The first problem, naming the constant.
    pub fn check(&self) -> Result<(), String> {
        let share = |name: &str, value: f64| {
            let fits = (0.0..1.0).contains(&value);
            let problem = format!("{name} = {value}; expected at least 0 and below 1");
            if fits { Ok(()) } else { Err(problem) }
        };
        let not_negative = |name: &str, value: f64| {
            let fits = value.is_finite() && value >= 0.0;
            let problem = format!("{name} = {value}; expected at least 0");
            if fits { Ok(()) } else { Err(problem) }
        };
        match *self {
            Self::Sgd {
                momentum,
                nesterov,
                weight_decay,
            } => {
                share("momentum", momentum)?;
                not_negative("weight_decay", weight_decay)?;
                if nesterov && momentum == 0.0 {
                    return Err("nesterov needs momentum above 0".to_owned());
                }
                Ok(())
            }
            Self::Adam {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            }
            | Self::AdamW {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            } => {
                share("beta1", beta1)?;
                share("beta2", beta2)?;
                not_negative("epsilon", epsilon)?;
                not_negative("weight_decay", weight_decay)
            }
        }
    }

    /// One update of a slice: `parameters` and `states` change, `gradients` are means over the
    /// global batch. `number` counts updates from 1. Allocates nothing.
    ///
    /// # Panics
    /// When lengths differ or there are not as many states as [`OptimizerConfig::state_names`].
    pub fn step(
        &self,
        number: u64,
        learning_rate: f64,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        assert_eq!(parameters.len(), gradients.len(), "gradients");
        assert_eq!(states.len(), self.state_names().len(), "count of states");
        for state in states.iter() {
            assert_eq!(parameters.len(), state.len(), "state");
        }
        match *self {
            Self::Sgd {
                momentum,
                nesterov,
                weight_decay,
            } => {
                let rule = Descent {
                    learning_rate: learning_rate as f32,
                    momentum: momentum as f32,
                    weight_decay: weight_decay as f32,
                    nesterov,
                };
                match states {
                    [velocity] => rule.with_momentum(parameters, gradients, velocity),
                    _ => rule.plain(parameters, gradients),
                }
            }
            Self::Adam {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            } => {
                let mut rule = Moments::new(number, learning_rate, [beta1, beta2], epsilon);
                rule.added_decay = weight_decay as f32;
                rule.update(parameters, gradients, states);
            }
            Self::AdamW {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            } => {
                let mut rule = Moments::new(number, learning_rate, [beta1, beta2], epsilon);
                rule.kept = (1.0 - learning_rate * weight_decay) as f32;
                rule.update(parameters, gradients, states);
            }
        }
    }
}

struct Descent {
    learning_rate: f32,
    momentum: f32,
    weight_decay: f32,
    nesterov: bool,
}

impl Descent {
    fn plain(&self, parameters: &mut [f32], gradients: &[f32]) {
        for (parameter, gradient) in parameters.iter_mut().zip(gradients) {
            *parameter -= self.learning_rate * (gradient + self.weight_decay * *parameter);
        }
    }

    fn with_momentum(&self, parameters: &mut [f32], gradients: &[f32], velocity: &mut [f32]) {
        let elements = parameters.iter_mut().zip(gradients).zip(velocity);
        for ((parameter, gradient), velocity) in elements {
            let gradient = gradient + self.weight_decay * *parameter;
            *velocity = self.momentum * *velocity + gradient;
            let direction = if self.nesterov {
                gradient + self.momentum * *velocity
            } else {
                *velocity
            };
            *parameter -= self.learning_rate * direction;
        }
    }
}

struct Moments {
    beta1: f32,
    beta2: f32,
    one_minus_beta1: f32,
    one_minus_beta2: f32,
    epsilon: f32,
    /// Learning rate over the bias correction of the mean.
    rate: f32,
    /// Square root of the bias correction of the mean square.
    correction: f32,
    /// Weight decay in the gradient.
    added_decay: f32,
    /// Factor of the parameter before the update.
    kept: f32,
}

impl Moments {
    fn new(number: u64, learning_rate: f64, betas: [f64; 2], epsilon: f64) -> Self {
        let correction = betas.map(|beta| 1.0 - libm::pow(beta, number as f64));
        Self {
            beta1: betas[0] as f32,
            beta2: betas[1] as f32,
            one_minus_beta1: (1.0 - betas[0]) as f32,
            one_minus_beta2: (1.0 - betas[1]) as f32,
            epsilon: epsilon as f32,
            rate: (learning_rate / correction[0]) as f32,
            correction: libm::sqrt(correction[1]) as f32,
            added_decay: 0.0,
            kept: 1.0,
        }
    }

    fn update(&self, parameters: &mut [f32], gradients: &[f32], states: &mut [&mut [f32]]) {
        let [mean, square] = states else {
            unreachable!("the count of states was checked");
        };
        let states = mean.iter_mut().zip(square.iter_mut());
        let elements = parameters.iter_mut().zip(gradients).zip(states);
        for ((parameter, gradient), (mean, square)) in elements {
            let gradient = gradient + self.added_decay * *parameter;
            *mean = self.beta1 * *mean + self.one_minus_beta1 * gradient;
            *square = self.beta2 * *square + self.one_minus_beta2 * (gradient * gradient);
            let denominator = square.sqrt() / self.correction + self.epsilon;
            *parameter = self.kept * *parameter - self.rate * (*mean / denominator);
        }
    }
}

#[cfg(test)]
mod tests;
