//! Matrix products and sums over rows.

use std::sync::Arc;

use ronde_kernels::ShortFormat;

use super::operands::kernels;
use crate::device::buffer::DeviceSlice;

/// A matrix among the operands of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct MatrixOf<R> {
    /// The values, row-major in the order in which they are stored.
    pub values: R,
    /// The number of rows as they are stored.
    pub rows: usize,
    /// The number of columns as they are stored.
    pub columns: usize,
    /// Whether the product uses the transposed matrix.
    pub is_transposed: bool,
    /// The format to which all values are rounded, if it is known.
    pub format: Option<ShortFormat>,
}

impl<R> MatrixOf<R> {
    /// Creates a matrix of `rows` by `columns`.
    #[must_use]
    pub fn new(values: R, rows: usize, columns: usize) -> Self {
        Self {
            values,
            rows,
            columns,
            is_transposed: false,
            format: None,
        }
    }

    /// Returns the same matrix, whose values are all rounded to a format.
    #[must_use]
    pub fn rounded_to(self, format: Option<ShortFormat>) -> Self {
        Self { format, ..self }
    }

    /// Returns the transposed matrix of the same memory. Cost: none.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            is_transposed: !self.is_transposed,
            ..self
        }
    }

    /// Returns the numbers of rows and columns as the product uses them.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        match self.is_transposed {
            true => [self.columns, self.rows],
            false => [self.rows, self.columns],
        }
    }

    pub(super) fn map<R2>(self, change: impl FnOnce(R) -> R2) -> MatrixOf<R2> {
        MatrixOf {
            values: change(self.values),
            rows: self.rows,
            columns: self.columns,
            is_transposed: self.is_transposed,
            format: self.format,
        }
    }
}

/// A matrix in the memory of a device.
pub type MatrixSlice<'a> = MatrixOf<DeviceSlice<'a>>;

kernels! {
    /// Matrix products and sums over rows.
    MatrixKernels {
        /// Computes `to = left * right`, or `to += left * right` if `adds`. Operands of one format may be multiplied in this
        /// format; sums and the result are f32.
        MultiplyKernel as Multiply, "multiply" {
            read_matrix left,
            read_matrix right,
            write_or_update to,
            ;
            /// Whether the product is added to `to`.
            adds: bool,
        }

        /// Computes the sum over shards of `left_s * right_s` in the order of the exact sum. A shard has consecutive columns of
        /// `left` and rows of `right`. Each product has the bits of [`MultiplyKernel`], each sum those of
        /// [`AddExactKernel`](super::AddExactKernel).
        MultiplyShardsKernel as MultiplyShards, "multiply_shards" {
            read_matrix left,
            read_matrix right,
            write to,
            ;
            /// The number of columns of `left` of each shard, at least one shard.
            shards: Arc<[usize]>,
        }

        /// Writes a row to each row of `to`.
        RepeatRowKernel as RepeatRow, "repeat_row" {
            read row,
            write to,
        }

        /// Writes the sum of all rows of `rows`, which have the length of `to`.
        SumRowsKernel as SumRows, "sum_rows" {
            read rows,
            write to,
        }
    }
}
