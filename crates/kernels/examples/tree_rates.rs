//! Compares the sums of gradients of many shards with those of few, in turns: `cargo run --release -p ronde-kernels --example
//! tree_rates -- [WORD]` measures the kernels whose names contain the word.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program that measures and prints"
)]

use std::time::Instant;

use ronde_kernels::{
    Convolution, Level, Matrix, Products, ShortFormat, add_exactly, multiply_in_tree,
    multiply_with, with_level,
};

/// The number of turns.
const TURNS: usize = 15;

type Work<'a> = (String, Box<dyn FnMut() + 'a>);

/// Prints the median times and their ratios to the first.
fn compare(name: &str, mut works: Vec<Work<'_>>) {
    if std::env::args()
        .nth(1)
        .is_some_and(|word| !name.contains(&word))
    {
        return;
    }
    let mut times = vec![Vec::new(); works.len()];
    for _ in 0..TURNS {
        for ((_, work), times) in works.iter_mut().zip(&mut times) {
            let start = Instant::now();
            work();
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    let medians: Vec<f64> = times
        .iter_mut()
        .map(|times| {
            times.sort_by(f64::total_cmp);
            times[TURNS / 2]
        })
        .collect();
    println!("{name}");
    for ((name, _), median) in works.iter().zip(&medians) {
        println!("  {name:28} {median:8.2} ms {:6.3}", median / medians[0]);
    }
}

fn main() {
    for level in Level::supported() {
        with_level(level, || {
            convolutions(level);
            matrices(level, Products::F32, [512, 1024, 1024]);
            matrices(level, Products::F32, [512, 784, 1024]);
            matrices(level, Products::F32, [4096, 512, 512]);
            for format in [ShortFormat::Bf16, ShortFormat::F16] {
                let products = Products::of(Some(format));
                if products != Products::F32 {
                    matrices(level, products, [512, 1024, 1024]);
                }
            }
        });
    }
}

/// Compares the sums of gradients of the weights of convolutions: one shard after the other, and several together.
fn convolutions(level: Level) {
    let shape = |channels, side, outputs, kernel, stride| Convolution {
        channels,
        size: [side; 2],
        outputs,
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [kernel / 2; 2],
    };
    for shape in [
        shape(64, 32, 128, 3, 2),
        shape(128, 16, 128, 3, 1),
        shape(128, 16, 256, 3, 2),
        shape(256, 8, 256, 3, 1),
        shape(256, 8, 512, 3, 2),
        shape(256, 8, 512, 1, 2),
        shape(512, 4, 512, 3, 1),
    ] {
        let samples = 64;
        let [input, output, weights] = shape.elements();
        let (x, dy) = (vec![0.5; samples * input], vec![0.25; samples * output]);
        let (x, dy) = (&x, &dy);
        let mut works: Vec<Work<'_>> = Vec::new();
        for shards in [2, 16, 64] {
            let each = samples / shards;
            let most = shape.shards_in_cache(each);
            for together in [1, most].into_iter().take(most) {
                let mut sums = vec![vec![0.0; weights]; 8];
                works.push((
                    format!("{shards} shards, {together} together"),
                    Box::new(move || {
                        let groups = shards.div_ceil(together);
                        for group in 0..groups {
                            let count = together.min(shards - group * together);
                            let first = group * together * each;
                            let end = first + count * each;
                            let (x, dy) = (
                                &x[first * input..end * input],
                                &dy[first * output..end * output],
                            );
                            let lens = vec![each; count];
                            let level = group.trailing_ones() as usize;
                            let (outputs, to) = (0..shape.outputs, &mut sums[level]);
                            let products = Products::F32;
                            shape.weight_gradient_in_tree(outputs, products, &lens, x, dy, to);
                            for slot in 0..level {
                                let (left, right) = sums.split_at_mut(slot + 1);
                                add_exactly(&mut right[0], &left[slot]);
                            }
                        }
                    }),
                ));
            }
        }
        let name = format!("{} {shape:?}", level.name());
        compare(&name, works);
    }
}

fn matrices(level: Level, products: Products, [rows, inputs, outputs]: [usize; 3]) {
    let (x, dy) = (vec![0.5_f32; rows * inputs], vec![0.25_f32; rows * outputs]);
    let left = Matrix::new(&x, rows, inputs).transposed();
    let right = Matrix::new(&dy, rows, outputs);
    let mut works: Vec<Work<'_>> = Vec::new();
    let mut plain = vec![0.0; inputs * outputs];
    works.push((
        "one product".to_owned(),
        Box::new(move || multiply_with(products, left, right, &mut plain, false)),
    ));
    for count in [2, 8, 64] {
        let mut out = vec![0.0; inputs * outputs];
        let shards = vec![rows / count; count];
        works.push((
            format!("{count} shards of {}", rows / count),
            Box::new(move || multiply_in_tree(products, left, right, &shards, &mut out)),
        ));
    }
    let name = format!(
        "{} {products:?}: product of {rows} rows, {inputs} x {outputs}",
        level.name()
    );
    compare(&name, works);
}
