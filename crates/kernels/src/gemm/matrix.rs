//! [`Matrix`]: a view of a matrix in a slice, and how its parts are packed.

use std::ops::Range;

use super::Panels;

/// A matrix that lies in a slice by rows or by columns.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    stride: usize,
    by_columns: bool,
}

impl<'a> Matrix<'a> {
    /// `rows` by `columns`, row after row.
    ///
    /// # Panics
    /// When `data` has another length.
    #[must_use]
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "elements of a matrix");
        Self::strided(data, rows, columns, columns)
    }

    /// `rows` by `columns`, each row `stride` after the one before.
    ///
    /// # Panics
    /// When `data` ends before the last row does, or rows overlap.
    #[must_use]
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        let needed = match rows {
            0 => 0,
            rows => (rows - 1) * stride + columns,
        };
        assert!(
            data.len() >= needed && stride >= columns,
            "rows of a matrix"
        );
        Self {
            data,
            rows,
            columns,
            stride,
            by_columns: false,
        }
    }

    /// The same memory, rows seen as columns. Cost: none.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            by_columns: !self.by_columns,
            ..self
        }
    }

    /// Count of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Count of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }
}

/// As the right side: the inner index counts rows. The left side is given transposed.
impl Panels for Matrix<'_> {
    #[inline(always)]
    fn pack(&mut self, depth: Range<usize>, outer: Range<usize>, width: usize, out: &mut [f32]) {
        if self.by_columns {
            let from = &self.data[outer.start * self.stride + depth.start..];
            transpose_into(from, self.stride, outer.len(), depth.len(), width, out);
        } else {
            let from = &self.data[depth.start * self.stride + outer.start..];
            copy_rows(from, self.stride, outer.len(), width, out);
        }
    }
}

/// Copies rows of `length`, `stride` apart, to rows of `width`; what is left over becomes zero.
#[inline(always)]
fn copy_rows(from: &[f32], stride: usize, length: usize, width: usize, out: &mut [f32]) {
    for (row, to) in out.chunks_exact_mut(width).enumerate() {
        let from = &from[row * stride..row * stride + length];
        if length == width {
            // The common case, in which the compiler may know the length.
            to.copy_from_slice(from);
        } else {
            to[..length].copy_from_slice(from);
            to[length..].fill(0.0);
        }
    }
}

/// Turns `rows` rows of `length`, `stride` apart, into columns of `out[length][width]`; columns that
/// no row fills become zero.
#[inline(always)]
pub(crate) fn transpose_into(
    from: &[f32],
    stride: usize,
    rows: usize,
    length: usize,
    width: usize,
    out: &mut [f32],
) {
    const SIDE: usize = 8;
    if rows < width {
        out.fill(0.0);
    }
    for row in (0..rows).step_by(SIDE) {
        let count = SIDE.min(rows - row);
        let mut at = 0;
        while count == SIDE && at + SIDE <= length {
            let mut block = [[0.0; SIDE]; SIDE];
            for (r, line) in block.iter_mut().enumerate() {
                let start = (row + r) * stride + at;
                line.copy_from_slice(&from[start..start + SIDE]);
            }
            for column in 0..SIDE {
                let to = &mut out[(at + column) * width + row..][..SIDE];
                for (r, to) in to.iter_mut().enumerate() {
                    *to = block[r][column];
                }
            }
            at += SIDE;
        }
        for r in row..row + count {
            for column in at..length {
                out[column * width + r] = from[r * stride + column];
            }
        }
    }
}
