//! [`batch_norm`].

use burn::nn::BatchNorm;
use burn::tensor::Tensor;

use super::finish;

/// What happens to a normalised value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterNorm {
    /// Nothing.
    Linear,
    /// The rectifier: negative values become zero.
    Rectified,
}

/// Normalises each channel of `[N, C, H, W]`, adds `added` if given, and rectifies if asked to. In
/// training by the batch's statistics, which move the layer's running ones.
///
/// # Panics
/// When shapes do not fit.
#[must_use]
pub fn batch_norm(
    layer: &BatchNorm,
    x: Tensor<4>,
    added: Option<Tensor<4>>,
    after: AfterNorm,
) -> Tensor<4> {
    finish(layer.forward(x), added, after)
}
