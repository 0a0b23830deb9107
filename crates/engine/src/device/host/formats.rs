//! Short formats on the host.

use std::ops::Range;

use ronde_kernels::{ShortFormat, pack_short, round_short, unpack_short};

use super::HostDevice;
use super::threads::split;
use crate::device::kernel::{FormatKernels, OnHost, PackKernel, RoundKernel, UnpackKernel};

/// The least number of values of a thread: whole groups of packed values.
const BLOCK: usize = 16_384;

impl HostDevice {
    /// Returns the parts of `length` values that threads compute, as ranges of whole blocks but for the last.
    fn blocks(&self, length: usize) -> Vec<Range<usize>> {
        let ranges = self.threads.ranges(length.div_ceil(BLOCK), length);
        let whole = |block: usize| (block * BLOCK).min(length);
        let ranges = ranges.into_iter();
        ranges
            .map(|range| whole(range.start)..whole(range.end))
            .collect()
    }
}

/// Returns the range of packed values of a range of whole blocks.
fn packed(values: &Range<usize>) -> Range<usize> {
    ShortFormat::packed_length(values.start)..ShortFormat::packed_length(values.end)
}

impl HostDevice {
    pub(super) fn run_format(&self, kernel: FormatKernels<OnHost<'_>>) {
        match kernel {
            FormatKernels::Round(kernel) => self.round(kernel),
            FormatKernels::Pack(kernel) => self.pack(kernel),
            FormatKernels::Unpack(kernel) => self.unpack(kernel),
        }
    }

    fn round(&self, RoundKernel { values, format }: RoundKernel<OnHost<'_>>) {
        let length = values.len();
        let parts = split(values, length, &self.blocks(length));
        self.threads
            .each(parts, |values| round_short(format, values));
    }

    fn pack(
        &self,
        PackKernel {
            values,
            packed: to,
            format,
        }: PackKernel<OnHost<'_>>,
    ) {
        let (ranges, floats) = (self.blocks(values.len()), to.len());
        let to_ranges: Vec<Range<usize>> = ranges.iter().map(packed).collect();
        let parts = ranges.into_iter().zip(split(to, floats, &to_ranges));
        self.threads.each(parts.collect(), |(range, to)| {
            pack_short(format, &values[range], to);
        });
    }

    fn unpack(
        &self,
        UnpackKernel {
            packed: from,
            values,
            format,
        }: UnpackKernel<OnHost<'_>>,
    ) {
        let length = values.len();
        let ranges = self.blocks(length);
        let parts = split(values, length, &ranges);
        let parts = ranges.iter().map(packed).zip(parts);
        self.threads.each(parts.collect(), |(range, values)| {
            unpack_short(format, &from[range], values);
        });
    }
}
