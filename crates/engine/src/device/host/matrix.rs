//! Matrix products and sums over rows on the host.

use ronde_kernels::{Matrix, add_rows, multiply};

use super::HostDevice;
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
        multiply(matrix(left), matrix(right), to.host(), adds);
    }

    fn repeat_row(&self, row: DeviceSlice<'_>, to: DeviceSliceMut<'_>) {
        let row = row.host();
        for to in to.host().chunks_exact_mut(row.len().max(1)) {
            to.copy_from_slice(row);
        }
    }

    fn sum_rows(&self, rows: DeviceSlice<'_>, to: DeviceSliceMut<'_>) {
        let sums = to.host();
        sums.fill(0.0);
        add_rows(rows.host(), sums);
    }
}
