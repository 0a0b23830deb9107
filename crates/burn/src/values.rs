//! Conversions between activations and tensors.

use burn::tensor::{Device, Tensor, TensorData};
use ronde_engine::Activation;

/// Returns the values as a tensor of rank `D`, which the caller has checked. Cost: none for the only
/// owner of the values.
pub(crate) fn into_tensor<const D: usize>(values: Activation, device: &Device) -> Tensor<D> {
    let shape = values.shape().to_vec();
    Tensor::from_data(TensorData::new(values.into_host(), shape), device)
}

/// Returns the values of a tensor, row-major. Cost: a copy where they are shared or not contiguous.
pub(crate) fn from_tensor<const D: usize>(tensor: Tensor<D>) -> Activation {
    let shape = tensor.dims();
    let values = tensor.into_data().try_into_vec();
    Activation::from_host(&shape, values.expect("models compute in f32"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permuted_tensor_becomes_row_major() {
        let values = Activation::from_host(&[2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let tensor = into_tensor::<2>(values, &Device::default());
        let turned = from_tensor(tensor.transpose());
        assert_eq!(turned.shape(), [3, 2]);
        assert_eq!(turned.as_slice(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
