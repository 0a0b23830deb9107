//! [`OptimizerConfig`]: update rules on flat slices, element by element.
//!
//! With SGD and Adam every element is updated from its own values alone, so a slice of a sharded
//! state gets the same bits as in the whole. LARS and LAMB scale the update of a tensor by norms
//! over all of it and need whole tensors. Defaults and the order of operations are PyTorch's; the
//! arithmetic is f32, norms and the few per-step factors are f64.

mod elementwise;
mod group;
mod layerwise;

use serde::{Deserialize, Serialize};

use self::elementwise::{AdamRule, SgdRule};
use self::layerwise::{Lamb, Lars};

pub use group::{ParameterGroup, ParameterRule, matches_pattern};

/// An update rule and its constants.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Stochastic gradient descent.
    Sgd {
        /// The share of the previous update that is kept.
        #[serde(default)]
        momentum: f64,
        /// Nesterov momentum. Source: Sutskever et al., ICML 2013, section 2.
        #[serde(default)]
        nesterov: bool,
        /// Added to the gradient, times the parameter.
        #[serde(default)]
        weight_decay: f64,
    },
    /// Source: Kingma and Ba, "Adam", ICLR 2015, algorithm 1; weight decay is added to the gradient.
    Adam {
        /// The decay rate of the mean of gradients.
        #[serde(default = "beta1")]
        beta1: f64,
        /// The decay rate of the mean of squared gradients.
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
        /// The decay rate of the mean of gradients.
        #[serde(default = "beta1")]
        beta1: f64,
        /// The decay rate of the mean of squared gradients.
        #[serde(default = "beta2")]
        beta2: f64,
        /// Added to the denominator.
        #[serde(default = "epsilon")]
        epsilon: f64,
        /// The share of a parameter that is subtracted in each step, times the learning rate.
        #[serde(default = "decoupled_weight_decay")]
        weight_decay: f64,
    },
    /// SGD with momentum whose rate is scaled, for each tensor, by the ratio of the norms of the
    /// weights and the gradient. Source: You, Gitman, Ginsburg, arXiv:1708.03888, algorithm 1.
    Lars {
        /// The share of the previous update that is kept.
        #[serde(default = "beta1")]
        momentum: f64,
        /// Added to the gradient, times the parameter.
        #[serde(default)]
        weight_decay: f64,
        /// The share of a tensor's norm that one update may change at a learning rate of 1.
        #[serde(default = "trust")]
        trust: f64,
        /// Added to the denominator of the ratio of norms.
        #[serde(default = "epsilon")]
        epsilon: f64,
    },
    /// AdamW whose rate is scaled, for each tensor, by the ratio of the norms of the weights and
    /// the update. Source: You et al., ICLR 2020, algorithm 2, with the identity for its phi.
    Lamb {
        /// The decay rate of the mean of gradients.
        #[serde(default = "beta1")]
        beta1: f64,
        /// The decay rate of the mean of squared gradients.
        #[serde(default = "beta2")]
        beta2: f64,
        /// Added to the denominator.
        #[serde(default = "lamb_epsilon")]
        epsilon: f64,
        /// The share of a parameter that is added to its update.
        #[serde(default = "decoupled_weight_decay")]
        weight_decay: f64,
    },
}

/// The tensors to which weight decay and the norm ratios of LARS and LAMB apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WeightDecayOn {
    /// All parameters, as in PyTorch with one parameter group.
    #[default]
    All,
    /// Tensors of two dimensions or more: not biases, not the scales and shifts of normalisations.
    Matrices,
}

impl WeightDecayOn {
    /// Returns whether a parameter of this shape belongs to the decayed group.
    #[must_use]
    pub fn includes(self, shape: &[usize]) -> bool {
        self == Self::All || shape.len() >= 2
    }
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

fn trust() -> f64 {
    1e-3
}

fn lamb_epsilon() -> f64 {
    1e-6
}

impl Default for OptimizerConfig {
    /// AdamW with the usual constants.
    fn default() -> Self {
        Self::AdamW {
            beta1: beta1(),
            beta2: beta2(),
            epsilon: epsilon(),
            weight_decay: decoupled_weight_decay(),
        }
    }
}

impl OptimizerConfig {
    /// Returns the names of the states of each parameter, in the order in which
    /// [`OptimizerConfig::step`] takes them; all are initially zero.
    #[must_use]
    pub fn state_names(&self) -> &'static [&'static str] {
        match self {
            Self::Sgd { momentum: 0.0, .. } => &[],
            Self::Sgd { .. } | Self::Lars { .. } => &["momentum"],
            Self::Adam { .. } | Self::AdamW { .. } | Self::Lamb { .. } => &["mean", "mean_square"],
        }
    }

