//! The register tile, which makes all multiplications of a matrix product.
#![expect(unsafe_code, reason = "vector loads and stores in the innermost loops")]

use crate::simd::{PanelForm, SimdVector};

/// The number of elements of the largest tile of any level or format: 32 rows of 32 columns.
pub(crate) const TILE_MAX: usize = 32 * 32;

/// A packed panel of rows and one of columns.
#[derive(Clone, Copy)]
pub(crate) struct PackedPanels<'a> {
    /// The rows: `[k][V::ROWS]` as values or pairs, or in another form of the vectors.
    pub(crate) a: &'a [f32],
    /// The columns: `[k][columns * V::LANES]`, likewise.
    pub(crate) b: &'a [f32],
    /// The inner length.
    pub(crate) depth: usize,
    /// The number of vectors of columns.
    pub(crate) columns: usize,
}

/// Multiplies panels into `out[V::ROWS][columns * V::LANES]`. Each element is summed in the order of the inner index, or in
/// that of the instructions of a short format.
#[inline(always)]
pub(crate) fn multiply<V: SimdVector>(panels: PackedPanels<'_>, out: &mut [f32; TILE_MAX]) {
    let width = panels.columns * V::LANES;
    multiply_to::<V>(panels, (out, width), true);
}

/// Multiplies as [`multiply`], directly to rows of `out` that are `stride` apart: written or, unless this is the
/// `first` block, added.
#[inline(always)]
pub(crate) fn multiply_to<V: SimdVector>(
    panels: PackedPanels<'_>,
    (out, stride): (&mut [f32], usize),
    first: bool,
) {
    let width = panels.columns * V::LANES;
    assert!(
        out.len() >= (V::ROWS - 1) * stride + width,
        "rows of a product's tile"
    );
    let to = out.as_mut_ptr();
    macro_rules! sized {
        ($rows:literal, $columns:literal) => {
            // SAFETY: all rows are within `out`, as asserted.
            unsafe { sized_to::<V, $rows, $columns>(panels.a, panels.b, to, stride, first) }
        };
    }
    macro_rules! arranged {
        ($columns:literal) => {
            // SAFETY: as above.
            unsafe { arranged_to::<V, $columns>(panels, to, stride, first) }
        };
    }
    if V::FORM.has_tiles() || V::FORM == PanelForm::F16 {
        return match panels.columns {
            3 => arranged!(3),
            2 => arranged!(2),
            _ => arranged!(1),
        };
    }
    match (V::ROWS, panels.columns) {
        (8, 3) => sized!(8, 3),
        (8, 2) => sized!(8, 2),
        (8, 1) => sized!(8, 1),
        (6, 2) => sized!(6, 2),
        (6, 1) => sized!(6, 1),
        (4, 2) => sized!(4, 2),
        (4, 1) => sized!(4, 1),
        (rows, columns) => unreachable!("no tile of {rows} rows by {columns} vectors"),
    }
}

/// Prefetches a tile's destination, which may not be in the cache, before its products.
#[inline(always)]
fn fetch<V: SimdVector, const C: usize>(to: *mut f32, stride: usize) {
    for row in 0..V::ROWS {
        for column in 0..C {
            V::fetch(to.wrapping_add(row * stride + column * V::LANES));
        }
    }
}

/// Multiplies panels in a separate form.
///
/// # Safety
/// `to` is readable and writable for `V::ROWS` rows of C vectors, `stride` apart.
#[inline(always)]
unsafe fn arranged_to<V: SimdVector, const C: usize>(
    panels: PackedPanels<'_>,
    to: *mut f32,
    stride: usize,
    first: bool,
) {
    let PackedPanels {
        a,
        b,
        depth,
        columns,
    } = panels;
    let (width, length) = (C * V::LANES, V::FORM.length(depth));
    assert!(
        columns == C && a.len() == V::ROWS * length && b.len() == width * length,
        "panels of one depth"
    );
    fetch::<V, C>(to, stride);
    if first {
        // SAFETY: guaranteed by the caller; the panels have the memory of their form, as asserted.
        return unsafe {
            V::multiply_panels::<C>(a.as_ptr(), b.as_ptr(), depth, to, stride);
        };
    }
    let mut tile = std::mem::MaybeUninit::<[f32; TILE_MAX]>::uninit();
    assert!(V::ROWS * width <= TILE_MAX, "a tile that fits");
    let sums = tile.as_mut_ptr().cast::<f32>();
    // SAFETY: as above, and the tile has memory for all rows, which are written before they are read.
    unsafe {
        V::multiply_panels::<C>(a.as_ptr(), b.as_ptr(), depth, sums, width);
        for row in 0..V::ROWS {
            for column in 0..C {
                let to = to.add(row * stride + column * V::LANES);
                let sum = V::load(sums.add(row * width + column * V::LANES));
                V::load(to).add(sum).store(to);
            }
        }
    }
}

/// # Safety
/// `to` is readable and writable for R rows of C vectors, `stride` apart.
#[inline(always)]
unsafe fn sized_to<V: SimdVector, const R: usize, const C: usize>(
    a: &[f32],
    b: &[f32],
    to: *mut f32,
    stride: usize,
    first: bool,
) {
    fetch::<V, C>(to, stride);
    let sums = sums::<V, R, C>(a, b);
    for (r, sums) in sums.iter().enumerate() {
        for (c, sum) in sums.iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let to = to.add(r * stride + c * V::LANES);
                let value = if first { *sum } else { V::load(to).add(*sum) };
                value.store(to);
            }
        }
    }
}

#[expect(
    clippy::needless_range_loop,
    reason = "indices of registers; iterators hide from the compiler that they are"
)]
#[inline(always)]
pub(super) fn sums<V: SimdVector, const R: usize, const C: usize>(
    a: &[f32],
    b: &[f32],
) -> [[V; C]; R] {
    let width = C * V::LANES;
    let depth = a.len() / R;
    assert!(
        a.len() == depth * R && b.len() == depth * width,
        "panels of one depth"
    );
    let mut sums = [[V::splat(0.0); C]; R];
    let (mut a, mut b) = (a.as_ptr(), b.as_ptr());
    for _ in 0..depth {
        // SAFETY: both panels have `depth` groups of R and C vectors, as asserted; the pointers end
        // one past the panels at most.
        unsafe {
            let mut right = [V::splat(0.0); C];
            for c in 0..C {
                right[c] = V::load(b.add(c * V::LANES));
            }
            for r in 0..R {
                let left = V::splat(*a.add(r));
                for c in 0..C {
                    sums[r][c] = left.multiply_add(right[c], sums[r][c]);
                }
            }
            a = a.add(R);
            b = b.add(width);
        }
    }
    sums
}
