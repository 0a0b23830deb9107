//! [`batch_norm`]: batch normalisation with an addition and a rectifier in the same pass.

use burn::nn::BatchNorm;
use burn::tensor::activation::relu;
use burn::tensor::{Tensor, TensorData};
use ronde_kernels::{Affine, BatchNorm as Kernel, BatchNormGradients, BatchStatistics};

use super::custom::{HostTensor, OperationInput, SavedForBackward, record};
use super::memory::take;

/// The operation after a normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterNorm {
    /// Nothing.
    Linear,
    /// The rectifier: negative values become zero.
    Rectified,
}

/// Normalises each channel of `[samples, channels, height, width]`, adds `added` if given, and
/// rectifies if configured. Training uses the batch's statistics and updates the layer's running
/// ones as the engine's layer does (the variance is not corrected); evaluation uses the running
/// ones.
///
/// # Panics
/// When shapes do not match.
#[must_use]
pub fn batch_norm(
    layer: &BatchNorm,
    x: Tensor<4>,
    added: Option<Tensor<4>>,
    after: AfterNorm,
) -> Tensor<4> {
    let trains = x.device().is_autodiff() && layer.training.val().is_enabled();
    if !trains {
        let y = layer.forward(x);
        let y = match added {
            Some(added) => y + added,
            None => y,
        };
        return match after {
            AfterNorm::Linear => y,
            AfterNorm::Rectified => relu(y),
        };
    }
    let [samples, channels, height, width] = x.dims();
    let shape = Kernel {
        samples,
        channels,
        places: height * width,
        epsilon: layer.epsilon,
        rectified: after == AfterNorm::Rectified,
    };
    let mut found = BatchStatistics::default();
    let (gamma, beta) = (
        OperationInput::of(layer.gamma.val()),
        OperationInput::of(layer.beta.val()),
    );
    let y = match added {
        None => record([OperationInput::of(x), gamma, beta], |[x, gamma, beta]| {
            forward(shape, [x, gamma, beta], None, &mut found)
        }),
        Some(added) => record(
            [
                OperationInput::of(x),
                gamma,
                beta,
                OperationInput::of(added),
            ],
            |[x, gamma, beta, added]| forward(shape, [x, gamma, beta], Some(&added), &mut found),
        ),
    };
    move_statistics(layer, found);
    y
}

/// Updates the running statistics as the engine's layer does.
fn move_statistics(layer: &BatchNorm, found: BatchStatistics) {
    let pairs = [
        (&layer.running_mean, found.mean),
        (&layer.running_var, found.variance),
    ];
    for (running, found) in pairs {
        let old = running.value_sync();
        let data = TensorData::new(found, old.dims());
        let found = Tensor::<1>::from_data(data, &old.device());
        let new = old.mul_scalar(1.0 - layer.momentum) + found.mul_scalar(layer.momentum);
        running.update(new.detach());
    }
}

fn forward(
    shape: Kernel,
    [x, gamma, beta]: [HostTensor; 3],
    added: Option<&HostTensor>,
    found: &mut BatchStatistics,
) -> (HostTensor, SavedBatchNorm) {
    let mut y = take(x.values().len());
    let affine = Affine {
        gamma: gamma.values(),
        beta: beta.values(),
    };
    let statistics = shape.forward(x.values(), affine, added.map(HostTensor::values), &mut y);
    found.clone_from(&statistics);
    let y = HostTensor::new(y, x.shape());
    let saved = SavedBatchNorm {
        shape,
        x,
        y: y.clone(),
        gamma,
        statistics,
    };
    (y, saved)
}

#[derive(Debug)]
struct SavedBatchNorm {
    shape: Kernel,
    x: HostTensor,
    y: HostTensor,
    gamma: HostTensor,
    statistics: BatchStatistics,
}

impl<const N: usize> SavedForBackward<N> for SavedBatchNorm {
    fn backward(&self, gradient: &[f32], wanted: [bool; N]) -> [Option<HostTensor>; N] {
        let (elements, channels) = (self.x.values().len(), self.shape.channels);
        let adds = wanted.get(3).copied().unwrap_or(false);
        let mut of_added = adds.then(|| take(elements));
        let mut of_x = take(elements);
        let (mut of_gamma, mut of_beta) = (vec![0.0; channels], vec![0.0; channels]);
        let gradients = BatchNormGradients {
            input: &mut of_x,
            gamma: &mut of_gamma,
            beta: &mut of_beta,
            added: of_added.as_deref_mut(),
        };
        let (x, y, gamma) = (self.x.values(), self.y.values(), self.gamma.values());
        self.shape
            .backward(x, y, gradient, gamma, &self.statistics, gradients);
        let mut all = [
            Some(HostTensor::new(of_x, self.x.shape())),
            Some(HostTensor::new(of_gamma, &[channels])),
            Some(HostTensor::new(of_beta, &[channels])),
            of_added.map(|of_added| HostTensor::new(of_added, self.x.shape())),
        ]
        .into_iter();
        std::array::from_fn(|_| all.next().flatten())
    }
}