    /// Returns whether [`OptimizerConfig::step`] needs whole tensors instead of slices, because the
    /// update depends on the norm of the tensor.
    #[must_use]
    pub fn needs_whole_tensors(&self) -> bool {
        matches!(self, Self::Lars { .. } | Self::Lamb { .. })
    }

    /// Returns the rule with another weight decay.
    #[must_use]
    pub fn with_decay(mut self, decay: f64) -> Self {
        let (Self::Sgd { weight_decay, .. }
        | Self::Adam { weight_decay, .. }
        | Self::AdamW { weight_decay, .. }
        | Self::Lars { weight_decay, .. }
        | Self::Lamb { weight_decay, .. }) = &mut self;
        *weight_decay = decay;
        self
    }

    /// Returns the rule for parameters that are neither decayed nor scaled by their norm: LARS
    /// becomes SGD with momentum, LAMB becomes Adam, and the remaining rules lose their weight
    /// decay. The states are the same.
    #[must_use]
    pub fn without_decay(&self) -> Self {
        match *self {
            Self::Sgd {
                momentum, nesterov, ..
            } => Self::Sgd {
                momentum,
                nesterov,
                weight_decay: 0.0,
            },
            Self::Lars { momentum, .. } => Self::Sgd {
                momentum,
                nesterov: false,
                weight_decay: 0.0,
            },
            Self::Adam {
                beta1,
                beta2,
                epsilon,
                ..
            }
            | Self::AdamW {
                beta1,
                beta2,
                epsilon,
                ..
            }
            | Self::Lamb {
                beta1,
                beta2,
                epsilon,
                ..
            } => Self::Adam {
                beta1,
                beta2,
                epsilon,
                weight_decay: 0.0,
            },
        }
    }

    /// Checks the constants.
    ///
    /// # Errors
    /// The first invalid constant, by name.
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
            }
            | Self::Lamb {
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
            Self::Lars {
                momentum,
                weight_decay,
                trust,
                epsilon,
            } => {
                share("momentum", momentum)?;
                if momentum == 0.0 {
                    return Err("lars needs momentum above 0".to_owned());
                }
                not_negative("weight_decay", weight_decay)?;
                not_negative("trust", trust)?;
                not_negative("epsilon", epsilon)
            }
        }
    }

    /// Updates a slice once, or a whole tensor where [`OptimizerConfig::needs_whole_tensors`]:
    /// changes `parameters` and `states`; `gradients` are means over the global batch. `number`
    /// counts updates from 1. Does not allocate.
    ///
    /// # Panics
    /// When lengths differ or the number of states is not that of [`OptimizerConfig::state_names`].
    pub fn step(
        &self,
        number: u64,
        learning_rate: f64,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        self.check_lengths(parameters.len(), gradients.len(), states);
        let moments =
            |beta1, beta2, epsilon| AdamRule::new(number, learning_rate, [beta1, beta2], epsilon);
        match *self {
            Self::Sgd {
                momentum,
                nesterov,
                weight_decay,
            } => SgdRule {
                learning_rate: learning_rate as f32,
                momentum: momentum as f32,
                weight_decay: weight_decay as f32,
                nesterov,
            }
            .update(parameters, gradients, states),
            Self::Adam {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            } => moments(beta1, beta2, epsilon)
                .adding(weight_decay)
                .update(parameters, gradients, states),
            Self::AdamW {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            } => moments(beta1, beta2, epsilon)
                .keeping(1.0 - learning_rate * weight_decay)
                .update(parameters, gradients, states),
            Self::Lars {
                momentum,
                weight_decay,
                trust,
                epsilon,
            } => Lars {
                learning_rate,
                momentum: momentum as f32,
                weight_decay,
                trust,
                epsilon,
            }
            .update(parameters, gradients, states),
            Self::Lamb {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            } => Lamb {
                moments: AdamRule::new(number, 1.0, [beta1, beta2], epsilon),
                learning_rate,
                weight_decay: weight_decay as f32,
            }
            .update(parameters, gradients, states),
        }
    }

    fn check_lengths(&self, parameters: usize, gradients: usize, states: &[&mut [f32]]) {
        assert_eq!(parameters, gradients, "gradients");
        assert_eq!(states.len(), self.state_names().len(), "number of states");
        for state in states {
            assert_eq!(parameters, state.len(), "state");
        }
    }
}

#[cfg(test)]
mod tests;
