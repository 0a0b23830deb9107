//! [`layer_norm`] and [`gelu`], of which transformers have as many.

use burn::tensor::Tensor;

use super::group_norm::standardised;

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

/// The Gaussian error linear unit, by its tanh formula. Source: Hendrycks and Gimpel,
/// arXiv:1606.08415, section 2.
#[must_use]
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    const SQRT_2_OVER_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    let cube = x.clone() * x.clone() * x.clone();
    let inner = (x.clone() + cube.mul_scalar(0.044_715)).mul_scalar(SQRT_2_OVER_PI);
    x.mul_scalar(0.5) * inner.tanh().add_scalar(1.0)
}
