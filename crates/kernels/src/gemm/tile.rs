//! The register tile, which makes all multiplications of a matrix product.
#![expect(unsafe_code, reason = "vector loads and stores in the innermost loops")]

use crate::simd::SimdVector;

/// The number of elements of the largest tile of any level: 8 rows of 3 vectors of 16, or 6 of 4.
pub(crate) const TILE_MAX: usize = 8 * 3 * 16;

/// Multiplies a packed panel of rows (`a[k][V::ROWS]`) by one of columns (`b[k][columns * V::LANES]`)
/// into `out[V::ROWS][columns * V::LANES]`. Each element is summed in the order of `k`.
#[inline(always)]
pub(crate) fn multiply<V: SimdVector>(
    a: &[f32],
    b: &[f32],
    columns: usize,
    out: &mut [f32; TILE_MAX],
) {
    match (V::ROWS, columns) {
        (8, 3) => sized::<V, 8, 3>(a, b, out),
        (8, 2) => sized::<V, 8, 2>(a, b, out),
        (8, 1) => sized::<V, 8, 1>(a, b, out),
        (6, 2) => sized::<V, 6, 2>(a, b, out),
        (6, 1) => sized::<V, 6, 1>(a, b, out),
        (4, 2) => sized::<V, 4, 2>(a, b, out),
        (4, 1) => sized::<V, 4, 1>(a, b, out),
        (rows, columns) => unreachable!("no tile of {rows} rows by {columns} vectors"),
    }
}

/// Multiplies as [`multiply`], directly to rows of `out` that are `stride` apart: written or, unless this is the
/// `first` block, added.
#[inline(always)]
pub(crate) fn multiply_to<V: SimdVector>(
    a: &[f32],
    b: &[f32],
    columns: usize,
    (out, stride): (&mut [f32], usize),
    first: bool,
) {
    let to = |out: &mut [f32], width: usize, rows: usize| {
        assert!(
            out.len() >= (rows - 1) * stride + width,
            "rows of a product's tile"
        );
        out.as_mut_ptr()
    };
    macro_rules! sized {
        ($rows:literal, $columns:literal) => {{
            let to = to(out, $columns * V::LANES, $rows);
            // SAFETY: all rows are within `out`, as asserted.
            unsafe { sized_to::<V, $rows, $columns>(a, b, to, stride, first) }
        }};
    }
    match (V::ROWS, columns) {
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
    // The destination may not be in the cache, so it is prefetched before the products.
    for r in 0..R {
        for c in 0..C {
            // SAFETY: guaranteed by the caller.
            unsafe { V::fetch(to.add(r * stride + c * V::LANES)) };
        }
    }
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

#[inline(always)]
fn sized<V: SimdVector, const R: usize, const C: usize>(
    a: &[f32],
    b: &[f32],
    out: &mut [f32; TILE_MAX],
) {
    let width = C * V::LANES;
    assert!(R * width <= TILE_MAX, "a tile that fits");
    let sums = sums::<V, R, C>(a, b);
    for (r, sums) in sums.iter().enumerate() {
        for (c, sum) in sums.iter().enumerate() {
            // SAFETY: R rows of `width` fit into the tile, as asserted.
            unsafe { sum.store(out.as_mut_ptr().add(r * width + c * V::LANES)) };
        }
    }
}

#[expect(
    clippy::needless_range_loop,
    reason = "indices of registers; iterators hide from the compiler that they are"
)]
#[inline(always)]
fn sums<V: SimdVector, const R: usize, const C: usize>(a: &[f32], b: &[f32]) -> [[V; C]; R] {
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
