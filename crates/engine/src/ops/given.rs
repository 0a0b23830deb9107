//! [`with_gradient`]: where backward of a layer begins.

use burn::tensor::Tensor;

use super::custom::{Host, Input, Saved, record};

/// A scalar whose backward hands `gradient` to `output`, as that of `sum(output * gradient)` would, and
/// costs nothing. Its value is zero.
pub(crate) fn with_gradient<const D: usize>(output: Tensor<D>, gradient: Tensor<D>) -> Tensor<1> {
    let given = Input::of(gradient).values();
    record([Input::of(output)], |_| {
        (Host::new(vec![0.0], &[1]), Given(given))
    })
}

#[derive(Debug)]
struct Given(Host);

impl Saved<1> for Given {
    fn backward(&self, _gradient: &[f32], _wanted: [bool; 1]) -> [Option<Host>; 1] {
        [Some(self.0.clone())]
    }
}
