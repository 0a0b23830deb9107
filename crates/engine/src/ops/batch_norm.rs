//! [`batch_norm`].

use burn::nn::BatchNorm;
use burn::tensor::Tensor;

use super::relu;

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
    after.finish(layer.forward(x), added)
}

impl AfterNorm {
    /// Adds and rectifies.
    pub(crate) fn finish(self, x: Tensor<4>, added: Option<Tensor<4>>) -> Tensor<4> {
        let x = match added {
            Some(added) => x + added,
            None => x,
        };
        match self {
            Self::Linear => x,
            Self::Rectified => relu(x),
        }
    }
}
