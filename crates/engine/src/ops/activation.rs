//! [`relu`].

use burn::tensor::{Tensor, activation};

/// `max(x, 0)`.
#[must_use]
pub fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    activation::relu(x)
}
