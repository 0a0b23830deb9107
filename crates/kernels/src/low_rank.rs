//! Products of a matrix with a few columns, with a fixed order of additions for each number, equal at every level.
//!
//! Columns are one after the other: those on the left of a matrix of `[rows, width]` have `rows` elements each, and those on the
//! right `width` elements.

use crate::simd::{Vectorised, vectorised};

/// The partial sums of a dot product.
const LANES: usize = 16;
/// The columns that one pass over the matrix computes.
const COLUMNS: usize = 4;
/// The elements of a row that stay in registers while rows are added to them.
const STRIP: usize = 32;

/// Runs a kernel that is compiled for each number of columns.
macro_rules! by_columns {
    ($columns:expr, $kernel:ident { $($field:ident),* }) => {
        match $columns {
            1 => vectorised($kernel::<1> { $($field),* }),
            2 => vectorised($kernel::<2> { $($field),* }),
            3 => vectorised($kernel::<3> { $($field),* }),
            _ => vectorised($kernel::<COLUMNS> { $($field),* }),
        }
    };
}

/// Writes the product of a matrix of `[rows, width]` and `rank` columns of `width` to as many columns of `rows`.
///
/// Every 16th product is added in order, then these 16 sums in pairs. Cost: a pass over the matrix for every 4 columns.
///
/// # Panics
/// If the lengths are not multiples of `rank`, or do not fit the matrix.
pub fn times_columns(matrix: &[f32], right: &[f32], left: &mut [f32], rank: usize) {
    let (rows, width) = check(matrix.len(), left.len(), right.len(), rank);
    if matrix.is_empty() {
        return left.fill(0.0);
    }
    for (left, right) in (left.chunks_mut(COLUMNS * rows)).zip(right.chunks(COLUMNS * width)) {
        let columns = right.len() / width;
        by_columns!(
            columns,
            Times {
                matrix,
                right,
                left
            }
        );
    }
}

/// Writes the product of the transposed matrix and `rank` columns of `rows` to as many columns of `width`. Rows are added in order.
///
/// Cost: a pass over the matrix for every 4 columns.
///
/// # Panics
/// If the lengths are not multiples of `rank`, or do not fit the matrix.
pub fn transposed_times_columns(matrix: &[f32], left: &[f32], right: &mut [f32], rank: usize) {
    let (rows, width) = check(matrix.len(), left.len(), right.len(), rank);
    if matrix.is_empty() {
        return right.fill(0.0);
    }
    for (left, right) in (left.chunks(COLUMNS * rows)).zip(right.chunks_mut(COLUMNS * width)) {
        let columns = left.len() / rows;
        by_columns!(
            columns,
            TransposedTimes {
                matrix,
                left,
                right
            }
        );
    }
}

/// Adds `sign` times the product of `rank` columns `left` and the transposed columns `right` to a matrix, column by column.
///
/// Cost: a pass over the matrix for every 4 columns.
///
/// # Panics
/// If the lengths are not multiples of `rank`, or do not fit the matrix.
pub fn add_column_products(
    matrix: &mut [f32],
    sign: f32,
    (left, right): (&[f32], &[f32]),
    rank: usize,
) {
    let (rows, width) = check(matrix.len(), left.len(), right.len(), rank);
    if matrix.is_empty() {
        return;
    }
    for (left, right) in (left.chunks(COLUMNS * rows)).zip(right.chunks(COLUMNS * width)) {
        let columns = left.len() / rows;
        let factors = (left, right);
        by_columns!(
            columns,
            AddProducts {
                matrix,
                sign,
                factors
            }
        );
    }
}

/// Returns the rows and the width of a matrix.
fn check(matrix: usize, left: usize, right: usize, rank: usize) -> (usize, usize) {
    let (rows, width) = (left / rank.max(1), right / rank.max(1));
    assert!(
        matrix == rows * width && left == rank * rows && right == rank * width,
        "{rank} columns of {left} and {right} elements for a matrix of {matrix}"
    );
    (rows, width)
}

/// Returns the columns of a slice.
#[inline(always)]
fn columns<const N: usize>(of: &[f32]) -> [&[f32]; N] {
    let len = of.len() / N;
    std::array::from_fn(|column| &of[column * len..(column + 1) * len])
}

struct Times<'a, const N: usize> {
    matrix: &'a [f32],
    right: &'a [f32],
    left: &'a mut [f32],
}

