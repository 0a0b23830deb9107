//! [`group_norm`], and the operation after a normalisation of images.

use burn::tensor::Tensor;

use super::{AfterNorm, relu};

/// Normalises each group of channels of each sample of `[N, C, H, W]` to mean 0 and variance 1,
/// then scales and shifts each channel. `groups` divides C. Source: Wu and He, ECCV 2018, section
/// 3.1.
#[must_use]
pub fn group_norm(
    x: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    groups: usize,
    epsilon: f64,
) -> Tensor<4> {
    let [samples, channels, height, width] = x.dims();
    let grouped = x.reshape([samples, groups, channels / groups * height * width]);
    let x = standardised(grouped, 2, epsilon).reshape([samples, channels, height, width]);
    x * gamma.reshape([1, channels, 1, 1]) + beta.reshape([1, channels, 1, 1])
}

/// Normalises to mean 0 and variance 1 along a dimension.
fn standardised<const D: usize>(x: Tensor<D>, dim: usize, epsilon: f64) -> Tensor<D> {
    let centred = x.clone() - x.mean_dim(dim);
    let variance = (centred.clone() * centred.clone()).mean_dim(dim);
    centred / variance.add_scalar(epsilon).sqrt()
}

/// Adds `added` if given, and rectifies if configured.
pub(crate) fn finish(x: Tensor<4>, added: Option<Tensor<4>>, after: AfterNorm) -> Tensor<4> {
    let x = match added {
        Some(added) => x + added,
        None => x,
    };
    match after {
        AfterNorm::Linear => x,
        AfterNorm::Rectified => relu(x),
    }
}
