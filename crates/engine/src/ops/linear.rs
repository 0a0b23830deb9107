//! [`linear`]: the matrix product of a linear module.

use burn::nn::Linear;
use burn::tensor::Tensor;
use ronde_kernels::{Matrix, add_rows, multiply};

use super::custom::{HostTensor, OperationInput, SavedForBackward, record};
use super::memory::take;

/// Returns `x * weight + bias` over the last dimension: `[.., inputs]` to `[.., outputs]`. Cost:
/// inputs x outputs multiply-adds per row, twice that in backward.
///
/// # Panics
/// When the last dimension is not the module's number of inputs, as in the engine.
#[must_use]
pub fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    let weight = OperationInput::of(layer.weight.val());
    let x = OperationInput::of(x);
    match &layer.bias {
        None => record([x, weight], |[x, weight]| forward(x, weight, None)),
        Some(bias) => record(
            [x, weight, OperationInput::of(bias.val())],
            |[x, weight, bias]| forward(x, weight, Some(&bias)),
        ),
    }
}

fn forward(
    x: HostTensor,
    weight: HostTensor,
    bias: Option<&HostTensor>,
) -> (HostTensor, SavedLinear) {
    let [inputs, outputs] = [weight.shape()[0], weight.shape()[1]];
    let mut shape = x.shape().to_vec();
    let last = shape.last_mut().expect("at least one dimension");
    assert_eq!(*last, inputs, "the last dimension of a layer's input");
    *last = outputs;
    let rows = x.values().len() / inputs.max(1);
    let mut y = take(rows * outputs);
    if let Some(bias) = bias {
        y.chunks_exact_mut(outputs.max(1))
            .for_each(|row| row.copy_from_slice(bias.values()));
    }
    let left = Matrix::new(x.values(), rows, inputs);
    let right = Matrix::new(weight.values(), inputs, outputs);
    multiply(left, right, &mut y, bias.is_some());
    (HostTensor::new(y, &shape), SavedLinear { x, weight })
}

#[derive(Debug)]
struct SavedLinear {
    x: HostTensor,
    weight: HostTensor,
}

impl<const N: usize> SavedForBackward<N> for SavedLinear {
    fn backward(&self, gradient: &[f32], wanted: [bool; N]) -> [Option<HostTensor>; N] {
        let [inputs, outputs] = [self.weight.shape()[0], self.weight.shape()[1]];
        let rows = self.x.values().len() / inputs.max(1);
        let dy = Matrix::new(gradient, rows, outputs);
        let mut found = [const { None }; N];
        for (input, found) in found.iter_mut().enumerate().filter(|(i, _)| wanted[*i]) {
            *found = Some(match input {
                0 => {
                    let weight = Matrix::new(self.weight.values(), inputs, outputs);
                    let mut dx = take(rows * inputs);
                    multiply(dy, weight.transposed(), &mut dx, false);
                    HostTensor::new(dx, self.x.shape())
                }
                1 => {
                    let x = Matrix::new(self.x.values(), rows, inputs);
                    let mut dw = take(inputs * outputs);
                    multiply(x.transposed(), dy, &mut dw, false);
                    HostTensor::new(dw, self.weight.shape())
                }
                _ => {
                    let mut sum = vec![0.0; outputs];
                    add_rows(gradient, &mut sum);
                    HostTensor::new(sum, &[outputs])
                }
            });
        }
        found
    }
}