impl<const N: usize> Vectorised for Times<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (rows, right) = (self.left.len() / N, columns::<N>(self.right));
        let width = right[0].len();
        let whole = right.map(|column| column.as_chunks::<LANES>());
        for (row, values) in self.matrix.chunks_exact(width).enumerate() {
            let mut sums = [[0.0_f32; LANES]; N];
            let (blocks, rest) = values.as_chunks::<LANES>();
            for (block, values) in blocks.iter().enumerate() {
                for (sums, (column, _)) in sums.iter_mut().zip(&whole) {
                    let column = &column[block];
                    for lane in 0..LANES {
                        sums[lane] += values[lane] * column[lane];
                    }
                }
            }
            for (column, (sums, (_, right))) in sums.iter_mut().zip(&whole).enumerate() {
                for (sum, (value, right)) in sums.iter_mut().zip(rest.iter().zip(*right)) {
                    *sum += value * right;
                }
                self.left[column * rows + row] = total(*sums);
            }
        }
    }
}

/// Adds partial sums in pairs.
#[inline(always)]
fn total(mut sums: [f32; LANES]) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    sums[0]
}

struct TransposedTimes<'a, const N: usize> {
    matrix: &'a [f32],
    left: &'a [f32],
    right: &'a mut [f32],
}

impl<const N: usize> Vectorised for TransposedTimes<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (width, left) = (self.right.len() / N, columns::<N>(self.left));
        let strips = width / STRIP * STRIP;
        for start in (0..strips).step_by(STRIP) {
            let mut sums = [[0.0_f32; STRIP]; N];
            for (row, values) in self.matrix.chunks_exact(width).enumerate() {
                let (values, _) = values[start..].as_chunks::<STRIP>();
                for (sums, left) in sums.iter_mut().zip(&left) {
                    let factor = left[row];
                    for place in 0..STRIP {
                        sums[place] += factor * values[0][place];
                    }
                }
            }
            for (column, sums) in sums.iter().enumerate() {
                self.right[column * width + start..][..STRIP].copy_from_slice(sums);
            }
        }
        for (column, left) in left.iter().enumerate() {
            let right = &mut self.right[column * width..][strips..width];
            right.fill(0.0);
            for (values, factor) in self.matrix.chunks_exact(width).zip(*left) {
                for (sum, value) in right.iter_mut().zip(&values[strips..]) {
                    *sum += factor * value;
                }
            }
        }
    }
}

struct AddProducts<'a, const N: usize> {
    matrix: &'a mut [f32],
    sign: f32,
    factors: (&'a [f32], &'a [f32]),
}

impl<const N: usize> Vectorised for AddProducts<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (left, right) = (columns::<N>(self.factors.0), columns::<N>(self.factors.1));
        let width = right[0].len();
        let right = right.map(|column| column.as_chunks::<LANES>());
        for (row, values) in self.matrix.chunks_exact_mut(width).enumerate() {
            let factors: [f32; N] = std::array::from_fn(|column| self.sign * left[column][row]);
            let (blocks, rest) = values.as_chunks_mut::<LANES>();
            for (block, values) in blocks.iter_mut().enumerate() {
                for (factor, (right, _)) in factors.iter().zip(&right) {
                    for (value, right) in values.iter_mut().zip(&right[block]) {
                        *value += factor * right;
                    }
                }
            }
            for (factor, (_, right)) in factors.iter().zip(&right) {
                for (value, right) in rest.iter_mut().zip(*right) {
                    *value += factor * right;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_every_level, values};

    /// Returns the sum of products in the order that the documentation states.
    fn dot(one: &[f32], other: &[f32]) -> f32 {
        let mut sums = [0.0_f32; LANES];
        for (place, (one, other)) in one.iter().zip(other).enumerate() {
            sums[place % LANES] += one * other;
        }
        total(sums)
    }

    #[test]
    fn products_have_the_order_of_their_description() {
        for (rows, width, rank) in [(7, 37, 3), (5, 64, 4), (1, 3, 1), (40, 33, 6), (9, 16, 2)] {
            let matrix = values(rows * width, 1);
            let right = values(rank * width, 2);
            let left = values(rank * rows, 3);
            let element = |row: usize, place: usize| matrix[row * width + place];
            let mut products = vec![0.0; rank * rows];
            let mut transposed = vec![0.0; rank * width];
            let mut sum = matrix.clone();
            for column in 0..rank {
                let right = &right[column * width..][..width];
                for row in 0..rows {
                    let factor = left[column * rows + row];
                    products[column * rows + row] = dot(&matrix[row * width..][..width], right);
                    for place in 0..width {
                        transposed[column * width + place] += factor * element(row, place);
                        sum[row * width + place] += -factor * right[place];
                    }
                }
            }
            at_every_level(|| {
                let mut found = vec![f32::NAN; rank * rows];
                times_columns(&matrix, &right, &mut found, rank);
                assert_eq!(found, products);
                let mut found = vec![f32::NAN; rank * width];
                transposed_times_columns(&matrix, &left, &mut found, rank);
                assert_eq!(found, transposed);
                let mut found = matrix.clone();
                add_column_products(&mut found, -1.0, (&left, &right), rank);
                assert_eq!(found, sum);
            });
        }
    }
}
