//! Measures causal attention of heads of 64 elements, forward and backward, for `benchmarks/attention.py`:
//! `cargo run --release -p ronde-kernels --example attention_rates -- TOKENS HEADS REPEATS` prints the median milliseconds.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program that measures and prints"
)]

use std::time::Instant;

use ronde_kernels::Attention;

const WIDTH: usize = 64;

fn argument(number: usize, name: &str) -> usize {
    let given = std::env::args().nth(number);
    let parsed = given.and_then(|text| text.parse().ok());
    parsed.unwrap_or_else(|| panic!("expected numbers TOKENS HEADS REPEATS, without {name}"))
}

fn main() {
    let (tokens, heads) = (argument(1, "TOKENS"), argument(2, "HEADS"));
    let repeats = argument(3, "REPEATS").max(1);
    let shape = Attention {
        batch: 1,
        queries: tokens,
        keys: tokens,
        heads,
        width: WIDTH,
        causal: true,
    };
    let [asking, looked_at, statistics] = shape.elements();
    let values = |length: usize, factor: usize| -> Vec<f32> {
        let value = |index: usize| (index * factor % 1013) as f32 / 507.0 - 1.0;
        (0..length).map(value).collect()
    };
    let (q, kv, dy) = (
        values(asking, 7919),
        values(looked_at, 6131),
        values(asking, 4001),
    );
    let (mut y, mut kept) = (vec![0.0; asking], vec![0.0; statistics]);
    let (mut dq, mut dkv) = (vec![0.0; asking], vec![0.0; looked_at]);
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..=repeats {
        let begin = Instant::now();
        shape.forward(&q, &kv, &[], &mut y, &mut kept);
        let middle = Instant::now();
        shape.backward([&q, &kv], &[], (&kept, None), &dy, [&mut dq, &mut dkv]);
        times[0].push((middle - begin).as_secs_f64());
        times[1].push(middle.elapsed().as_secs_f64());
    }
    let medians = times.map(|mut times| {
        // The first call makes the buffers.
        times.remove(0);
        times.sort_by(f64::total_cmp);
        times[times.len() / 2] * 1e3
    });
    println!("{:.4} {:.4}", medians[0], medians[1]);
}
