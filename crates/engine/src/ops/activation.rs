//! [`relu`].

use burn::tensor::Tensor;
use ronde_kernels::{rectified, rectified_backward};

use super::custom::{HostTensor, OperationInput, SavedForBackward, record};
use super::memory::take;

/// Returns `max(x, 0)`; NaN is preserved. Keeps the output for backward.
#[must_use]
pub fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    record([OperationInput::of(x)], |[x]| {
        let mut y = take(x.values().len());
        y.copy_from_slice(x.values());
        rectified(&mut y);
        let y = HostTensor::new(y, x.shape());
        (y.clone(), SavedRectifier(y))
    })
}

#[derive(Debug)]
struct SavedRectifier(HostTensor);

impl SavedForBackward<1> for SavedRectifier {
    fn backward(&self, gradient: &[f32], _wanted: [bool; 1]) -> [Option<HostTensor>; 1] {
        let mut dx = take(gradient.len());
        rectified_backward(self.0.values(), gradient, &mut dx);
        [Some(HostTensor::new(dx, self.0.shape()))]
    }
}
