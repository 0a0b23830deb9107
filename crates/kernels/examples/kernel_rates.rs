//! Measures the kernels in GFLOP/s: `cargo run --release -p ronde-kernels --example kernel_rates -- [WORD]` measures
//! the kernels whose names contain the word.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program that measures and prints"
)]

use std::time::Instant;

use ronde_kernels::{
    Affine, BatchNorm, BatchNormGradients, Convolution, GradientScale, Matrix, Products,
    ShortFormat, multiply, multiply_with, sum_of_squares,
};

fn rate(name: &str, operations: f64, mut run: impl FnMut()) {
    if std::env::args()
        .nth(1)
        .is_some_and(|word| !name.contains(&word))
    {
        return;
    }
    run();
    let mut best = f64::MAX;
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < 0.4 {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!(
        "{name:44} {:8.2} ms {:7.1} GFLOP/s",
        best * 1e3,
        operations / best / 1e9
    );
}

fn main() {
    for (m, k, n) in [
        (256, 784, 1024),
        (256, 1024, 1024),
        (1024, 256, 1024),
        (1024, 256, 4096),
        (512, 4608, 512),
        (64, 576, 1024),
    ] {
        let (a, b) = (vec![0.5_f32; m * k], vec![0.25_f32; k * n]);
        let mut out = vec![0.0; m * n];
        let flops = 2.0 * (m * k * n) as f64;
        let layouts = [
            ("", Matrix::new(&a, m, k), Matrix::new(&b, k, n)),
            (
                ", both transposed,",
                Matrix::new(&a, k, m).transposed(),
                Matrix::new(&b, n, k).transposed(),
            ),
        ];
        for (layout, left, right) in layouts {
            rate(&format!("product{layout} {m} x {k} x {n}"), flops, || {
                multiply(left, right, &mut out, false);
            });
            for format in [None, Some(ShortFormat::Bf16), Some(ShortFormat::F16)] {
                let products = Products::of(format);
                if let Some(name) = products.name() {
                    let name = format!("product by {name}{layout} {m} x {k} x {n}");
                    rate(&name, flops, || {
                        multiply_with(products, left, right, &mut out, false);
                    });
                }
            }
        }
    }
    convolutions();
    normalisation();
    gradients();
}

fn convolutions() {
    const SAMPLES: usize = 32;
    for (channels, side, outputs, kernel, stride) in [
        (3, 32, 64, 3, 1),
        (64, 32, 64, 3, 1),
        (128, 16, 128, 3, 1),
        (256, 8, 256, 3, 1),
        (512, 4, 512, 3, 1),
        (64, 32, 128, 3, 2),
        (128, 16, 256, 3, 2),
        (256, 8, 512, 3, 2),
        (3, 64, 64, 7, 2),
        (64, 32, 128, 1, 2),
        (256, 8, 512, 1, 2),
        (256, 14, 1024, 1, 1),
    ] {
        let shape = Convolution {
            channels,
            size: [side; 2],
            outputs,
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding: [kernel / 2; 2],
        };
        let [input, output, weights] = shape.elements();
        let (mut x, mut w) = (vec![0.5; SAMPLES * input], vec![0.25; weights]);
        let mut y = vec![0.125; SAMPLES * output];
        let flops = 2.0 * (SAMPLES * output * weights / outputs) as f64;
        let name = format!("conv {channels}x{side} to {outputs}, {kernel}x{kernel} / {stride}");
        rate(&format!("{name}: forward"), flops, || {
            shape.forward(Products::F32, SAMPLES, &x, &w, &mut y)
        });
        rate(&format!("{name}: input gradient"), flops, || {
            shape.input_gradient(Products::F32, SAMPLES, &w, &y, &mut x)
        });
        rate(&format!("{name}: weight gradient"), flops, || {
            shape.weight_gradient(Products::F32, SAMPLES, &x, &y, &mut w)
        });
    }
}

/// The number of parameters of an MLP of 784-1024-1024-10; rates are elements per second.
fn gradients() {
    const ELEMENTS: usize = 1_863_690;
    let (values, mut to) = (vec![0.5; ELEMENTS], vec![0.0; ELEMENTS]);
    let scale = GradientScale::new(256, 1.0);
    rate("gradient: squares", ELEMENTS as f64, || {
        assert!(sum_of_squares(&values).is_finite());
    });
    rate("gradient: scaled", ELEMENTS as f64, || {
        scale.write(&values, &mut to);
    });
}

fn normalisation() {
    let shape = BatchNorm {
        samples: 32,
        channels: 64,
        places: 1024,
        epsilon: 1e-5,
        rectified: true,
    };
    let elements = 32 * 64 * 1024;
    let (x, mut y, mut dx) = (
        vec![0.5; elements],
        vec![0.0; elements],
        vec![0.0; elements],
    );
    let (gamma, beta) = (vec![1.0; 64], vec![0.0; 64]);
    let affine = Affine {
        gamma: &gamma,
        beta: &beta,
    };
    let mut found = shape.forward(&x, affine, None, &mut y);
    rate("batch normalisation: forward", elements as f64, || {
        found = shape.forward(&x, affine, None, &mut y);
    });
    let (mut dgamma, mut dbeta) = (vec![0.0; 64], vec![0.0; 64]);
    rate("batch normalisation: backward", elements as f64, || {
        let gradients = BatchNormGradients {
            input: &mut dx,
            gamma: &mut dgamma,
            beta: &mut dbeta,
            added: None,
        };
        shape.backward(&x, &y, &y, &gamma, &found, gradients);
    });
}
