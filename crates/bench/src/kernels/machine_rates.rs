//! The rates of several threads at the same time, with which kernels are compared.

use std::hint::black_box;

use super::MachineRates;
use crate::peak::matrix_peak_flops;

impl MachineRates {
    /// Measures the rates of a number of threads that compute, and then copy, at the same time. Cost: less than half a
    /// second, and 128 MiB of memory per thread.
    #[must_use]
    pub fn measure(threads: usize) -> Self {
        Self {
            product_flops: sum_over_threads(threads, matrix_peak_flops),
            memory_bytes_per_s: sum_over_threads(threads, memory_bytes_per_s),
        }
    }
}

/// Returns the sum of a rate that each thread measures.
fn sum_over_threads(threads: usize, rate: impl Fn() -> f64 + Sync) -> f64 {
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(&rate)).collect();
        let own = rate();
        let others = others.into_iter().map(|thread| match thread.join() {
            Ok(rate) => rate,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        own + others.sum::<f64>()
    })
}

/// Returns the bytes per second that one thread reads and writes when it copies 64 MiB: the best of several copies.
fn memory_bytes_per_s() -> f64 {
    const BYTES: usize = 64 << 20;
    let (from, mut to) = (vec![1_u8; BYTES], vec![2_u8; BYTES]);
    let begin = ronde_clock::now();
    let mut best = f64::MAX;
    while begin.elapsed().as_secs_f64() < 0.2 {
        let start = ronde_clock::now();
        black_box(&mut to).copy_from_slice(black_box(&from));
        best = best.min(start.elapsed().as_secs_f64());
    }
    2.0 * BYTES as f64 / best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rates_of_all_threads_are_added() {
        for threads in 1..4 {
            assert_eq!(sum_over_threads(threads, || 1.5), 1.5 * threads as f64);
        }
    }
}
