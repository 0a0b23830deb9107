//! Matrix products and sums over rows on the host.

use ronde_kernels::{Matrix, add_row_parts, multiply_in_tree, multiply_with};

use super::HostDevice;
use super::threads::split;
use crate::device::kernel::{
    MatrixKernels, MatrixOf, MultiplyKernel, MultiplyShardsKernel, OnHost, RepeatRowKernel,
    SumRowsKernel,
};

fn matrix(of: MatrixOf<&[f32]>) -> Matrix<'_> {
    let matrix = Matrix::new(of.values, of.rows, of.columns);
    if of.is_transposed {
        matrix.transposed()
    } else {
        matrix
    }
}

impl HostDevice {
    pub(super) fn run_matrix(&self, kernel: MatrixKernels<OnHost<'_>>) {
        match kernel {
            MatrixKernels::Multiply(kernel) => self.multiply(kernel),
            MatrixKernels::MultiplyShards(kernel) => self.multiply_shards(kernel),
            MatrixKernels::RepeatRow(kernel) => self.repeat_row(kernel),
            MatrixKernels::SumRows(kernel) => self.sum_rows(kernel),
        }
    }

    fn multiply(
        &self,
        MultiplyKernel {
            left,
            right,
            to,
            adds,
        }: MultiplyKernel<OnHost<'_>>,
    ) {
        let format = left.format.filter(|_| left.format == right.format);
        let instructions = self.method.of(format);
        let (left, right) = (matrix(left), matrix(right));
        let rows = left.rows();
        // Each row of the output takes as many operations as reading the right matrix.
        let work = rows * right.rows() * right.columns() / 8;
        let ranges = self.threads.ranges(rows, work);
        let parts = split(to, rows, &ranges);
        self.threads
            .each(ranges.into_iter().zip(parts).collect(), |(rows, to)| {
                multiply_with(instructions, left.some_rows(rows), right, to, adds);
            });
    }

    fn multiply_shards(
        &self,
        MultiplyShardsKernel {
            left,
            right,
            to,
            shards,
        }: MultiplyShardsKernel<OnHost<'_>>,
    ) {
        let format = left.format.filter(|_| left.format == right.format);
        let instructions = self.method.of(format);
        let (left, right) = (matrix(left), matrix(right));
        let rows = left.rows();
        let work = rows * right.rows() * right.columns() / 8;
        let ranges = self.threads.ranges(rows, work);
        let parts = split(to, rows, &ranges);
        self.threads
            .each(ranges.into_iter().zip(parts).collect(), |(rows, to)| {
                multiply_in_tree(instructions, left.some_rows(rows), right, &shards, to);
            });
    }

    fn repeat_row(&self, RepeatRowKernel { row, to }: RepeatRowKernel<OnHost<'_>>) {
        let width = row.len().max(1);
        let rows = to.len() / width;
        let ranges = self.threads.ranges(rows, to.len());
        self.threads.each(split(to, rows, &ranges), |to| {
            for to in to.chunks_exact_mut(width) {
                to.copy_from_slice(row);
            }
        });
    }

    fn sum_rows(&self, SumRowsKernel { rows, to: sums }: SumRowsKernel<OnHost<'_>>) {
        let width = sums.len();
        let ranges = self.threads.ranges(width, rows.len());
        let parts = split(sums, width, &ranges);
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(columns, sums)| {
                sums.fill(0.0);
                add_row_parts(rows, width, columns.start, sums);
            });
    }
}
