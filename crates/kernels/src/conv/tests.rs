//! Convolutions and their gradients against the definition.

use super::*;
use crate::short::ShortFormat;
use crate::simd::emulated;
use crate::testing::{at_every_level, format_of, values, values_for};

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
        (shape(130, [5, 6], 132, [1, 1], [1, 1], [0, 0]), 2),
        (shape(20, [9, 10], 130, [3, 3], [2, 2], [1, 1]), 2),
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
        fit_the_definition(Products::F32, 1e-4);
        fit_the_definition(Products::of(Some(ShortFormat::Bf16)), 1e-4);
    });
    for (products, tolerance) in [(Products::Bf16Tiles, 1e-4), (Products::F16Sums, 3e-2)] {
        emulated::run(|| fit_the_definition(products, tolerance));
        fit_the_definition(Products::of(format_of(products)), tolerance);
    }
}

/// Compares all passes with the definition.
fn fit_the_definition(products: Products, tolerance: f64) {
    for (shape, samples) in shapes() {
        let [input, output, weights] = shape.elements();
        let operand = |length, seed| values_for(products, length, seed);
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
        shape.forward(products, samples, &x, &w, y);
        shape.input_gradient(products, samples, &w, &dy, dx);
        shape.weight_gradient(products, samples, &x, &dy, dw);
        for (which, (got, expected)) in got.iter().zip(&expected).enumerate() {
            for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
                let error = (f64::from(*got) - expected).abs();
                let near = error <= tolerance * (1.0 + expected.abs());
                assert!(near, "{shape:?} {which} at {place}: {got} for {expected}");
            }
        }
    }
}

#[test]
fn some_channels_have_the_bits_of_all_in_every_form_of_products() {
    let wide = Convolution {
        channels: 64,
        size: [7, 9],
        outputs: 144,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
    };
    let samples = 2;
    let compare = |products: Products, shape: Convolution| {
        let [input, output, weights] = shape.elements();
        let operand = |length, seed| values_for(products, length, seed);
        let x = operand(samples * input, 1);
        let (w, dy) = (operand(weights, 2), operand(samples * output, 3));
        let of = |all: &[f32], channels: usize, range: Range<usize>| -> Vec<f32> {
            let places = all.len() / (samples * channels);
            let samples = all.chunks_exact(channels * places);
            let part = |sample: &[f32]| sample[range.start * places..range.end * places].to_vec();
            samples.flat_map(part).collect()
        };
        let (mut y, mut dx) = (vec![0.0; samples * output], vec![0.0; samples * input]);
        let (outputs, channels) = (shape.outputs, shape.channels);
        shape.forward(products, samples, &x, &w, &mut y);
        shape.input_gradient(products, samples, &w, &dy, &mut dx);
        for range in [0..16, 16..48, 48..64] {
            let expected = of(&y, outputs, range.clone());
            let mut some = vec![f32::NAN; expected.len()];
            shape.forward_of(range.clone(), products, samples, &x, &w, &mut some);
            assert!(some == expected, "{products:?} {shape:?}");
        }
        for range in [0..16, 16..48, 48..64] {
            let expected = of(&dx, channels, range.clone());
            let mut some = vec![f32::NAN; expected.len()];
            shape.input_gradient_of(range.clone(), products, samples, &w, &dy, &mut some);
            assert!(some == expected, "{products:?} {shape:?}");
        }
        let mut dw = vec![0.0; weights];
        shape.weight_gradient(products, samples, &x, &dy, &mut dw);
        for range in [0..16, 16..48, 48..outputs] {
            let expected = &dw[range.start * shape.window()..range.end * shape.window()];
            let mut some = vec![f32::NAN; expected.len()];
            shape.weight_gradient_of(range.clone(), products, samples, &x, &dy, &mut some);
            assert!(some == expected, "{products:?} {shape:?}");
        }
    };
    let flat = Convolution {
        channels: 160,
        kernel: [1, 1],
        padding: [0, 0],
        ..wide
    };
    for shape in [wide, flat] {
        for format in [ShortFormat::Bf16, ShortFormat::F16] {
            compare(Products::of(Some(format)), shape);
        }
        for products in [Products::Bf16Tiles, Products::F16Sums] {
            emulated::run(|| compare(products, shape));
        }
    }
}

