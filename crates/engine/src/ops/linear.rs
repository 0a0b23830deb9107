//! [`linear`] and [`rectified_linear`]: the matrix product of a layer, alone and with a rectifier.

use burn::nn::Linear;
use burn::tensor::Tensor;
use ronde_kernels::{Matrix, add_rows, multiply, rectified, rectified_backward};

use super::custom::{Host, Input, Saved, record};
use super::memory::take;

/// `x * weight + bias` over the last dimension: `[.., inputs]` to `[.., outputs]`. Cost: inputs x
/// outputs multiply-adds a row, twice that backward.
///
/// # Panics
/// When the last dimension is not the layer's count of inputs, as the engine does.
#[must_use]
pub fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    run(layer, x, false)
}

/// The same, then `max(y, 0)` in place: without another pass that allocates.
///
/// # Panics
/// As [`linear`].
#[must_use]
pub fn rectified_linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    run(layer, x, true)
}

fn run<const D: usize>(layer: &Linear, x: Tensor<D>, is_rectified: bool) -> Tensor<D> {
    let weight = Input::of(layer.weight.val());
    let x = Input::of(x);
    match &layer.bias {
        None => record([x, weight], |[x, weight]| {
            forward(x, weight, None, is_rectified)
        }),
        Some(bias) => record([x, weight, Input::of(bias.val())], |[x, weight, bias]| {
            forward(x, weight, Some(&bias), is_rectified)
        }),
    }
}

fn forward(x: Host, weight: Host, bias: Option<&Host>, is_rectified: bool) -> (Host, Product) {
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
    if is_rectified {
        rectified(&mut y);
    }
    let y = Host::new(y, &shape);
    let open = is_rectified.then(|| y.clone());
    (y, Product { x, weight, open })
}

#[derive(Debug)]
struct Product {
    x: Host,
    weight: Host,
    /// The output, which says where a rectifier was open.
    open: Option<Host>,
}

impl<const N: usize> Saved<N> for Product {
    fn backward(&self, gradient: &[f32], wanted: [bool; N]) -> [Option<Host>; N] {
        let [inputs, outputs] = [self.weight.shape()[0], self.weight.shape()[1]];
        let rows = self.x.values().len() / inputs.max(1);
        let behind = self.open.as_ref().map(|y| {
            let mut dy = take(gradient.len());
            rectified_backward(y.values(), gradient, &mut dy);
            dy
        });
        let gradient = behind.as_deref().unwrap_or(gradient);
        let dy = Matrix::new(gradient, rows, outputs);
        let mut found = [const { None }; N];
        for (input, found) in found.iter_mut().enumerate().filter(|(i, _)| wanted[*i]) {
            *found = Some(match input {
                0 => {
                    let weight = Matrix::new(self.weight.values(), inputs, outputs);
                    let mut dx = take(rows * inputs);
                    multiply(dy, weight.transposed(), &mut dx, false);
                    Host::new(dx, self.x.shape())
                }
                1 => {
                    let x = Matrix::new(self.x.values(), rows, inputs);
                    let mut dw = take(inputs * outputs);
                    multiply(x.transposed(), dy, &mut dw, false);
                    Host::new(dw, self.weight.shape())
                }
                _ => {
                    let mut sum = vec![0.0; outputs];
                    add_rows(gradient, &mut sum);
                    Host::new(sum, &[outputs])
                }
            });
        }
        found
    }
}
