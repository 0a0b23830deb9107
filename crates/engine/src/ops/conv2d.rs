//! [`conv2d`]: convolution of images.

use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use ronde_kernels::Convolution;

use super::custom::{HostTensor, OperationInput, SavedForBackward, record};
use super::memory::take;

/// Returns the layer's output: `[samples, channels, height, width]` to `[samples, outputs, ..]`.
/// Layers with groups, dilation or asymmetric padding use the engine's own convolution.
///
/// # Panics
/// When the input does not fit the layer, as in the engine.
#[must_use]
pub fn conv2d(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    let Some(padding) = padding(layer) else {
        return layer.forward(x);
    };
    let [_, channels, height, width] = x.dims();
    let [outputs, expected, kernel_height, kernel_width] = layer.weight.dims();
    assert_eq!(channels, expected, "channels of a convolution's input");
    let shape = Convolution {
        channels,
        size: [height, width],
        outputs,
        kernel: [kernel_height, kernel_width],
        stride: layer.stride,
        padding,
    };
    let y = record(
        [
            OperationInput::of(x),
            OperationInput::of(layer.weight.val()),
        ],
        |[x, weight]| {
            let samples = x.shape()[0];
            let [height, width] = shape.output_size();
            let mut y = take(samples * outputs * height * width);
            shape.forward(samples, x.values(), weight.values(), &mut y);
            let output = HostTensor::new(y, &[samples, outputs, height, width]);
            (output, SavedConv2d { shape, x, weight })
        },
    );
    match &layer.bias {
        Some(bias) => y + bias.val().reshape([1, outputs, 1, 1]),
        None => y,
    }
}

/// Returns the padding if the kernel supports it.
fn padding(layer: &Conv2d) -> Option<[usize; 2]> {
    if layer.groups != 1 || layer.dilation != [1, 1] {
        return None;
    }
    match layer.padding {
        PaddingConfig2d::Valid => Some([0, 0]),
        PaddingConfig2d::Explicit(top, left, bottom, right) => {
            (top == bottom && left == right).then_some([top, left])
        }
        PaddingConfig2d::Same => None,
    }
}

#[derive(Debug)]
struct SavedConv2d {
    shape: Convolution,
    x: HostTensor,
    weight: HostTensor,
}

impl SavedForBackward<2> for SavedConv2d {
    fn backward(&self, gradient: &[f32], [of_x, of_weight]: [bool; 2]) -> [Option<HostTensor>; 2] {
        let samples = self.x.shape()[0];
        let of_x = of_x.then(|| {
            let mut dx = take(self.x.values().len());
            let weight = self.weight.values();
            self.shape
                .input_gradient(samples, weight, gradient, &mut dx);
            HostTensor::new(dx, self.x.shape())
        });
        let of_weight = of_weight.then(|| {
            let mut dw = take(self.weight.values().len());
            let x = self.x.values();
            self.shape.weight_gradient(samples, x, gradient, &mut dw);
            HostTensor::new(dw, self.weight.shape())
        });
        [of_x, of_weight]
    }
}
