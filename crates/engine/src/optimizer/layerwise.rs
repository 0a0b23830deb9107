//! Update rules whose rate is scaled by a ratio of norms over a tensor.

use ronde_core::norm::BLOCK;
use ronde_kernels::{Vectorised, sum_of_squares, vectorised};

use super::elementwise::AdamRule;

/// Layer-wise adaptive rate scaling.
pub(super) struct Lars {
    /// The learning rate times the trust ratio. It is inside the momentum, as in the paper.
    pub(super) rate: f32,
    pub(super) momentum: f32,
    pub(super) weight_decay: f32,
}

impl Lars {
    /// Updates a slice once.
    pub(super) fn update(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let [velocity] = states else {
            unreachable!("the number of states was checked");
        };
        vectorised(LarsUpdate {
            rule: self,
            parameters,
            gradients,
            velocity,
        });
    }
}

/// SGD with the rate inside the momentum.
struct LarsUpdate<'a> {
    rule: &'a Lars,
    parameters: &'a mut [f32],
    gradients: &'a [f32],
    velocity: &'a mut [f32],
}

impl Vectorised for LarsUpdate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Lars {
            rate,
            momentum,
            weight_decay,
        } = *self.rule;
        let elements = self.parameters.iter_mut().zip(self.gradients);
        for ((parameter, gradient), velocity) in elements.zip(self.velocity) {
            let push = rate * (gradient + weight_decay * *parameter);
            *velocity = momentum * *velocity + push;
            *parameter -= *velocity;
        }
    }
}

/// Layer-wise adaptive moments.
pub(super) struct Lamb {
    /// Set to a learning rate of 1, so that its own rate contains only the bias correction of the mean.
    pub(super) moments: AdamRule,
    /// The learning rate times the trust ratio.
    pub(super) rate: f32,
    pub(super) weight_decay: f32,
}

impl Lamb {
    /// Returns the sum of squares of the update of one block at a rate of 1. The states do not change.
    pub(super) fn block_squares(
        &self,
        parameters: &[f32],
        gradients: &[f32],
        states: &[&[f32]],
    ) -> f64 {
        let [mean, square] = states else {
            unreachable!("the number of states was checked");
        };
        let mut directions = [0.0; BLOCK];
        let directions = &mut directions[..parameters.len()];
        vectorised(LambDirections {
            rule: self,
            parameters,
            gradients,
            states: [mean, square],
            directions: &mut *directions,
        });
        sum_of_squares(directions)
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
        vectorised(LambUpdate {
            rule: self,
            parameters,
            gradients,
            states: [mean, square],
        });
    }

    #[inline(always)]
    fn direction(&self, parameter: f32, mean: f32, square: f32) -> f32 {
        self.moments.direction(mean, square) + self.weight_decay * parameter
    }
}

/// Computes the amounts to subtract from the parameters at a rate of 1.
struct LambDirections<'a> {
    rule: &'a Lamb,
    parameters: &'a [f32],
    gradients: &'a [f32],
    states: [&'a [f32]; 2],
    directions: &'a mut [f32],
}

impl Vectorised for LambDirections<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let [mean, square] = self.states;
        let states = mean.iter().zip(square);
        let elements = self.parameters.iter().zip(self.gradients).zip(states);
        for (((parameter, gradient), (mean, square)), to) in elements.zip(self.directions) {
            let (mut mean, mut square) = (*mean, *square);
            self.rule
                .moments
                .remember_one(*gradient, &mut mean, &mut square);
            *to = self.rule.direction(*parameter, mean, square);
        }
    }
}

/// Updates the means with a gradient, and the parameters with the means.
struct LambUpdate<'a> {
    rule: &'a Lamb,
    parameters: &'a mut [f32],
    gradients: &'a [f32],
    states: [&'a mut [f32]; 2],
}

impl Vectorised for LambUpdate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let [mean, square] = self.states;
        let states = mean.iter_mut().zip(square);
        let elements = self.parameters.iter_mut().zip(self.gradients).zip(states);
        for ((parameter, gradient), (mean, square)) in elements {
            self.rule.moments.remember_one(*gradient, mean, square);
            *parameter -= self.rule.rate * self.rule.direction(*parameter, *mean, *square);
        }
    }
}
