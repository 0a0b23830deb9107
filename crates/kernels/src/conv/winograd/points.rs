//! Loads and stores of the elements of all points, one vector each.
#![expect(unsafe_code, reason = "vector loads and stores in inner loops")]

use super::sizes::{POINTS, SIDE};
use crate::simd::SimdVector;

/// Loads a vector of each point; points are `stride` apart.
///
/// # Panics
/// If `from` ends before the last vector.
#[inline(always)]
pub(super) fn load_points<V: SimdVector>(from: &[f32], stride: usize) -> [[V; SIDE]; SIDE] {
    assert!(
        from.len() >= (POINTS - 1) * stride + V::LANES,
        "elements of all points"
    );
    let mut values = [[V::splat(0.0); SIDE]; SIDE];
    for (i, values) in values.iter_mut().enumerate() {
        for (j, value) in values.iter_mut().enumerate() {
            // SAFETY: all points have a vector, as asserted.
            *value = unsafe { V::load(from.as_ptr().add((i * SIDE + j) * stride)) };
        }
    }
    values
}

/// Stores a vector of each point; points are `stride` apart.
///
/// # Panics
/// If `to` ends before the last vector.
#[inline(always)]
pub(super) fn store_points<V: SimdVector>(
    values: &[[V; SIDE]; SIDE],
    to: &mut [f32],
    stride: usize,
) {
    assert!(
        to.len() >= (POINTS - 1) * stride + V::LANES,
        "elements of all points"
    );
    for (i, values) in values.iter().enumerate() {
        for (j, value) in values.iter().enumerate() {
            // SAFETY: all points have a vector, as asserted.
            unsafe { value.store(to.as_mut_ptr().add((i * SIDE + j) * stride)) };
        }
    }
}