#[test]
fn a_sample_has_the_same_bits_wherever_it_lies_in_a_batch() {
    let shape = |channels, side, kernel, stride, padding| Convolution {
        channels,
        size: [side; 2],
        outputs: 5,
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [padding; 2],
    };
    // Windows that overlap in images whose outputs do not fill whole tiles.
    let overlapping = [
        (shape(3, 7, 3, 2, 1), 40),
        (shape(30, 13, 3, 2, 1), 23),
        (shape(2, 9, 7, 2, 3), 50),
        (shape(2, 11, 5, 3, 0), 30),
        (shape(2, 4, 3, 1, 3), 5),
        (shape(1, 40, 3, 2, 1), 3),
    ];
    at_every_level(|| {
        let all_shapes = shapes().into_iter().chain(overlapping);
        for (shape, samples) in all_shapes.filter(|(_, samples)| *samples > 1) {
            let [input, output, weights] = shape.elements();
            let (x, w) = (values(samples * input, 4), values(weights, 5));
            let dy = values(samples * output, 6);
            let (mut all, mut dx) = (vec![0.0; samples * output], vec![0.0; samples * input]);
            shape.forward(Products::F32, samples, &x, &w, &mut all);
            shape.input_gradient(Products::F32, samples, &w, &dy, &mut dx);
            let (mut one, mut dx_of_one) = (vec![0.0; output], vec![0.0; input]);
            for sample in [1, samples - 1] {
                let (x, dy) = (&x[sample * input..], &dy[sample * output..]);
                let (x, dy) = (&x[..input], &dy[..output]);
                shape.forward(Products::F32, 1, x, &w, &mut one);
                shape.input_gradient(Products::F32, 1, &w, dy, &mut dx_of_one);
                assert_eq!(one, all[sample * output..][..output], "{shape:?}");
                assert_eq!(dx_of_one, dx[sample * input..][..input], "{shape:?}");
            }
        }
    });
}

/// Adds the gradients of shards as the exact sum does, level by level.
fn added_in_levels(mut sums: Vec<Vec<f32>>) -> Vec<f32> {
    while sums.len() > 1 {
        let pairs = sums.chunks(2).map(|pair| match pair {
            [left, right] => {
                let mut sum = left.clone();
                add_exactly(&mut sum, right);
                sum
            }
            alone => alone[0].clone(),
        });
        sums = pairs.collect();
    }
    sums.remove(0)
}

#[test]
fn a_sum_of_shards_has_the_bits_of_their_gradients() {
    let all_shards: [&[usize]; 6] = [
        &[1],
        &[1, 1],
        &[2, 2, 1],
        &[1, 1, 1, 1, 1, 1, 1],
        &[2, 0, 3, 1, 1],
        &[40, 90],
    ];
    let compare = |shape: Convolution, shards: &[usize], products: Products| {
        let samples: usize = shards.iter().sum();
        let [input, output, weights] = shape.elements();
        let operand = |length, seed| values_for(products, length, seed);
        let (mut x, mut dy) = (operand(samples * input, 7), operand(samples * output, 8));
        // A payload and values that cancel or vanish.
        x[0] = f32::from_bits(0x7fc0_0123);
        x[input / 2..input].fill(-0.0);
        dy[output * samples - 1] = f32::INFINITY;
        let mut starts = 0;
        let each = shards.iter().map(|&samples| {
            let of = starts..starts + samples;
            starts = of.end;
            let mut dw = vec![f32::NAN; weights];
            let x = &x[of.start * input..of.end * input];
            let dy = &dy[of.start * output..of.end * output];
            shape.weight_gradient(products, samples, x, dy, &mut dw);
            dw
        });
        let expected = added_in_levels(each.collect());
        let bits = |values: &[f32]| -> Vec<u32> { values.iter().map(|v| v.to_bits()).collect() };
        let outputs = shape.outputs;
        for range in [0..outputs, 0..outputs.min(16), outputs / 32 * 16..outputs] {
            let part = range.start * shape.window()..range.end * shape.window();
            let mut got = vec![f32::NAN; part.len()];
            shape.weight_gradient_in_tree(range.clone(), products, shards, &x, &dy, &mut got);
            let same = bits(&got) == bits(&expected[part]);
            assert!(same, "{products:?} {shape:?} {shards:?} {range:?}");
        }
    };
    at_every_level(|| {
        for (shape, _) in shapes() {
            for shards in all_shards {
                compare(shape, shards, Products::F32);
            }
        }
    });
    let shape = Convolution {
        channels: 64,
        size: [4, 5],
        outputs: 144,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
    };
    for products in [Products::Bf16Tiles, Products::F16Sums] {
        emulated::run(|| compare(shape, &[1, 2, 1], products));
    }
}

#[test]
fn shards_of_small_images_are_added_together() {
    let shape = |channels, side| Convolution {
        channels,
        size: [side; 2],
        outputs: channels,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
    };
    for (shape, samples, many) in [
        (shape(512, 4), 1, true),
        (shape(256, 8), 1, true),
        (shape(3, 8), 1, true),
        (shape(64, 64), 1, false),
        (shape(512, 4), 1000, false),
    ] {
        let shards = shape.shards_in_cache(samples);
        assert!(shards.is_power_of_two(), "{shape:?}");
        assert_eq!(shards > 1, many, "{shape:?}: {shards}");
    }
}

#[test]
#[should_panic(expected = "input, weights, output")]
fn mismatched_lengths_are_rejected() {
    let (shape, _) = shapes()[0];
    shape.forward(Products::F32, 1, &[0.0; 3], &[0.0; 3], &mut []);
}
