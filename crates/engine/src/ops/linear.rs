//! [`linear`].

use burn::nn::Linear;
use burn::tensor::Tensor;

/// `x` times the layer's weights along the last dimension, plus its bias.
///
/// # Panics
/// When the last dimension is not the layer's count of inputs, as the engine does.
#[must_use]
pub fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    layer.forward(x)
}
