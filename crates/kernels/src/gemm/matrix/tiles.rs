//! Packing of matrices of bf16 values directly to tiles: the values of each row are read once.

use std::ops::Range;

use super::Matrix;
use crate::gemm::chunks;
use crate::simd::{
    PanelForm, SimdVector, TILE_PAIRS, TILE_WIDTH, joined, pair_values, transpose_tile_columns,
    transpose_tiles,
};

/// The inner indices of a tile.
const DEPTH: usize = 2 * TILE_PAIRS;

/// Packs panels of rows (`LEFT`) or columns as [`crate::simd::arrange_rows`] and [`crate::simd::arrange_columns`] do after
/// packing.
#[inline(always)]
pub(super) fn pack<V: SimdVector, const LEFT: bool>(
    matrix: &Matrix<'_>,
    depth: &Range<usize>,
    outer: Range<usize>,
    out: &mut [f32],
) {
    let length = PanelForm::Bf16Tiles.length(depth.len());
    for (place, outer) in chunks(outer, TILE_WIDTH).enumerate() {
        let width = if LEFT {
            TILE_WIDTH
        } else {
            outer.len().next_multiple_of(TILE_PAIRS)
        };
        let panel = &mut out[place * TILE_WIDTH * length..];
        for (block, depth) in chunks(depth.clone(), DEPTH).enumerate() {
            let at = block * TILE_PAIRS * width;
            let to = &mut panel[at..at + TILE_PAIRS * width];
            if matrix.by_columns {
                along::<V, LEFT>(matrix, depth, outer.clone(), to);
            } else {
                across::<V, LEFT>(matrix, depth, outer.clone(), to);
            }
        }
    }
}

/// Packs two tiles of a matrix in whose memory the inner indices are neighbours.
#[inline(always)]
fn along<V: SimdVector, const LEFT: bool>(
    matrix: &Matrix<'_>,
    depth: Range<usize>,
    outer: Range<usize>,
    to: &mut [f32],
) {
    let mut pairs = [[0.0; TILE_PAIRS]; TILE_WIDTH];
    for (line, pairs) in outer.zip(&mut pairs) {
        let from = &matrix.data[line * matrix.stride + depth.start..][..depth.len()];
        pair_values(from, pairs);
    }
    if LEFT {
        to.copy_from_slice(pairs.as_flattened());
    } else {
        transpose_tile_columns::<V>(&pairs, to);
    }
}

/// Packs two tiles of a matrix in whose memory the rows or columns of the product are neighbours.
#[inline(always)]
fn across<V: SimdVector, const LEFT: bool>(
    matrix: &Matrix<'_>,
    depth: Range<usize>,
    outer: Range<usize>,
    to: &mut [f32],
) {
    let line = |index: usize| {
        let start = index * matrix.stride + outer.start;
        &matrix.data[start..start + outer.len()]
    };
    let pair_lines = |index: usize, to: &mut [f32]| {
        let first = line(index);
        if index + 1 < depth.end {
            for ((to, first), second) in to.iter_mut().zip(first).zip(line(index + 1)) {
                *to = joined(*first, *second);
            }
        } else {
            for (to, first) in to.iter_mut().zip(first) {
                *to = joined(*first, 0.0);
            }
        }
    };
    let pairs_there = depth.len().div_ceil(2);
    if LEFT {
        let mut pairs = [0.0; TILE_PAIRS * TILE_WIDTH];
        let rows = pairs.chunks_exact_mut(TILE_WIDTH).take(pairs_there);
        for (pair, row) in rows.enumerate() {
            pair_lines(depth.start + 2 * pair, row);
        }
        transpose_tiles::<V>(&pairs, to);
    } else {
        let width = to.len() / TILE_PAIRS;
        let mut rows = to.chunks_exact_mut(width);
        for (pair, row) in rows.by_ref().take(pairs_there).enumerate() {
            let (row, rest) = row.split_at_mut(outer.len());
            pair_lines(depth.start + 2 * pair, row);
            rest.fill(0.0);
        }
        rows.for_each(|row| row.fill(0.0));
    }
}
