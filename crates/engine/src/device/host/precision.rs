//! Short formats on the host.

use std::ops::Range;

use ronde_kernels::{ShortFormat, pack_short, round_short, unpack_short};

use super::HostDevice;
use super::threads::split;
use crate::device::{DeviceSlice, DeviceSliceMut, PrecisionKernels};

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

impl PrecisionKernels for HostDevice {
    fn round(&self, format: ShortFormat, values: DeviceSliceMut<'_>) {
        let values = values.host();
        let length = values.len();
        let parts = split(values, length, &self.blocks(length));
        self.threads
            .each(parts, |values| round_short(format, values));
    }

    fn pack(&self, format: ShortFormat, values: DeviceSlice<'_>, to: DeviceSliceMut<'_>) {
        let (values, to) = (values.host(), to.host());
        let (ranges, floats) = (self.blocks(values.len()), to.len());
        let to_ranges: Vec<Range<usize>> = ranges.iter().map(packed).collect();
        let parts = ranges.into_iter().zip(split(to, floats, &to_ranges));
        self.threads.each(parts.collect(), |(range, to)| {
            pack_short(format, &values[range], to);
        });
    }

    fn unpack(&self, format: ShortFormat, from: DeviceSlice<'_>, values: DeviceSliceMut<'_>) {
        let (from, values) = (from.host(), values.host());
        let length = values.len();
        let ranges = self.blocks(length);
        let parts = split(values, length, &ranges);
        let parts = ranges.iter().map(packed).zip(parts);
        self.threads.each(parts.collect(), |(range, values)| {
            unpack_short(format, &from[range], values);
        });
    }
}
