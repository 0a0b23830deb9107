//! [`Activation`]: the values passed from one layer to the next.

use burn::backend::{Autodiff, AutodiffBackend, Flex};
use burn::tensor::{Device, Tensor};

use crate::ops::{HostTensor, OperationInput};

/// Values of any rank, f32, row-major; the first dimension is the number of samples.
///
/// Stored as the engine's own tensor, so that a layer uses it without a copy, and shared with the
/// graph that computed it.
#[derive(Debug, Clone)]
pub struct Activation {
    values: HostTensor,
}

impl Activation {
    /// Takes ownership of values on the host. Cost: none.
    ///
    /// # Panics
    /// When the number of values does not match `shape`.
    #[must_use]
    pub fn from_host(shape: &[usize], values: Vec<f32>) -> Self {
        let elements: usize = shape.iter().product();
        assert_eq!(
            values.len(),
            elements,
            "{} values for shape {shape:?}",
            values.len()
        );
        Self {
            values: HostTensor::new(values, shape),
        }
    }

    /// Returns an activation without values, as the placeholder of a moved one.
    pub(crate) fn nothing() -> Self {
        Self::from_host(&[0], Vec::new())
    }

    /// Returns the length of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.values.shape()
    }

    /// Returns the number of samples: the first dimension, 1 for a scalar.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.shape().first().copied().unwrap_or(1)
    }

    /// Returns the values.
    ///
    /// # Panics
    /// Never: the values are f32.
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        self.values.values()
    }

    /// Returns the values without a copy when this is their only owner and they are stored as a
    /// `Vec`; otherwise copies them once.
    ///
    /// # Panics
    /// Never: the values are f32.
    #[must_use]
    pub fn into_host(self) -> Vec<f32> {
        self.values.into_values()
    }

    /// Returns the values as a tensor of rank `D`, which the caller has checked, on one of the
    /// engine's devices. Cost: none.
    pub(crate) fn into_tensor<const D: usize>(self, device: &Device) -> Tensor<D> {
        let values = self.values.into_tensor();
        if device.is_autodiff() {
            Tensor::from_primitive::<Autodiff<Flex>>(Autodiff::<Flex>::from_inner(values))
        } else {
            Tensor::from_primitive::<Flex>(values)
        }
    }

    /// Takes the values of a tensor and makes them contiguous, so that the next layer gets the same
    /// form whether it runs in this process or another. Cost: a copy only where they are not
    /// contiguous.
    pub(crate) fn from_tensor<const D: usize>(tensor: Tensor<D>) -> Self {
        Self {
            values: OperationInput::of(tensor).values(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unique_vec_goes_through_without_a_copy() {
        let values = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let at = values.as_ptr();
        let activation = Activation::from_host(&[2, 3], values);
        assert_eq!(activation.shape(), [2, 3]);
        assert_eq!(activation.samples(), 2);
        let back = activation.into_host();
        assert_eq!(back.as_ptr(), at);
        assert_eq!(back, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn a_permuted_tensor_becomes_row_major() {
        let device = Device::default();
        let tensor = Activation::from_host(&[2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
            .into_tensor::<2>(&device);
        let turned = Activation::from_tensor(tensor.transpose());
        assert_eq!(turned.shape(), [3, 2]);
        assert_eq!(turned.as_slice(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
