//! The rate of copies in memory, with which kernels that move data are compared.

use std::hint::black_box;

use crate::clock;

/// Returns the bytes per second that one thread reads and writes when it copies 64 MiB: the best of several copies. Cost: a
/// fifth of a second, and 128 MiB of memory.
#[must_use]
pub fn memory_bytes_per_s() -> f64 {
    const BYTES: usize = 64 << 20;
    let (from, mut to) = (vec![1_u8; BYTES], vec![2_u8; BYTES]);
    let begin = clock::now();
    let mut best = f64::MAX;
    while begin.elapsed().as_secs_f64() < 0.2 {
        let start = clock::now();
        black_box(&mut to).copy_from_slice(black_box(&from));
        best = best.min(start.elapsed().as_secs_f64());
    }
    2.0 * BYTES as f64 / best
}
