//! Columns of length 1 that are orthogonal to each other.

/// A column from which subtracting the earlier ones leaves less than this share depends on them.
const DEPENDENT: f64 = 1e-6;

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

    fn dot(one: &[f32], other: &[f32]) -> f32 {
        one.iter().zip(other).map(|(one, other)| one * other).sum()
    }

    fn numbers(count: usize, seed: f32) -> Vec<f32> {
        (0..count)
            .map(|i| ((i as f32 + seed) * 1.7).sin())
            .collect()
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
