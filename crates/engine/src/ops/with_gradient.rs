//! [`with_gradient`]: the starting point of a layer's backward pass.

use burn::tensor::Tensor;

use super::custom::{HostTensor, OperationInput, SavedForBackward, record};

/// Returns a scalar whose backward passes `gradient` to `output`, as `sum(output * gradient)`
/// would, at no cost. Its value is zero.
pub(crate) fn with_gradient<const D: usize>(output: Tensor<D>, gradient: Tensor<D>) -> Tensor<1> {
    let given = OperationInput::of(gradient).values();
    record([OperationInput::of(output)], |_| {
        (HostTensor::new(vec![0.0], &[1]), GivenGradient(given))
    })
}

#[derive(Debug)]
struct GivenGradient(HostTensor);

impl SavedForBackward<1> for GivenGradient {
    fn backward(&self, _gradient: &[f32], _wanted: [bool; 1]) -> [Option<HostTensor>; 1] {
        [Some(self.0.clone())]
    }
}
