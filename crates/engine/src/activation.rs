//! [`Activation`]: the values that cross a border between stages.

use burn::tensor::{Device, Tensor, TensorData};

/// Values of any rank, f32, row-major; the first dimension counts samples.
///
/// Kept in the engine's own form, so that a stage takes it over without a copy.
#[derive(Debug, Clone)]
pub struct Activation {
    data: TensorData,
}

impl Activation {
    /// Takes over values from the host. Cost: none.
    ///
    /// # Panics
    /// When `values` does not have as many elements as `shape` says.
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
            data: TensorData::new(values, shape.to_vec()),
        }
    }

    /// No values: what stays where others were taken out.
    pub(crate) fn nothing() -> Self {
        Self::from_host(&[0], Vec::new())
    }

    /// Length of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.data.shape().as_slice()
    }

    /// Count of samples: the first dimension, 1 for a scalar.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.shape().first().copied().unwrap_or(1)
    }

    /// The values.
    ///
    /// # Panics
    /// Never: the values are f32.
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        self.data.as_slice().expect("an activation holds f32")
    }

    /// Hands the values over. Cost: none when this is their only holder and they lie as a `Vec`
    /// does, else one copy.
    ///
    /// # Panics
    /// Never: the values are f32.
    #[must_use]
    pub fn into_host(self) -> Vec<f32> {
        self.data.try_into_vec().expect("an activation holds f32")
    }

    /// The values as a tensor of rank `D` on a device; the rank has been checked.
    pub(crate) fn into_tensor<const D: usize>(self, device: &Device) -> Tensor<D> {
        Tensor::from_data(self.data, device)
    }

    /// The values of a tensor, made contiguous: a border between stages has one canonical form,
    /// so that it is the same to the next stage whether it is in this process or another.
    pub(crate) fn from_tensor<const D: usize>(tensor: Tensor<D>) -> Self {
        Self {
            data: tensor.into_data(),
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
