//! Functions of single elements and copies on the host.

use ronde_kernels::{add_exactly, add_to, multiply_by, rectified, rectified_backward};

use super::HostDevice;
use super::threads::{part, split};
use crate::device::kernel::{
    ActivateKernel, AddExactKernel, AddKernel, CopyRowsKernel, DrawDropoutKernel, ElementKernels,
    MultiplyByKernel, OnHost, RectifyGradientKernel, RectifyKernel, RowCopy,
};

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

impl HostDevice {
    pub(super) fn run_element(&self, kernel: ElementKernels<OnHost<'_>>) {
        match kernel {
            ElementKernels::Copy(kernel) => kernel.to.copy_from_slice(kernel.from),
            ElementKernels::Fill(kernel) => kernel.to.fill(kernel.value),
            ElementKernels::Add(kernel) => self.add(kernel),
            ElementKernels::AddExact(AddExactKernel { y, x }) => self.pairs(y, x, add_exactly),
            ElementKernels::MultiplyBy(kernel) => self.multiply_by(kernel),
            ElementKernels::Rectify(kernel) => self.rectify(kernel),
            ElementKernels::RectifyGradient(kernel) => self.rectify_gradient(kernel),
            ElementKernels::Activate(kernel) => self.activate(kernel),
            ElementKernels::DrawDropout(kernel) => self.draw_dropout(kernel),
            ElementKernels::CopyRows(kernel) => self.copy_rows(kernel),
        }
    }

    fn add(&self, AddKernel { y, x }: AddKernel<OnHost<'_>>) {
        self.pairs(y, x, add_to);
    }

    fn multiply_by(&self, MultiplyByKernel { y, factors }: MultiplyByKernel<OnHost<'_>>) {
        self.pairs(y, factors, multiply_by);
    }

    fn rectify(&self, RectifyKernel { y }: RectifyKernel<OnHost<'_>>) {
        let length = y.len();
        let ranges = self.threads.ranges(length, length);
        self.threads.each(split(y, length, &ranges), rectified);
    }

    pub(super) fn rectify_gradient(
        &self,
        RectifyGradientKernel { y, dy, dx }: RectifyGradientKernel<OnHost<'_>>,
    ) {
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
        ActivateKernel {
            x,
            y,
            slope,
            function,
        }: ActivateKernel<OnHost<'_>>,
    ) {
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
        DrawDropoutKernel {
            to,
            context,
            probability,
            index,
            drawn,
        }: DrawDropoutKernel<OnHost<'_>>,
    ) {
        let rows = to.chunks_exact_mut(drawn.length.max(1));
        for (number, to) in rows.enumerate() {
            let first = (number * drawn.row + drawn.first) as u64;
            if !context.draw_dropout_from(to, probability, index, first) {
                to.fill(1.0);
            }
        }
    }

    fn copy_rows(&self, CopyRowsKernel { from, to, copy }: CopyRowsKernel<OnHost<'_>>) {
        let RowCopy {
            from: [from_row, from_start],
            to: [to_row, to_start],
            length,
        } = copy;
        let from = from.chunks_exact(from_row.max(1));
        for (to, from) in to.chunks_exact_mut(to_row.max(1)).zip(from) {
            to[to_start..to_start + length].copy_from_slice(&from[from_start..][..length]);
        }
    }
}
