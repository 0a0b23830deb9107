//! Convolutions and their gradients against the definition.

use super::*;
use crate::testing::{at_every_level, close, values};

/// Returns one convolution for each case that the kernels treat separately.
fn shapes() -> Vec<(Convolution, usize)> {
    let shape = |channels, size, outputs, kernel, stride, padding| Convolution {
        channels,
        size,
        outputs,
        kernel,
        stride,
        padding,
    };
    vec![
        (shape(3, [8, 16], 5, [3, 3], [1, 1], [1, 1]), 3),
        (shape(2, [40, 32], 9, [3, 3], [1, 1], [1, 1]), 2),
        (shape(5, [4, 4], 70, [3, 3], [1, 1], [1, 1]), 70),
        (shape(4, [7, 7], 66, [1, 1], [1, 1], [0, 0]), 3),
        (shape(4, [36, 34], 3, [1, 1], [1, 1], [0, 0]), 2),
        (shape(4, [8, 8], 6, [1, 1], [2, 2], [0, 0]), 3),
        (shape(3, [9, 10], 17, [3, 3], [2, 2], [1, 1]), 2),
        (shape(3, [21, 18], 4, [7, 7], [2, 2], [3, 3]), 2),
        (shape(30, [6, 5], 4, [2, 3], [1, 2], [0, 1]), 1),
        (shape(2, [5, 5], 3, [1, 1], [1, 1], [1, 1]), 2),
        (shape(1, [4, 4], 1, [4, 4], [1, 1], [0, 0]), 1),
        (shape(2, [4, 4], 3, [3, 3], [1, 1], [1, 1]), 0),
        (shape(64, [8, 8], 64, [3, 3], [1, 1], [1, 1]), 3),
        (shape(80, [7, 7], 64, [3, 3], [1, 1], [1, 1]), 2),
        (shape(64, [9, 16], 112, [3, 3], [1, 1], [0, 2]), 2),
        (shape(64, [4, 4], 64, [3, 3], [1, 1], [1, 1]), 0),
    ]
}

/// Calls a function with each sample, output, tap of the weights and corresponding position of the input.
pub(super) fn each(shape: &Convolution, samples: usize, mut meet: impl FnMut(usize, usize, usize)) {
    let [height, width] = shape.output_size();
    let [from_y, from_x, taps_y, taps_x] = [
        shape.size[0],
        shape.size[1],
        shape.kernel[0],
        shape.kernel[1],
    ];
    for i in 0..samples * shape.outputs * height * width {
        let (x, y) = (i % width, i / width % height);
        let (o, n) = (
            i / (width * height) % shape.outputs,
            i / (width * height * shape.outputs),
        );
        for tap in 0..shape.window() {
            let (c, ky, kx) = (tap / (taps_y * taps_x), tap / taps_x % taps_y, tap % taps_x);
            let (row, column) = (y * shape.stride[0] + ky, x * shape.stride[1] + kx);
            let (row, column) = (
                row.wrapping_sub(shape.padding[0]),
                column.wrapping_sub(shape.padding[1]),
            );
            if row < from_y && column < from_x {
                let input = ((n * shape.channels + c) * from_y + row) * from_x + column;
                meet(input, o * shape.window() + tap, i);
            }
        }
    }
}

#[test]
fn forward_and_both_gradients_fit_the_definition() {
    at_every_level(|| {
        let formats = [None, Some(ShortFormat::Bf16)];
        let cases = shapes().into_iter();
        for ((shape, samples), format) in cases.flat_map(|case| formats.map(|f| (case, f))) {
            let [input, output, weights] = shape.elements();
            let operand = |length, seed| {
                let mut found = values(length, seed);
                if let Some(format) = format {
                    crate::round_short(format, &mut found);
                }
                found
            };
            let x = operand(samples * input, 1);
            let (w, dy) = (operand(weights, 2), operand(samples * output, 3));
            let mut expected = [
                vec![0.0_f64; samples * output],
                vec![0.0; samples * input],
                vec![0.0; weights],
            ];
            each(&shape, samples, |i, t, o| {
                expected[0][o] += f64::from(x[i]) * f64::from(w[t]);
                expected[1][i] += f64::from(dy[o]) * f64::from(w[t]);
                expected[2][t] += f64::from(dy[o]) * f64::from(x[i]);
            });
            let mut got = [
                vec![f32::NAN; samples * output],
                vec![f32::NAN; samples * input],
                vec![f32::NAN; weights],
            ];
            let [y, dx, dw] = &mut got;
            shape.forward(format, samples, &x, &w, y);
            shape.input_gradient(format, samples, &w, &dy, dx);
            shape.weight_gradient(samples, &x, &dy, dw);
            for (which, (got, expected)) in got.iter().zip(&expected).enumerate() {
                for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
                    let near = (f64::from(*got) - expected).abs() <= 1e-4 * (1.0 + expected.abs());
                    assert!(near, "{shape:?} {which} at {place}: {got} for {expected}");
                }
            }
        }
        close(1.0, 1.0, 1e-9);
    });
}

#[test]
fn a_sample_has_the_same_bits_wherever_it_lies_in_a_batch() {
    at_every_level(|| {
        for (shape, samples) in shapes().into_iter().filter(|(_, samples)| *samples > 1) {
            let [input, output, weights] = shape.elements();
            let (x, w) = (values(samples * input, 4), values(weights, 5));
            let mut all = vec![0.0; samples * output];
            shape.forward(None, samples, &x, &w, &mut all);
            let mut one = vec![0.0; output];
            shape.forward(None, 1, &x[(samples - 1) * input..], &w, &mut one);
            assert_eq!(one, all[(samples - 1) * output..], "{shape:?}");
        }
    });
}

#[test]
#[should_panic(expected = "input, weights, output")]
fn mismatched_lengths_are_rejected() {
    let (shape, _) = shapes()[0];
    shape.forward(None, 1, &[0.0; 3], &[0.0; 3], &mut []);
}
