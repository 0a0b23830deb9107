//! Packing of matrices directly to tiles: the values of each row are read once.

use std::ops::Range;

use super::Matrix;
use crate::gemm::chunks;
use crate::simd::{SimdVector, TILE_DEPTH, TILE_PAIRS, TILE_WIDTH, write_lines, write_rows};

/// Packs panels of rows (`LEFT`) or columns, with N parts of each value, as [`crate::simd::arrange_rows`] and
/// [`crate::simd::arrange_columns`] do after packing.
#[inline(always)]
pub(super) fn pack<V: SimdVector, const LEFT: bool, const N: usize>(
    matrix: &Matrix<'_>,
    depth: &Range<usize>,
    outer: &Range<usize>,
    out: &mut [f32],
) {
    let length = V::FORM.length(depth.len());
    for (place, outer) in chunks(outer.clone(), TILE_WIDTH).enumerate() {
        let width = if LEFT {
            TILE_WIDTH
        } else {
            outer.len().next_multiple_of(V::LANES)
        };
        let size = N * TILE_PAIRS * width;
        let panel = &mut out[place * TILE_WIDTH * length..];
        for (depth, to) in chunks(depth.clone(), TILE_DEPTH).zip(panel.chunks_exact_mut(size)) {
            if matrix.by_columns {
                let line = |index: usize| {
                    let start = (outer.start + index) * matrix.stride + depth.start;
                    array(&matrix.data[start..start + depth.len()])
                };
                write_lines::<V, LEFT, N>(outer.len(), line, to);
            } else {
                let row = |index: usize| {
                    let start = (depth.start + index) * matrix.stride + outer.start;
                    array(&matrix.data[start..start + outer.len()])
                };
                write_rows::<V, LEFT, N>(depth.len(), row, to);
            }
        }
    }
}

/// Returns up to 32 values, followed by zeros.
#[inline(always)]
fn array<const L: usize>(values: &[f32]) -> [f32; L] {
    if let Some(values) = values.first_chunk() {
        return *values;
    }
    let mut found = [0.0; L];
    found[..values.len()].copy_from_slice(values);
    found
}
