//! Update rules that compute every element from its own values alone.

use ronde_kernels::{Vectorised, vectorised};

/// Stochastic gradient descent.
pub(super) struct SgdRule {
    pub(super) learning_rate: f32,
    pub(super) momentum: f32,
    pub(super) weight_decay: f32,
    pub(super) nesterov: bool,
}

impl SgdRule {
    /// Updates a slice once; without a state it has no momentum.
    pub(super) fn update(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        vectorised(SgdUpdate {
            rule: self,
            parameters,
            gradients,
            velocity: states.first_mut().map(|state| &mut **state),
        });
    }
}

struct SgdUpdate<'a> {
    rule: &'a SgdRule,
    parameters: &'a mut [f32],
    gradients: &'a [f32],
    velocity: Option<&'a mut [f32]>,
}

impl Vectorised for SgdUpdate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let SgdRule {
            learning_rate,
            momentum,
            weight_decay,
            nesterov,
        } = *self.rule;
        let elements = self.parameters.iter_mut().zip(self.gradients);
        let Some(velocity) = self.velocity else {
            for (parameter, gradient) in elements {
                *parameter -= learning_rate * (gradient + weight_decay * *parameter);
            }
            return;
        };
        for ((parameter, gradient), velocity) in elements.zip(velocity) {
            let gradient = gradient + weight_decay * *parameter;
            *velocity = momentum * *velocity + gradient;
            let direction = if nesterov {
                gradient + momentum * *velocity
            } else {
                *velocity
            };
            *parameter -= learning_rate * direction;
        }
    }
}

/// Adam and its variants.
pub(super) struct AdamRule {
    beta1: f32,
    beta2: f32,
    one_minus_beta1: f32,
    one_minus_beta2: f32,
    epsilon: f32,
    /// The learning rate divided by the bias correction of the mean.
    rate: f32,
    /// The square root of the bias correction of the mean square.
    correction: f32,
    /// The weight decay that is added to the gradient.
    added_decay: f32,
    /// The factor applied to the parameter before the update.
    kept: f32,
}

impl AdamRule {
    /// Computes the factors of update `number`, without weight decay.
    pub(super) fn new(number: u64, learning_rate: f64, betas: [f64; 2], epsilon: f64) -> Self {
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

    /// Adds weight decay to the gradient.
    pub(super) fn adding(mut self, weight_decay: f64) -> Self {
        self.added_decay = weight_decay as f32;
        self
    }

    /// Multiplies parameters by this factor before the update.
    pub(super) fn keeping(mut self, share: f64) -> Self {
        self.kept = share as f32;
        self
    }

    /// Updates a slice once.
    pub(super) fn update(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let [mean, square] = states else {
            unreachable!("the number of states was checked");
        };
        vectorised(AdamUpdate {
            rule: self,
            parameters,
            gradients,
            states: [mean, square],
        });
    }

    /// Updates the means by a gradient, without weight decay.
    #[inline(always)]
    pub(super) fn remember_one(&self, gradient: f32, mean: &mut f32, square: &mut f32) {
        *mean = self.beta1 * *mean + self.one_minus_beta1 * gradient;
        *square = self.beta2 * *square + self.one_minus_beta2 * (gradient * gradient);
    }

    /// Returns the amount to subtract from a parameter, given the means.
    #[inline(always)]
    pub(super) fn direction(&self, mean: f32, square: f32) -> f32 {
        let denominator = square.sqrt() / self.correction + self.epsilon;
        self.rate * (mean / denominator)
    }
}

struct AdamUpdate<'a> {
    rule: &'a AdamRule,
    parameters: &'a mut [f32],
    gradients: &'a [f32],
    states: [&'a mut [f32]; 2],
}

impl Vectorised for AdamUpdate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let rule = self.rule;
        let [mean, square] = self.states;
        let states = mean.iter_mut().zip(square.iter_mut());
        let elements = self.parameters.iter_mut().zip(self.gradients).zip(states);
        for ((parameter, gradient), (mean, square)) in elements {
            let gradient = gradient + rule.added_decay * *parameter;
            rule.remember_one(gradient, mean, square);
            *parameter = rule.kept * *parameter - rule.direction(*mean, *square);
        }
    }
}
