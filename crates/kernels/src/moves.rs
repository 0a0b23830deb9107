//! Copies, sums and transposed blocks, vectorised for the level of the caller.
#![expect(
    unsafe_code,
    reason = "vector loads and stores in loops that would become calls"
)]

use crate::simd::SimdVector;

/// Copies a slice to a slice of the same length. For short slices in inner loops: unlike `copy_from_slice`, it makes no
/// call.
#[inline(always)]
pub(crate) fn copy<V: SimdVector>(from: &[f32], to: &mut [f32]) {
    let length = from.len();
    assert_eq!(length, to.len(), "lengths of a copy");
    let (from, to) = (from.as_ptr(), to.as_mut_ptr());
    let mut at = 0;
    // SAFETY: both have `length` elements, as asserted, and every access ends at most there.
    unsafe {
        // Two at a time: with one, the compiler would emit a call.
        while at + 2 * V::LANES <= length {
            let (a, b) = (V::load(from.add(at)), V::load(from.add(at + V::LANES)));
            a.store(to.add(at));
            b.store(to.add(at + V::LANES));
            at += 2 * V::LANES;
        }
        if at + V::LANES <= length {
            V::load(from.add(at)).store(to.add(at));
            at += V::LANES;
        }
        copy_rest(from.add(at), to.add(at), length - at);
    }
}

/// Copies fewer than 32 elements.
///
/// # Safety
/// `from` is readable and `to` writable for `count` elements.
#[inline(always)]
unsafe fn copy_rest(mut from: *const f32, mut to: *mut f32, count: usize) {
    macro_rules! part {
        ($n:literal) => {
            if count & $n != 0 {
                // SAFETY: the parts add up to `count`, which the caller guarantees.
                unsafe {
                    let values = from.cast::<[f32; $n]>().read_unaligned();
                    to.cast::<[f32; $n]>().write_unaligned(values);
                    (from, to) = (from.add($n), to.add($n));
                }
            }
        };
    }
    part!(16);
    part!(8);
    part!(4);
    part!(2);
    part!(1);
    let _ = (from, to);
}

/// Writes or adds the rows of a tile of whole vectors; row `i` is written at `start + i * stride`.
///
/// # Panics
/// If a row does not fit.
#[inline(always)]
pub(crate) fn put_tile<V: SimdVector>(
    to: &mut [f32],
    [start, stride]: [usize; 2],
    tile: &[f32],
    [rows, width]: [usize; 2],
    first: bool,
) {
    match width / V::LANES {
        3 => put_vectors::<V, 3>(to, [start, stride], tile, rows, first),
        2 => put_vectors::<V, 2>(to, [start, stride], tile, rows, first),
        _ => put_vectors::<V, 1>(to, [start, stride], tile, rows, first),
    }
}

#[inline(always)]
fn put_vectors<V: SimdVector, const C: usize>(
    to: &mut [f32],
    [start, stride]: [usize; 2],
    tile: &[f32],
    rows: usize,
    first: bool,
) {
    let width = C * V::LANES;
    assert!(
        rows > 0 && tile.len() >= rows * width && to.len() >= start + (rows - 1) * stride + width,
        "rows of a tile"
    );
    for row in 0..rows {
        // SAFETY: all rows are within `tile` and `to`, as asserted.
        unsafe {
            let from = tile.as_ptr().add(row * width);
            let to = to.as_mut_ptr().add(start + row * stride);
            let mut values = [V::splat(0.0); C];
            for (c, value) in values.iter_mut().enumerate() {
                *value = V::load(from.add(c * V::LANES));
            }
            if !first {
                for (c, value) in values.iter_mut().enumerate() {
                    *value = V::load(to.add(c * V::LANES)).add(*value);
                }
            }
            for (c, value) in values.into_iter().enumerate() {
                value.store(to.add(c * V::LANES));
            }
        }
    }
}

/// Writes or adds the start of `tile`.
#[inline(always)]
pub(crate) fn put<V: SimdVector>(to: &mut [f32], tile: &[f32], first: bool) {
    let tile = &tile[..to.len()];
    if first {
        copy::<V>(tile, to);
    } else {
        add::<V>(tile, to);
    }
}

/// Adds a slice to a slice of the same length, element by element.
#[inline(always)]
pub(crate) fn add<V: SimdVector>(from: &[f32], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "lengths of a sum");
    let whole = from.len() / V::LANES * V::LANES;
    let mut at = 0;
    while at < whole {
        // SAFETY: `whole` is at most the length of both, which are equal.
        unsafe {
            let sum = V::load(to.as_ptr().add(at)).add(V::load(from.as_ptr().add(at)));
            sum.store(to.as_mut_ptr().add(at));
        }
        at += V::LANES;
    }
    for (to, from) in to[whole..].iter_mut().zip(&from[whole..]) {
        *to += from;
    }
}

/// The side of the blocks that are transposed in registers.
const SIDE: usize = 8;

