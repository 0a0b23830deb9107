//! Products of a matrix with few columns, with a fixed order of additions for each number.

/// The partial sums of a dot product.
const LANES: usize = 16;
/// A column of which subtracting the earlier ones leaves less than this share depends on them.
const DEPENDENT: f64 = 1e-6;

/// Returns the sum of the products of two vectors: of every 16th of them, then of these sums in pairs.
fn dot(one: &[f32], other: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (blocks, rest) = one.as_chunks::<LANES>();
    let (other_blocks, other_rest) = other.as_chunks::<LANES>();
    for (one, other) in blocks.iter().zip(other_blocks) {
        for (lane, (one, other)) in lanes.iter_mut().zip(one.iter().zip(other)) {
            *lane += one * other;
        }
    }
    for (lane, (one, other)) in lanes.iter_mut().zip(rest.iter().zip(other_rest)) {
        *lane += one * other;
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

/// Adds `factor * from` to a vector.
fn add_scaled(to: &mut [f32], factor: f32, from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

/// Writes the product of a matrix and the columns `right` to the columns `left`. The matrix has `left.len() / rank` rows; columns are
/// one after the other.
pub(super) fn times(matrix: &[f32], right: &[f32], left: &mut [f32], rank: usize) {
    let (rows, width) = (left.len() / rank, right.len() / rank);
    for (row, values) in matrix.chunks_exact(width).enumerate() {
        for (column, right) in right.chunks_exact(width).enumerate() {
            left[column * rows + row] = dot(values, right);
        }
    }
}

/// Writes the product of the transposed matrix and the columns `left` to the columns `right`.
pub(super) fn transposed_times(matrix: &[f32], left: &[f32], right: &mut [f32], rank: usize) {
    let (rows, width) = (left.len() / rank, right.len() / rank);
    right.fill(0.0);
    for (row, values) in matrix.chunks_exact(width).enumerate() {
        for (column, right) in right.chunks_exact_mut(width).enumerate() {
            add_scaled(right, left[column * rows + row], values);
        }
    }
}

/// Adds `sign` times the product of the columns `left` and the transposed columns `right` to a matrix.
pub(super) fn add_product(
    matrix: &mut [f32],
    sign: f32,
    (left, right): (&[f32], &[f32]),
    rank: usize,
) {
    let (rows, width) = (left.len() / rank, right.len() / rank);
    for (row, values) in matrix.chunks_exact_mut(width).enumerate() {
        for (column, right) in right.chunks_exact(width).enumerate() {
            add_scaled(values, sign * left[column * rows + row], right);
        }
    }
}

fn dot_f64(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Makes columns orthonormal, one after the other (modified Gram-Schmidt, each column twice). A column that depends on the earlier
/// ones becomes zero, and one that is not finite makes itself and the later ones NaN.
pub(super) fn orthonormalise(columns: &mut [f32], rank: usize) {
    let rows = columns.len() / rank;
    let mut done: Vec<Vec<f64>> = Vec::with_capacity(rank);
    for column in columns.chunks_exact_mut(rows.max(1)) {
        let mut values: Vec<f64> = column.iter().map(|value| f64::from(*value)).collect();
        let before = dot_f64(&values, &values).sqrt();
        for _ in 0..2 {
            for other in &done {
                let share = dot_f64(&values, other);
                for (value, other) in values.iter_mut().zip(other) {
                    *value -= share * other;
                }
            }
        }
        normalise(&mut values, DEPENDENT * before);
        for (to, value) in column.iter_mut().zip(&values) {
            *to = *value as f32;
        }
        done.push(values);
    }
}

/// Scales a vector to length 1, or to zero if it is not longer than `least`. Returns whether it is neither zero nor NaN.
fn normalise(values: &mut [f64], least: f64) -> bool {
    let length = dot_f64(values, values).sqrt();
    let is_short = length.is_finite() && (length <= least || length == 0.0);
    for value in values.iter_mut() {
        *value = if is_short { 0.0 } else { *value / length };
    }
    !is_short && length.is_finite()
}

/// Scales a column to length 1. Returns whether it is neither zero nor NaN.
pub(super) fn normalise_column(column: &mut [f32]) -> bool {
    let mut values: Vec<f64> = column.iter().map(|value| f64::from(*value)).collect();
    let is_usable = normalise(&mut values, 0.0);
    for (to, value) in column.iter_mut().zip(&values) {
        *to = *value as f32;
    }
    is_usable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: f32) -> Vec<f32> {
        (0..count)
            .map(|i| ((i as f32 + seed) * 1.7).sin())
            .collect()
    }

    #[test]
    fn products_are_those_of_the_definition() {
        let (rows, width, rank) = (7, 37, 3);
        let matrix = numbers(rows * width, 0.0);
        let right = numbers(rank * width, 5.0);
        let mut left = vec![0.0; rank * rows];
        times(&matrix, &right, &mut left, rank);
        let mut back = vec![0.0; rank * width];
        transposed_times(&matrix, &left, &mut back, rank);
        let mut product = vec![1.0; rows * width];
        add_product(&mut product, -1.0, (&left, &right), rank);
        for column in 0..rank {
            for row in 0..rows {
                let each = (0..width).map(|w| matrix[row * width + w] * right[column * width + w]);
                assert!((left[column * rows + row] - each.sum::<f32>()).abs() < 1e-4);
            }
            for w in 0..width {
                let each = (0..rows).map(|row| matrix[row * width + w] * left[column * rows + row]);
                assert!((back[column * width + w] - each.sum::<f32>()).abs() < 1e-4);
            }
        }
        let expected = (0..rank).map(|column| left[column * rows + 2] * right[column * width + 3]);
        let found = product[2 * width + 3];
        assert!((found - (1.0 - expected.sum::<f32>())).abs() < 1e-4);
    }

    #[test]
    fn columns_become_orthonormal_or_zero() {
        let rows = 40;
        let mut columns = numbers(3 * rows, 1.0);
        let doubled: Vec<f32> = columns[..rows].iter().map(|value| 2.0 * value).collect();
        columns[rows..2 * rows].copy_from_slice(&doubled);
        orthonormalise(&mut columns, 3);
        let column = |index: usize| &columns[index * rows..(index + 1) * rows];
        for (one, other, expected) in [(0, 0, 1.0), (1, 1, 0.0), (2, 2, 1.0), (0, 2, 0.0)] {
            assert!((dot(column(one), column(other)) - expected).abs() < 1e-6);
        }
        let mut bad = numbers(2 * rows, 1.0);
        bad[3] = f32::INFINITY;
        orthonormalise(&mut bad, 2);
        assert!(bad.iter().any(|value| value.is_nan()), "{bad:?}");
        assert!(!normalise_column(&mut [0.0, 0.0]));
        assert!(!normalise_column(&mut [f32::NAN, 0.0]));
        assert!(normalise_column(&mut [3.0, 4.0]));
    }
}
