//! Update rules that scale the update of a tensor by norms over the whole of it.

use ronde_core::norm::{self, block_sums};
use ronde_kernels::{GradientScale, Vectorised, vectorised};

use super::elementwise::AdamRule;

/// The number of updates computed at a time, while the cache holds them: whole blocks of the norm.
const PART: usize = 64 * norm::BLOCK;

/// Adds more values to the norm's running sum of squares, with the bits of [`block_sums`].
fn add_squares(values: &[f32], sum: f64) -> f64 {
    let found = GradientScale::new(1, 1.0).add_squares(values, sum);
    // Values that are not finite take the slow path that defines the result.
    found.unwrap_or_else(|| block_sums(values).fold(sum, |sum, block| sum + block))
}

fn norm(values: &[f32]) -> f64 {
    add_squares(values, 0.0).sqrt()
}

/// Layer-wise adaptive rate scaling.
pub(super) struct Lars {
    pub(super) learning_rate: f64,
    pub(super) momentum: f32,
    pub(super) weight_decay: f64,
    pub(super) trust: f64,
    pub(super) epsilon: f64,
}

impl Lars {
    /// Updates a tensor once. The rate is inside the momentum, as in the paper.
    pub(super) fn update(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let [velocity] = states else {
            unreachable!("the number of states was checked");
        };
        let (weight, gradient) = (norm(parameters), norm(gradients));
        let ratio = if weight > 0.0 && gradient > 0.0 {
            self.trust * weight / (gradient + self.weight_decay * weight + self.epsilon)
        } else {
            1.0
        };
        vectorised(LarsUpdate {
            rate: (self.learning_rate * ratio) as f32,
            momentum: self.momentum,
            decay: self.weight_decay as f32,
            parameters,
            gradients,
            velocity,
        });
    }
}

/// SGD with the rate inside the momentum.
struct LarsUpdate<'a> {
    rate: f32,
    momentum: f32,
    decay: f32,
    parameters: &'a mut [f32],
    gradients: &'a [f32],
    velocity: &'a mut [f32],
}

impl Vectorised for LarsUpdate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let elements = self.parameters.iter_mut().zip(self.gradients);
        for ((parameter, gradient), velocity) in elements.zip(self.velocity) {
            let push = self.rate * (gradient + self.decay * *parameter);
            *velocity = self.momentum * *velocity + push;
            *parameter -= *velocity;
        }
    }
}

/// Layer-wise adaptive moments.
pub(super) struct Lamb {
    /// Set to a learning rate of 1, so that `rate` contains only the bias correction of the mean.
    pub(super) moments: AdamRule,
    pub(super) learning_rate: f64,
    pub(super) weight_decay: f32,
}

impl Lamb {
    /// Updates a tensor once, in two passes: the second one uses the ratio of norms that the first
    /// computed.
    pub(super) fn update(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let [mean, square] = states else {
            unreachable!("the number of states was checked");
        };
        let weight = norm(parameters);
        let mut part = vec![0.0; PART.min(parameters.len())];
        let mut sum = 0.0;
        for start in (0..parameters.len()).step_by(PART) {
            let here = start..parameters.len().min(start + PART);
            let directions = &mut part[..here.len()];
            vectorised(LambDirections {
                rule: self,
                parameters: &parameters[here.clone()],
                gradients: &gradients[here.clone()],
                states: [&mut mean[here.clone()], &mut square[here]],
                directions,
            });
            sum = add_squares(directions, sum);
        }
        let update = sum.sqrt();
        let ratio = if weight > 0.0 && update > 0.0 {
            weight / update
        } else {
            1.0
        };
        vectorised(LambUpdate {
            rule: self,
            rate: (self.learning_rate * ratio) as f32,
            parameters,
            states: [mean, square],
        });
    }

    #[inline(always)]
    fn direction(&self, parameter: f32, mean: f32, square: f32) -> f32 {
        self.moments.direction(mean, square) + self.weight_decay * parameter
    }
}

/// Updates the means with a gradient, and computes the amounts to subtract from the parameters.
struct LambDirections<'a> {
    rule: &'a Lamb,
    parameters: &'a [f32],
    gradients: &'a [f32],
    states: [&'a mut [f32]; 2],
    directions: &'a mut [f32],
}

impl Vectorised for LambDirections<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let [mean, square] = self.states;
        let states = mean.iter_mut().zip(square);
        let elements = self.parameters.iter().zip(self.gradients).zip(states);
        for (((parameter, gradient), (mean, square)), to) in elements.zip(self.directions) {
            self.rule.moments.remember_one(*gradient, mean, square);
            *to = self.rule.direction(*parameter, *mean, *square);
        }
    }
}

/// The update of the parameters, with the scaled rate.
struct LambUpdate<'a> {
    rule: &'a Lamb,
    rate: f32,
    parameters: &'a mut [f32],
    states: [&'a [f32]; 2],
}

impl Vectorised for LambUpdate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let [mean, square] = self.states;
        let states = mean.iter().zip(square);
        for (parameter, (mean, square)) in self.parameters.iter_mut().zip(states) {
            *parameter -= self.rate * self.rule.direction(*parameter, *mean, *square);
        }
    }
}
