//! The register tile: where all multiplications of a matrix product happen.
#![expect(unsafe_code, reason = "vector loads and stores in the innermost loops")]

use crate::simd::Vector;

/// Elements of the largest tile of any level: 8 rows of 3 vectors of 16, or 6 of 4.
pub(crate) const TILE_MAX: usize = 8 * 3 * 16;

/// Multiplies a packed panel of rows (`a[k][V::ROWS]`) by one of columns (`b[k][columns * V::LANES]`)
/// into `out[V::ROWS][columns * V::LANES]`. Each element is summed in the order of `k`.
#[inline(always)]
pub(crate) fn multiply<V: Vector>(a: &[f32], b: &[f32], columns: usize, out: &mut [f32; TILE_MAX]) {
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

#[expect(
    clippy::needless_range_loop,
    reason = "indices of registers; iterators hide from the compiler that they are"
)]
#[inline(always)]
fn sized<V: Vector, const R: usize, const C: usize>(
    a: &[f32],
    b: &[f32],
    out: &mut [f32; TILE_MAX],
) {
    let width = C * V::LANES;
    let depth = a.len() / R;
    assert!(
        a.len() == depth * R && b.len() == depth * width && R * width <= TILE_MAX,
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
    for (r, sums) in sums.iter().enumerate() {
        for (c, sum) in sums.iter().enumerate() {
            // SAFETY: R rows of `width` fit into the tile, as asserted.
            unsafe { sum.store(out.as_mut_ptr().add(r * width + c * V::LANES)) };
        }
    }
}
