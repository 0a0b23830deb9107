//! Test helpers: reproducible numbers and comparisons.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::short::{ShortFormat, round_short};
use crate::simd::{Level, Products, with_level};

/// Runs a test with the kernels of each level that this processor supports.
pub(crate) fn at_every_level(test: impl Fn()) {
    for level in Level::supported() {
        let ended = catch_unwind(AssertUnwindSafe(|| with_level(level, &test)));
        assert!(ended.is_ok(), "failed at the level {}", level.name());
    }
}

/// Returns values in -1..1 that are determined by the seed.
pub(crate) fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Panics unless `got` equals `expected` within `tolerance`, which is relative for large values.
#[track_caller]
pub(crate) fn close(got: f32, expected: f64, tolerance: f64) {
    let limit = tolerance * (1.0 + expected.abs()) * 10.0;
    assert!(
        (f64::from(got) - expected).abs() <= limit,
        "{got} for {expected}"
    );
}

/// Rounds to the nearest f16, which `half` does not for f64: it drops the low bits before rounding.
pub(crate) fn rounded_to_f16(value: f64) -> f64 {
    let mut short = value as f32;
    if f64::from(short).abs() > value.abs() {
        short = f32::from_bits(short.to_bits() - 1);
    }
    // A last bit of one where bits are missing, so that the second rounding knows of them.
    if f64::from(short) != value {
        short = f32::from_bits(short.to_bits() | 1);
    }
    half::f16::from_f32(short).to_f64()
}

/// Returns the format of the operands of products; `None` for f32.
pub(crate) fn format_of(products: Products) -> Option<ShortFormat> {
    match products {
        Products::F32 | Products::SplitTiles => None,
        Products::Bf16Pairs | Products::Bf16Tiles => Some(ShortFormat::Bf16),
        Products::F16Sums => Some(ShortFormat::F16),
    }
}

/// Returns values that are rounded as the products need.
pub(crate) fn values_for(products: Products, count: usize, seed: u64) -> Vec<f32> {
    let mut found = values(count, seed);
    if let Some(format) = format_of(products) {
        round_short(format, &mut found);
    }
    found
}

/// Adds the gradients of shards along the binary tree of the exact sum: neighbours, then neighbours of these sums. A last one
/// without a neighbour stays as it is.
pub(crate) fn add_in_tree(mut nodes: Vec<Vec<f32>>) -> Vec<f32> {
    while nodes.len() > 1 {
        let add = |pair: &[Vec<f32>]| match pair {
            [left, right] => {
                let sums = left.iter().zip(right).map(|(left, right)| left + right);
                let canonical = |sum: f32| if sum.is_nan() { f32::NAN } else { sum };
                sums.map(canonical).collect()
            }
            alone => alone[0].clone(),
        };
        nodes = nodes.chunks(2).map(add).collect();
    }
    nodes.remove(0)
}
