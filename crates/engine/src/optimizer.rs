//! [`OptimizerConfig`]: update rules on flat slices, element by element.
//!
//! Every element is updated from its own values alone, so a slice of a sharded state gets the same bits as in the
//! whole. LARS and LAMB also scale the update of a tensor by a ratio of norms over all of it (its trust ratio): the sums
//! of squares of its blocks are added first, whichever rank holds them, and the ratio is then an argument. Defaults and
//! the order of operations are PyTorch's; the arithmetic is f32, norms and the few per-step factors are f64.

mod elementwise;
mod group;
mod layerwise;
mod trust;

use ronde_core::norm::BLOCK;
use ronde_kernels::sum_of_squares;
use serde::{Deserialize, Serialize};

use self::elementwise::{AdamRule, SgdRule};
use self::layerwise::{Lamb, Lars};

pub use group::{ParameterGroup, ParameterRule, matches_pattern};
pub use trust::{TrustSquares, TrustTree};

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

    /// Returns whether the update of a tensor is scaled by a ratio of norms over all of it.
    #[must_use]
    pub fn has_trust_ratio(&self) -> bool {
        matches!(self, Self::Lars { .. } | Self::Lamb { .. })
    }

    /// Returns the sums of squares of one block of at most [`BLOCK`] elements from which the trust ratio of its tensor
    /// follows; zeros for a rule without one. Arguments as for [`OptimizerConfig::step`], which they precede.
    ///
    /// # Panics
    /// As [`OptimizerConfig::step`], and for more than [`BLOCK`] elements.
    #[must_use]
    pub fn trust_squares(
        &self,
        number: u64,
        parameters: &[f32],
        gradients: &[f32],
        states: &[&[f32]],
    ) -> TrustSquares {
        let update = match *self {
            Self::Lars { .. } => sum_of_squares(gradients),
            Self::Lamb { .. } => self
                .lamb(number, 0.0)
                .block_squares(parameters, gradients, states),
            _ => return TrustSquares::default(),
        };
        TrustSquares {
            weights: sum_of_squares(parameters),
            update,
        }
    }

    /// Returns the factor by which the update of a tensor is scaled, from the sums of squares over all its blocks; 1 for a
    /// rule without one.
    #[must_use]
    pub fn trust_ratio(&self, squares: TrustSquares) -> f64 {
        let (weights, update) = (squares.weights.sqrt(), squares.update.sqrt());
        let is_defined = weights > 0.0 && update > 0.0;
        match *self {
            Self::Lars {
                trust,
                weight_decay,
                epsilon,
                ..
            } if is_defined => trust * weights / (update + weight_decay * weights + epsilon),
            Self::Lamb { .. } if is_defined => weights / update,
            _ => 1.0,
        }
    }

    /// Returns the factors of an update by LAMB; those of other rules have no use for them.
    fn lamb(&self, number: u64, rate: f64) -> Lamb {
        let Self::Lamb {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } = *self
        else {
            unreachable!("called for LAMB only");
        };
        Lamb {
            moments: AdamRule::new(number, 1.0, [beta1, beta2], epsilon),
            rate: rate as f32,
            weight_decay: weight_decay as f32,
        }
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

    /// Updates a whole tensor once, as [`OptimizerConfig::step`] with its trust ratio. Does not allocate beyond two numbers
    /// per block.
    ///
    /// # Panics
    /// As [`OptimizerConfig::step`].
    pub fn step_tensor(
        &self,
        number: u64,
        learning_rate: f64,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let mut ratio = 1.0;
        if self.has_trust_ratio() {
            let mut trees = TrustTree::new(parameters.len());
            for (block, parameters) in parameters.chunks(BLOCK).enumerate() {
                let range = block * BLOCK..block * BLOCK + parameters.len();
                let states: Vec<&[f32]> =
                    states.iter().map(|state| &state[range.clone()]).collect();
                let squares = self.trust_squares(number, parameters, &gradients[range], &states);
                trees.add(block as u32, squares);
            }
            ratio = self.trust_ratio(trees.total().unwrap_or_default());
        }
        self.step(number, learning_rate, ratio, parameters, gradients, states);
    }

    /// Updates a slice once: changes `parameters` and `states`; `gradients` are means over the global batch. `number`
    /// counts updates from 1. `trust_ratio` is that of the slice's tensor; rules without one ignore it. Does not allocate.
    ///
    /// # Panics
    /// When lengths differ or the number of states is not that of [`OptimizerConfig::state_names`].
    pub fn step(
        &self,
        number: u64,
        learning_rate: f64,
        trust_ratio: f64,
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
                ..
            } => Lars {
                rate: (learning_rate * trust_ratio) as f32,
                momentum: momentum as f32,
                weight_decay: weight_decay as f32,
            }
            .update(parameters, gradients, states),
            Self::Lamb { .. } => self
                .lamb(number, learning_rate * trust_ratio)
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
