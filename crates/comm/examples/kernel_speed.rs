//! Prints how fast the reduction kernels are on this machine, beside a copy of the same bytes.

use std::io::{self, Write};
use std::time::Instant;

use ronde_comm::reduce_local;
use ronde_core::philox::Stream;
use ronde_core::{Buffer, DType, ReduceOp};

const ROUNDS: usize = 7;

#[expect(clippy::disallowed_methods, reason = "a measurement owns its clock")]
fn now() -> Instant {
    Instant::now()
}

/// Median of seconds per call.
fn seconds(mut work: impl FnMut()) -> f64 {
    work();
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = now();
            work();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn random(dtype: DType, bytes: usize, seed: u32) -> Buffer {
    let mut words = vec![0_u32; bytes / 4];
    Stream::new([seed, 0, 0, 0]).fill(&mut words);
    let mut buffer = Buffer::host(dtype, bytes / dtype.size());
    for (place, word) in buffer.bytes_mut().chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    buffer
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "GB/s of bytes read and written; a copy counts 2 b, a reduction 3 b"
    )?;
    for bytes in [64 << 10, 1 << 20, 64 << 20] {
        let (from, mut into) = (random(DType::U8, bytes, 1), random(DType::U8, bytes, 2));
        let repeats = (64 << 20) / bytes;
        let copy = seconds(|| {
            for _ in 0..repeats {
                into.bytes_mut().copy_from_slice(from.bytes());
                std::hint::black_box(into.bytes());
            }
        });
        let rate = |parts: f64, seconds: f64| parts * (bytes * repeats) as f64 / seconds / 1e9;
        writeln!(
            out,
            "{:>5} KiB copy         {:6.1}",
            bytes >> 10,
            rate(2.0, copy)
        )?;
        for dtype in DType::ALL {
            let (other, mut into) = (random(dtype, bytes, 3), random(dtype, bytes, 4));
            for op in [ReduceOp::Sum, ReduceOp::Max] {
                let mut outcome = Ok(());
                let time = seconds(|| {
                    for _ in 0..repeats {
                        outcome = reduce_local(op, &mut into, &other);
                        std::hint::black_box(into.bytes());
                    }
                });
                outcome?;
                let name = format!("{dtype} {op}");
                writeln!(
                    out,
                    "{:>5} KiB {name:<12} {:6.1}",
                    bytes >> 10,
                    rate(3.0, time)
                )?;
            }
        }
    }
    Ok(())
}
