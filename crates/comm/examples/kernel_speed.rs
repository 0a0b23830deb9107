//! Prints the speed of the reduction kernels on this machine, next to a copy and a plain loop over the same bytes.

use std::io::{self, Write};
use std::time::Instant;

use ronde_comm::reduce_local;
use ronde_core::philox::Stream;
use ronde_core::{Buffer, CollectiveError, DType, ReduceOp};

const ROUNDS: usize = 7;

#[expect(clippy::disallowed_methods, reason = "a measurement owns its clock")]
fn now() -> Instant {
    Instant::now()
}

/// Returns the median seconds per call.
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

/// Adds words in a loop that a compiler vectorizes by itself: the time to read, add and write
/// the same bytes without a choice of instructions, conversions or canonical NaNs.
fn add_plainly(into: &mut [u32], other: &[u32]) {
    for (into, other) in into.iter_mut().zip(other) {
        *into = into.wrapping_add(*other);
    }
}

/// One size of operands, repeated to make 64 MiB.
struct OperandSize {
    bytes: usize,
    repeats: usize,
}

impl OperandSize {
    /// Returns the GB/s of a pass over the operands that takes `work`.
    fn rate(&self, parts: f64, mut work: impl FnMut()) -> f64 {
        let time = seconds(|| (0..self.repeats).for_each(|_| work()));
        parts * (self.bytes * self.repeats) as f64 / time / 1e9
    }

    fn copy(&self) -> f64 {
        let from = random(DType::U8, self.bytes, 1);
        let mut into = random(DType::U8, self.bytes, 2);
        self.rate(2.0, || {
            into.bytes_mut().copy_from_slice(from.bytes());
            std::hint::black_box(into.bytes());
        })
    }

    fn plain_loop(&self) -> f64 {
        let from = random(DType::U32, self.bytes, 1);
        let mut into = random(DType::U32, self.bytes, 2);
        self.rate(3.0, || {
            add_plainly(into.as_mut_slice::<u32>(), from.as_slice::<u32>());
            std::hint::black_box(into.bytes());
        })
    }

    fn kernel(&self, dtype: DType, op: ReduceOp) -> Result<f64, CollectiveError> {
        let other = random(dtype, self.bytes, 3);
        let mut into = random(dtype, self.bytes, 4);
        let mut outcome = Ok(());
        let rate = self.rate(3.0, || {
            outcome = reduce_local(op, &mut into, &other);
            std::hint::black_box(into.bytes());
        });
        outcome.map(|()| rate)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "GB/s of bytes read and written (a copy counts 2 b, a reduction 3 b), and parts of the plain loop's"
    )?;
    for bytes in [64 << 10, 1 << 20, 64 << 20] {
        let repeats = (64 << 20) / bytes;
        let size = OperandSize { bytes, repeats };
        let plain = size.plain_loop();
        let mut line = |name: &str, rate: f64| {
            let (kib, part) = (bytes >> 10, rate / plain);
            writeln!(out, "{kib:>5} KiB {name:<12} {rate:6.1} {part:5.2}")
        };
        line("copy", size.copy())?;
        line("plain loop", plain)?;
        for dtype in DType::ALL {
            for op in [ReduceOp::Sum, ReduceOp::Max] {
                line(&format!("{dtype} {op}"), size.kernel(dtype, op)?)?;
            }
        }
    }
    Ok(())
}
