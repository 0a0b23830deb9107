//! Functions of single elements and copies on the host.

use ronde_kernels::{ActivationFunction, add_to, multiply_by, rectified, rectified_backward};

use super::HostDevice;
use super::threads::{part, split};
use crate::context::ForwardContext;
use crate::device::{DeviceSlice, DeviceSliceMut, DrawnRows, ElementKernels, RowCopy};

impl HostDevice {
    /// Calls `work` for parts of `y` and the same parts of `x`, which has as many elements.
    fn pairs(&self, y: &mut [f32], x: &[f32], work: impl Fn(&mut [f32], &[f32]) + Sync) {
        let length = y.len();
        let ranges = self.threads.ranges(length, length);
        let parts = split(y, length, &ranges);
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, y)| {
                work(y, part(x, length, range));
            });
    }
}

impl ElementKernels for HostDevice {
    fn add(&self, y: DeviceSliceMut<'_>, x: DeviceSlice<'_>) {
        self.pairs(y.host(), x.host(), add_to);
    }

    fn multiply_by(&self, y: DeviceSliceMut<'_>, factors: DeviceSlice<'_>) {
        self.pairs(y.host(), factors.host(), multiply_by);
    }

    fn rectify(&self, y: DeviceSliceMut<'_>) {
        let y = y.host();
        let length = y.len();
        let ranges = self.threads.ranges(length, length);
        self.threads.each(split(y, length, &ranges), rectified);
    }

    fn rectify_gradient(&self, y: DeviceSlice<'_>, dy: DeviceSlice<'_>, dx: DeviceSliceMut<'_>) {
        let (y, dy, dx) = (y.host(), dy.host(), dx.host());
        let length = y.len();
        let ranges = self.threads.ranges(length, length);
        let parts = split(dx, length, &ranges);
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, dx)| {
                rectified_backward(part(y, length, range), part(dy, length, range), dx);
            });
    }

    fn activate(
        &self,
        function: ActivationFunction,
        x: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
        slope: Option<DeviceSliceMut<'_>>,
    ) {
        let (x, y, slope) = (x.host(), y.host(), slope.map(DeviceSliceMut::host));
        let length = x.len();
        // A function takes as long as copying tens of values.
        let ranges = self.threads.ranges(length, 16 * length);
        let mut slopes: Vec<Option<&mut [f32]>> = ranges.iter().map(|_| None).collect();
        if let Some(slope) = slope {
            let parts = split(slope, length, &ranges);
            slopes = parts.into_iter().map(Some).collect();
        }
        let parts = split(y, length, &ranges).into_iter().zip(slopes);
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, (y, slope))| {
                function.forward(part(x, length, range), y, slope);
            });
    }

    fn draw_dropout(
        &self,
        context: &ForwardContext,
        probability: f64,
        index: u64,
        drawn: DrawnRows,
        to: DeviceSliceMut<'_>,
    ) {
        let rows = to.host().chunks_exact_mut(drawn.length.max(1));
        for (number, to) in rows.enumerate() {
            let first = (number * drawn.row + drawn.first) as u64;
            if !context.draw_dropout_from(to, probability, index, first) {
                to.fill(1.0);
            }
        }
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
