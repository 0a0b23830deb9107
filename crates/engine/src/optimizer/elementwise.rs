//! Update rules in which every element follows from its own values alone.

/// Stochastic gradient descent.
pub(super) struct Descent {
    pub(super) learning_rate: f32,
    pub(super) momentum: f32,
    pub(super) weight_decay: f32,
    pub(super) nesterov: bool,
}

impl Descent {
    /// One update of any slice; without a state there is no momentum.
    pub(super) fn update(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        match states {
            [velocity] => self.with_momentum(parameters, gradients, velocity),
            _ => self.plain(parameters, gradients),
        }
    }

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

/// Adam and its kin.
pub(super) struct Moments {
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
    /// The factors of update `number`, without weight decay.
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

    /// With weight decay in the gradient.
    pub(super) fn adding(mut self, weight_decay: f64) -> Self {
        self.added_decay = weight_decay as f32;
        self
    }

    /// With parameters multiplied by this before the update.
    pub(super) fn keeping(mut self, share: f64) -> Self {
        self.kept = share as f32;
        self
    }

    /// One update of any slice.
    pub(super) fn update(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let [mean, square] = states else {
            unreachable!("the count of states was checked");
        };
        let states = mean.iter_mut().zip(square.iter_mut());
        let elements = parameters.iter_mut().zip(gradients).zip(states);
        for ((parameter, gradient), (mean, square)) in elements {
            let gradient = gradient + self.added_decay * *parameter;
            self.remember_one(gradient, mean, square);
            *parameter = self.kept * *parameter - self.direction(*mean, *square);
        }
    }

    /// Updates the means by a gradient, without weight decay.
    pub(super) fn remember(&self, gradients: &[f32], mean: &mut [f32], square: &mut [f32]) {
        let states = mean.iter_mut().zip(square.iter_mut());
        for (gradient, (mean, square)) in gradients.iter().zip(states) {
            self.remember_one(*gradient, mean, square);
        }
    }

    fn remember_one(&self, gradient: f32, mean: &mut f32, square: &mut f32) {
        *mean = self.beta1 * *mean + self.one_minus_beta1 * gradient;
        *square = self.beta2 * *square + self.one_minus_beta2 * (gradient * gradient);
    }

    /// What the means say a parameter goes down by.
    pub(super) fn direction(&self, mean: f32, square: f32) -> f32 {
        let denominator = square.sqrt() / self.correction + self.epsilon;
        self.rate * (mean / denominator)
    }
}
