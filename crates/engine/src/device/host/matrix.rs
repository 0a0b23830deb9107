//! Matrix products and sums over rows on the host.

use ronde_kernels::{Matrix, Products, add_row_parts, multiply_in_tree, multiply_with};

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

    fn multiply(&self, kernel: MultiplyKernel<OnHost<'_>>) {
        let adds = kernel.adds;
        let product = |products, left: Matrix<'_>, right: Matrix<'_>, to: &mut [f32]| {
            multiply_with(products, left, right, to, adds);
        };
        self.multiply_rows([kernel.left, kernel.right], kernel.to, product);
    }

    fn multiply_shards(&self, kernel: MultiplyShardsKernel<OnHost<'_>>) {
        let shards = kernel.shards;
        let product = |products, left: Matrix<'_>, right: Matrix<'_>, to: &mut [f32]| {
            multiply_in_tree(products, left, right, &shards, to);
        };
        self.multiply_rows([kernel.left, kernel.right], kernel.to, product);
    }

    /// Computes the rows of a product on all threads.
    fn multiply_rows(
        &self,
        [left, right]: [MatrixOf<&[f32]>; 2],
        to: &mut [f32],
        product: impl Fn(Products, Matrix<'_>, Matrix<'_>, &mut [f32]) + Sync,
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
                product(instructions, left.some_rows(rows), right, to);
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
