//! [`Blocks`]: kernels that read and write packed values, block by block.
//!
//! A block of samples or rows is unpacked, computed in f32, and packed; except for products, it stays in the second-level cache.
//! Blocks depend only on the shapes of all operands, so the bits do not depend on the cluster, and only a block exists in f32.
//! Whole groups of packed values are at the offsets of their values, so a block is a range.

use std::ops::Range;

use ronde_kernels::ShortFormat;

use crate::activation::Activation;
use crate::device::kernel::{PackKernel, UnpackKernel};
use crate::device::{Device, DeviceBuffer, DeviceSlice, DeviceSliceMut};

/// The number of floats of each operand in a block, so that all of them stay in the second-level cache.
const CACHED: usize = 1 << 16;
/// The number of floats of the longest operand in a block of a matrix product, whose cost per row falls with the rows.
const PRODUCT: usize = 1 << 19;

/// Runs kernels on values of some units, such as samples, rows or elements, that need nothing of each other. If all operands
/// are f32, a kernel runs once. Packed ones are unpacked and packed in blocks of units that depend only on the shapes of all
/// operands, so their values in f32 take little memory.
pub(crate) struct Blocks<'a> {
    device: &'a dyn Device,
    units: usize,
    floats: usize,
}

/// An operand in f32: in its own memory, or a block of it in other memory.
struct Operand {
    /// The number of values of a unit.
    each: usize,
    packed: Option<(ShortFormat, DeviceBuffer)>,
}

impl Operand {
    fn new(blocks: &Blocks<'_>, of: &Activation, block: usize) -> Self {
        let each = blocks.each(of);
        let format = of.packed_format();
        Self {
            each,
            packed: format.map(|format| (format, blocks.device.allocate(block * each))),
        }
    }

    /// Returns the values of some units.
    fn read<'b>(
        &'b mut self,
        device: &dyn Device,
        from: &'b Activation,
        units: &Range<usize>,
    ) -> DeviceSlice<'b> {
        let range = units.start * self.each..units.end * self.each;
        match &mut self.packed {
            None => from.values().range(range),
            Some((format, values)) => {
                let length = range.len();
                let from = from.packed_values().range(floats(&range));
                UnpackKernel {
                    format: *format,
                    packed: from,
                    values: values.slice_mut().range(0..length),
                }
                .run_on(device);
                values.slice().range(0..length)
            }
        }
    }

    /// Returns the place of the values of some units.
    fn place<'b>(
        &'b mut self,
        device: &dyn Device,
        to: &'b mut Activation,
        units: &Range<usize>,
    ) -> DeviceSliceMut<'b> {
        let range = units.start * self.each..units.end * self.each;
        match &mut self.packed {
            None => to.values_mut(device).range(range),
            Some((_, values)) => values.slice_mut().range(0..range.len()),
        }
    }

    /// Packs what was written to the place of some units.
    fn write(&self, device: &dyn Device, to: &mut Activation, units: &Range<usize>) {
        if let Some((format, values)) = &self.packed {
            let range = units.start * self.each..units.end * self.each;
            let values = values.slice().range(0..range.len());
            PackKernel {
                format: *format,
                values,
                packed: to.packed_values_mut().range(floats(&range)),
            }
            .run_on(device);
        }
    }
}

/// Returns the floats of a range of packed values.
fn floats(values: &Range<usize>) -> Range<usize> {
    ShortFormat::packed_length(values.start)..ShortFormat::packed_length(values.end)
}

impl<'a> Blocks<'a> {
    /// Kernels with little work for each value.
    pub(crate) fn new(device: &'a dyn Device, units: usize) -> Self {
        Self {
            device,
            units,
            floats: CACHED,
        }
    }

    /// Matrix products and convolutions.
    pub(crate) fn of_products(device: &'a dyn Device, units: usize) -> Self {
        Self {
            device,
            units,
            floats: PRODUCT,
        }
    }

    fn each(&self, values: &Activation) -> usize {
        values.elements() / self.units.max(1)
    }

    /// Returns the number of units of a block: whole groups of packed values. If any operand is packed, only the shapes of
    /// all count: the same gradient may be packed or not, and the bits of sums must not depend on that.
    fn units_of_block<'v>(&self, operands: impl Iterator<Item = &'v Activation>) -> usize {
        let operands: Vec<&Activation> = operands.collect();
        let mut each_packed = operands.iter().filter_map(|of| of.packed_format());
        if each_packed.next().is_none() {
            return self.units;
        }
        let lengths: Vec<usize> = operands.iter().map(|of| self.each(of)).collect();
        let longest = lengths.iter().max();
        let group = ShortFormat::GROUP;
        let aligned = |each: &usize| group >> each.trailing_zeros().min(group.trailing_zeros());
        let whole = lengths.iter().map(aligned).max().unwrap_or(1);
        let units = self.floats / longest.copied().unwrap_or(1).max(1) / whole * whole;
        units.max(whole).min(self.units)
    }

    /// Returns the blocks: one without units if there are none.
    fn ranges(&self, block: usize) -> impl Iterator<Item = Range<usize>> {
        let units = self.units;
        let count = units.div_ceil(block.max(1)).max(1);
        (0..count).map(move |index| index * block..((index + 1) * block).min(units))
    }

    /// Calls a kernel with the units, the inputs and the places of the outputs of each block.
    pub(crate) fn run<const N: usize, const M: usize>(
        &self,
        inputs: [&Activation; N],
        mut outputs: [&mut Activation; M],
        mut kernel: impl FnMut(Range<usize>, [DeviceSlice<'_>; N], [DeviceSliceMut<'_>; M]),
    ) {
        let written = outputs.iter().map(|output| &**output);
        let block = self.units_of_block(inputs.iter().copied().chain(written));
        let mut read = inputs.map(|input| Operand::new(self, input, block));
        let mut written = outputs.each_ref().map(|to| Operand::new(self, to, block));
        for units in self.ranges(block) {
            let mut from = read.iter_mut().zip(inputs);
            let from = std::array::from_fn(|_| {
                let (operand, input) = from.next().expect("an operand for each input");
                operand.read(self.device, input, &units)
            });
            let mut to = written.iter_mut().zip(&mut outputs);
            let to = std::array::from_fn(|_| {
                let (operand, output) = to.next().expect("an operand for each output");
                operand.place(self.device, output, &units)
            });
            kernel(units.clone(), from, to);
            for (operand, output) in written.iter().zip(&mut outputs) {
                operand.write(self.device, output, &units);
            }
        }
    }

    /// Calls a kernel that changes values in place, likewise.
    pub(crate) fn change<const N: usize>(
        &self,
        value: &mut Activation,
        inputs: [&Activation; N],
        mut kernel: impl FnMut(Range<usize>, DeviceSliceMut<'_>, [DeviceSlice<'_>; N]),
    ) {
        let block = self.units_of_block(inputs.iter().copied().chain([&*value]));
        // Packed values of other owners stay as they are.
        let shared = value.make_own(self.device);
        let mut changed = Operand::new(self, value, block);
        let mut read = inputs.map(|input| Operand::new(self, input, block));
        for units in self.ranges(block) {
            changed.read(self.device, shared.as_ref().unwrap_or(value), &units);
            let mut from = read.iter_mut().zip(inputs);
            let from = std::array::from_fn(|_| {
                let (operand, input) = from.next().expect("an operand for each input");
                operand.read(self.device, input, &units)
            });
            kernel(
                units.clone(),
                changed.place(self.device, value, &units),
                from,
            );
            changed.write(self.device, value, &units);
        }
    }
}
