//! Normalisations that do not look at other samples.

use burn::tensor::Tensor;

/// Each row of the last dimension brought to mean 0 and variance 1, then scaled and shifted.
/// Source: Ba, Kiros, Hinton, arXiv:1607.06450, section 3.
#[must_use]
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    standardised(x, D - 1, epsilon) * gamma.unsqueeze() + beta.unsqueeze()
}

/// Each group of channels of each sample of `[N, C, H, W]` brought to mean 0 and variance 1, then
/// scaled and shifted by channel. `groups` divides C. Source: Wu and He, ECCV 2018, section 3.1.
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

fn standardised<const D: usize>(x: Tensor<D>, dim: usize, epsilon: f64) -> Tensor<D> {
    let centred = x.clone() - x.mean_dim(dim);
    let variance = (centred.clone() * centred.clone()).mean_dim(dim);
    centred / variance.add_scalar(epsilon).sqrt()
}
