//! Rectifiers.

use burn::tensor::{Tensor, activation};

/// `max(x, 0)`.
#[must_use]
pub fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    activation::relu(x)
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
