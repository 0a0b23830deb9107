//! Compares the sums of gradients of many shards with those of few, in turns: `cargo run --release -p ronde-kernels --example
//! tree_rates -- [WORD]` measures the kernels whose names contain the word.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program that measures and prints"
)]

use std::time::Instant;

use ronde_kernels::{
    Level, Matrix, Products, ShortFormat, multiply_in_tree, multiply_with, with_level,
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
