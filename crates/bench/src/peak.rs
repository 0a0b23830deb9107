//! The rate of the matrix product on this machine, with which a model's step is compared.

use ronde_kernels::{Matrix, multiply};

/// Returns the floating-point operations per second of one thread: the best of several products of
/// matrices that fit into the second-level cache. Cost: a fifth of a second.
#[must_use]
pub fn matrix_peak_flops() -> f64 {
    const SIDE: usize = 384;
    let (a, b) = (vec![0.5; SIDE * SIDE], vec![0.25; SIDE * SIDE]);
    let mut out = vec![0.0; SIDE * SIDE];
    let begin = ronde_clock::now();
    let mut best = f64::MAX;
    while begin.elapsed().as_secs_f64() < 0.2 {
        let start = ronde_clock::now();
        let (left, right) = (Matrix::new(&a, SIDE, SIDE), Matrix::new(&b, SIDE, SIDE));
        multiply(left, right, &mut out, false);
        best = best.min(start.elapsed().as_secs_f64());
    }
    2.0 * (SIDE as f64).powi(3) / best
}