/// Transposes `rows` rows of `length` elements, `stride` apart, into columns of `out[length][width]`; the remaining
/// columns become zero.
#[inline(always)]
pub(crate) fn transpose_into<V: SimdVector>(
    from: &[f32],
    stride: usize,
    rows: usize,
    length: usize,
    width: usize,
    out: &mut [f32],
) {
    assert!(
        rows <= width && out.len() >= length * width,
        "{rows} rows of {length} into columns of {width}"
    );
    if rows < width || length == 0 {
        out.fill(0.0);
    }
    transpose_to::<V>(from, stride, [rows, length], out, width);
}

/// Transposes `rows` rows of `length` elements, `stride` apart, into `length` rows of `rows` elements, `out_stride`
/// apart; the elements between them do not change.
#[inline(always)]
pub(crate) fn transpose_to<V: SimdVector>(
    from: &[f32],
    stride: usize,
    [rows, length]: [usize; 2],
    out: &mut [f32],
    out_stride: usize,
) {
    if rows == 0 || length == 0 {
        return;
    }
    assert!(
        from.len() >= (rows - 1) * stride + length
            && rows <= out_stride
            && out.len() >= (length - 1) * out_stride + rows,
        "{rows} rows of {length} into columns {out_stride} apart"
    );
    let (whole_rows, whole_length) = (rows / SIDE * SIDE, length / SIDE * SIDE);
    for row in (0..whole_rows).step_by(SIDE) {
        for at in (0..whole_length).step_by(SIDE) {
            // SAFETY: the block's rows and columns are within `from` and `out`, as asserted.
            unsafe {
                let from = from.as_ptr().add(row * stride + at);
                let out = out.as_mut_ptr().add(at * out_stride + row);
                V::transpose(from, stride, out, out_stride);
            }
        }
    }
    let scalar =
        |rows: std::ops::Range<usize>, columns: std::ops::Range<usize>, out: &mut [f32]| {
            for row in rows {
                for column in columns.clone() {
                    out[column * out_stride + row] = from[row * stride + column];
                }
            }
        };
    scalar(0..whole_rows, whole_length..length, out);
    scalar(whole_rows..rows, 0..length, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Level, SimdKernel, dispatch_at};
    use crate::testing::values;

    /// Tests all lengths up to four vectors of the widest level, with a border that must not change.
    struct Moves;

    impl SimdKernel for Moves {
        type Output = ();

        fn run<V: SimdVector>(self) {
            for length in 0..70 {
                let vectors = length / V::LANES;
                if length == vectors * V::LANES && (1..=V::COLUMNS).contains(&vectors) {
                    let (tile, mut to) = (values(3 * length, 4), values(4 * length, 5));
                    let before = to.clone();
                    put_tile::<V>(&mut to, [2, length + 1], &tile, [3, length], false);
                    put_tile::<V>(&mut to, [2, length + 1], &tile, [1, length], true);
                    for i in 0..4 * length {
                        let (row, column) = (
                            i.wrapping_sub(2) / (length + 1),
                            i.wrapping_sub(2) % (length + 1),
                        );
                        let expected = match (row, column) {
                            (0, at) if at < length => tile[at],
                            (1 | 2, at) if at < length => before[i] + tile[row * length + at],
                            _ => before[i],
                        };
                        assert_eq!(to[i], expected, "{length}: {i}");
                    }
                }
                let (from, before) = (values(length + 2, 1), values(length + 2, 2));
                let (mut copied, mut added) = (before.clone(), before.clone());
                put::<V>(&mut copied[1..=length], &from[1..], true);
                put::<V>(&mut added[1..=length], &from[1..], false);
                for i in 0..length + 2 {
                    let inside = (1..=length).contains(&i);
                    let expected = if inside { from[i] } else { before[i] };
                    assert_eq!(copied[i], expected, "{length}: {i}");
                    let expected = before[i] + if inside { from[i] } else { 0.0 };
                    assert_eq!(added[i], expected, "{length}: {i}");
                }
            }
            for (rows, length, width) in
                [(8, 8, 8), (3, 5, 8), (19, 21, 32), (16, 40, 16), (0, 3, 8)]
            {
                let stride = length + 3;
                let from = values(rows * stride, 3);
                let mut out = vec![f32::NAN; length * width];
                transpose_into::<V>(&from, stride, rows, length, width, &mut out);
                for (place, got) in out.iter().enumerate() {
                    let (column, row) = (place / width, place % width);
                    let expected = if row < rows {
                        from[row * stride + column]
                    } else {
                        0.0
                    };
                    assert_eq!(*got, expected, "{rows} x {length}: {row}, {column}");
                }
            }
        }
    }

    #[test]
    fn copies_of_all_lengths_are_complete_and_stay_in_bounds() {
        for level in [Level::Portable, Level::Avx2, Level::Avx512] {
            dispatch_at(level, Moves);
        }
    }
}
