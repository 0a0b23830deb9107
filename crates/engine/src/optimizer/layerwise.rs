//! Update rules that scale the update of a tensor by norms over the whole of it.

use ronde_core::norm::{block_sums, norm};

use super::elementwise::Moments;

/// Layer-wise adaptive rate scaling.
pub(super) struct Lars {
    pub(super) learning_rate: f64,
    pub(super) momentum: f32,
    pub(super) weight_decay: f64,
    pub(super) trust: f64,
    pub(super) epsilon: f64,
}

impl Lars {
    /// One update of a tensor. The rate is inside the momentum, as in the paper.
    pub(super) fn update(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let [velocity] = states else {
            unreachable!("the count of states was checked");
        };
        let (weight, gradient) = (norm(block_sums(parameters)), norm(block_sums(gradients)));
        let ratio = if weight > 0.0 && gradient > 0.0 {
            self.trust * weight / (gradient + self.weight_decay * weight + self.epsilon)
        } else {
            1.0
        };
        let rate = (self.learning_rate * ratio) as f32;
        let decay = self.weight_decay as f32;
        let elements = parameters
            .iter_mut()
            .zip(gradients)
            .zip(velocity.iter_mut());
        for ((parameter, gradient), velocity) in elements {
            *velocity = self.momentum * *velocity + rate * (gradient + decay * *parameter);
            *parameter -= *velocity;
        }
    }
}

/// Layer-wise adaptive moments.
pub(super) struct Lamb {
    /// With a rate of 1, so that its `rate` is the bias correction of the mean alone.
    pub(super) moments: Moments,
    pub(super) learning_rate: f64,
    pub(super) weight_decay: f32,
}

impl Lamb {
    /// One update of a tensor: two passes, the second with the ratio that the first finds.
    pub(super) fn update(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let [mean, square] = states else {
            unreachable!("the count of states was checked");
        };
        self.moments.remember(gradients, mean, square);
        let weight = norm(block_sums(parameters));
        // Summed as `block_sums` does, without room for the updates.
        let mut block = [0.0; ronde_core::norm::BLOCK];
        let mut sum = 0.0;
        for start in (0..parameters.len()).step_by(block.len()) {
            let end = parameters.len().min(start + block.len());
            for (value, at) in block.iter_mut().zip(start..end) {
                *value = self.direction(parameters[at], mean[at], square[at]);
            }
            sum += block_sums(&block[..end - start]).sum::<f64>();
        }
        let update = sum.sqrt();
        let ratio = if weight > 0.0 && update > 0.0 {
            weight / update
        } else {
            1.0
        };
        let rate = (self.learning_rate * ratio) as f32;
        let states = mean.iter().zip(square.iter());
        for (parameter, (mean, square)) in parameters.iter_mut().zip(states) {
            *parameter -= rate * self.direction(*parameter, *mean, *square);
        }
    }

    fn direction(&self, parameter: f32, mean: f32, square: f32) -> f32 {
        self.moments.direction(mean, square) + self.weight_decay * parameter
    }
}
