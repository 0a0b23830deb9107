//! Matrix products and sums over rows on the host.

use ronde_kernels::{Matrix, add_row_parts, multiply_with};

use super::HostDevice;
use super::threads::split;
use crate::device::{DeviceSlice, DeviceSliceMut, MatrixKernels, MatrixSlice};

fn matrix(of: MatrixSlice<'_>) -> Matrix<'_> {
    let matrix = Matrix::new(of.values.host(), of.rows, of.columns);
    if of.is_transposed {
        matrix.transposed()
    } else {
        matrix
    }
}

impl MatrixKernels for HostDevice {
    fn multiply(
        &self,
        left: MatrixSlice<'_>,
        right: MatrixSlice<'_>,
        to: DeviceSliceMut<'_>,
        adds: bool,
    ) {
        if let Some(products) = &self.products {
            return products.multiply(left, right, to, adds);
        }
        let format = left.format.filter(|_| left.format == right.format);
        let instructions = self.method.of(format);
        let (left, right, to) = (matrix(left), matrix(right), to.host());
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

    fn repeat_row(&self, row: DeviceSlice<'_>, to: DeviceSliceMut<'_>) {
        let (row, to) = (row.host(), to.host());
        let width = row.len().max(1);
        let rows = to.len() / width;
        let ranges = self.threads.ranges(rows, to.len());
        self.threads.each(split(to, rows, &ranges), |to| {
            for to in to.chunks_exact_mut(width) {
                to.copy_from_slice(row);
            }
        });
    }

    fn sum_rows(&self, rows: DeviceSlice<'_>, to: DeviceSliceMut<'_>) {
        let (rows, sums) = (rows.host(), to.host());
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
