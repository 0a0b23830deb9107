//! Functions of single elements and copies on the host.

use ronde_kernels::{ActivationFunction, add_to, multiply_by, rectified, rectified_backward};

use super::HostDevice;
use crate::device::{DeviceSlice, DeviceSliceMut, ElementKernels, RowCopy};

impl ElementKernels for HostDevice {
    fn add(&self, y: DeviceSliceMut<'_>, x: DeviceSlice<'_>) {
        add_to(y.host(), x.host());
    }

    fn multiply_by(&self, y: DeviceSliceMut<'_>, factors: DeviceSlice<'_>) {
        multiply_by(y.host(), factors.host());
    }

    fn rectify(&self, y: DeviceSliceMut<'_>) {
        rectified(y.host());
    }

    fn rectify_gradient(&self, y: DeviceSlice<'_>, dy: DeviceSlice<'_>, dx: DeviceSliceMut<'_>) {
        rectified_backward(y.host(), dy.host(), dx.host());
    }

    fn activate(
        &self,
        function: ActivationFunction,
        x: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
        slope: Option<DeviceSliceMut<'_>>,
    ) {
        function.forward(x.host(), y.host(), slope.map(DeviceSliceMut::host));
    }

    fn copy_rows(&self, copy: RowCopy, from: DeviceSlice<'_>, to: DeviceSliceMut<'_>) {
        let RowCopy {
            from: [from_row, from_start],
            to: [to_row, to_start],
            length,
        } = copy;
        let from = from.host().chunks_exact(from_row.max(1));
        for (to, from) in to.host().chunks_exact_mut(to_row.max(1)).zip(from) {
            to[to_start..to_start + length].copy_from_slice(&from[from_start..][..length]);
        }
    }
}
