//! [`add_rows`]: sums over the rows of a matrix.

use crate::simd::{Vectorised, vectorised};

/// Adds each row to `sums`, in order.
///
/// # Panics
/// If the length of `rows` is not a multiple of the length of `sums`.
pub fn add_rows(rows: &[f32], sums: &mut [f32]) {
    assert!(
        rows.len().is_multiple_of(sums.len().max(1)),
        "rows of {}",
        sums.len()
    );
    add_row_parts(rows, sums.len(), 0, sums);
}

/// Adds a part of each row of `width` elements, which begins at column `start`, to `sums`, in order.
///
/// # Panics
/// If the length of `rows` is not a multiple of `width`, or the part ends after the row.
pub fn add_row_parts(rows: &[f32], width: usize, start: usize, sums: &mut [f32]) {
    assert!(
        rows.len().is_multiple_of(width.max(1)) && start + sums.len() <= width,
        "rows of {width}"
    );
    vectorised(ColumnSums {
        rows,
        width,
        start,
        sums,
    });
}

struct ColumnSums<'a> {
    rows: &'a [f32],
    width: usize,
    start: usize,
    sums: &'a mut [f32],
}

impl Vectorised for ColumnSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for row in self.rows.chunks_exact(self.width.max(1)) {
            for (sum, value) in self.sums.iter_mut().zip(&row[self.start..]) {
                *sum += value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_every_level;

    #[test]
    fn rows_are_added_in_order() {
        at_every_level(|| {
            let rows: Vec<f32> = (0..3 * 37).map(|i| 1.0 / (i + 1) as f32).collect();
            let mut sums = vec![0.5; 37];
            add_rows(&rows, &mut sums);
            for (column, sum) in sums.iter().enumerate() {
                let expected = 0.5 + rows[column] + rows[37 + column] + rows[74 + column];
                assert_eq!(*sum, expected);
            }
            let mut part = vec![0.5; 20];
            add_row_parts(&rows, 37, 17, &mut part);
            assert_eq!(part, sums[17..]);
        });
    }
}
