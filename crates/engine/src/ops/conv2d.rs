//! [`conv2d`].

use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;

/// `x` (`[N, C, H, W]`) convolved with the layer's weights, plus its bias.
///
/// # Panics
/// When the input does not fit the layer, as the engine does.
#[must_use]
pub fn conv2d(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    layer.forward(x)
}
