//! The register tile of the products: six rows of up to four vectors, with operands at any distances.
#![expect(unsafe_code, reason = "vector loads and stores in the innermost loops")]

use super::panels::PanelLayout;
use crate::gemm::{BlockedLength, chunks};
use crate::simd::SimdVector;

/// The number of rows of a register tile: with four vectors of columns, 24 sums.
const ROWS: usize = 6;
/// The longest sum before its result is added to those of the previous blocks, which bounds rounding errors.
pub(super) const DEPTH_MAX: usize = 128;

/// The left side of a product: element `(row, depth)` is at `row * row_stride + depth * depth_stride`.
#[derive(Clone, Copy)]
pub(super) struct LeftSide<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) row_stride: usize,
    pub(super) depth_stride: usize,
}

/// Multiplies `left` by the panels of `right`, whose depth is that of the product, into `out[rows][columns]`.
#[inline(always)]
pub(super) fn multiply_panels<V: SimdVector>(
    left: LeftSide<'_>,
    right: &[f32],
    layout: PanelLayout,
    out: &mut [f32],
) {
    let depth = layout.depth;
    let last = |count: usize, stride: usize| count.saturating_sub(1) * stride;
    assert!(
        left.rows > 0
            && depth > 0
            && left.data.len() > last(left.rows, left.row_stride) + last(depth, left.depth_stride)
            && right.len() >= layout.elements()
            && out.len() >= left.rows * layout.columns,
        "operands of a product"
    );
    for columns in chunks(0..layout.columns, layout.width) {
        let right = &right[columns.start * depth..columns.end * depth];
        for rows in chunks(0..left.rows, ROWS) {
            let out = &mut out[rows.start * layout.columns + columns.start..];
            let tile = RegisterTile {
                left: LeftSide {
                    data: &left.data[rows.start * left.row_stride..],
                    rows: rows.len(),
                    ..left
                },
                right,
                depth,
                out_stride: layout.columns,
            };
            match columns.len() / V::LANES {
                4 => tile.multiply::<V, 4>(out),
                3 => tile.multiply::<V, 3>(out),
                2 => tile.multiply::<V, 2>(out),
                _ => tile.multiply::<V, 1>(out),
            }
        }
    }
}

/// At most [`ROWS`] rows and one panel.
struct RegisterTile<'a> {
    left: LeftSide<'a>,
    right: &'a [f32],
    depth: usize,
    out_stride: usize,
}

impl RegisterTile<'_> {
    #[expect(
        clippy::needless_range_loop,
        reason = "indices of registers; iterators hide from the compiler that they are"
    )]
    #[inline(always)]
    fn multiply<V: SimdVector, const C: usize>(&self, out: &mut [f32]) {
        let (left, width) = (self.left, C * V::LANES);
        let last = (left.rows - 1) * left.row_stride + (self.depth - 1) * left.depth_stride;
        assert!(
            (1..=ROWS).contains(&left.rows)
                && last < left.data.len()
                && self.right.len() >= self.depth * width
                && out.len() >= (left.rows - 1) * self.out_stride + width,
            "operands of a tile"
        );
        // Missing rows repeat the last one and are not written.
        let mut starts = [0; ROWS];
        for r in 0..ROWS {
            starts[r] = r.min(left.rows - 1) * left.row_stride;
        }
        for depth in BlockedLength::of(self.depth, DEPTH_MAX).ranges() {
            let mut sums = [[V::splat(0.0); C]; ROWS];
            // SAFETY: the rows and the panel have `depth` elements and groups of C vectors, as asserted.
            unsafe {
                let mut a = self.left.data.as_ptr().add(depth.start * left.depth_stride);
                let mut b = self.right.as_ptr().add(depth.start * width);
                for _ in 0..depth.len() {
                    let mut right = [V::splat(0.0); C];
                    for c in 0..C {
                        right[c] = V::load(b.add(c * V::LANES));
                    }
                    for r in 0..ROWS {
                        let left = V::splat(*a.add(starts[r]));
                        for c in 0..C {
                            sums[r][c] = left.multiply_add(right[c], sums[r][c]);
                        }
                    }
                    a = a.wrapping_add(left.depth_stride);
                    b = b.wrapping_add(width);
                }
                for r in 0..ROWS {
                    if r < left.rows {
                        for c in 0..C {
                            let to = out.as_mut_ptr().add(r * self.out_stride + c * V::LANES);
                            let sum = sums[r][c];
                            let sum = if depth.start == 0 {
                                sum
                            } else {
                                V::load(to).add(sum)
                            };
                            sum.store(to);
                        }
                    }
                }
            }
        }
    }
}
