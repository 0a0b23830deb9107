//! [`Activation`]: the values passed from one layer to the next.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use ronde_kernels::ShortFormat;

use crate::device::kernel::{CopyKernel, MatrixSlice, PackKernel, RoundKernel, UnpackKernel};
use crate::device::{Device, DeviceBuffer, DeviceSlice, DeviceSliceMut, PlanningDevice};

/// Values of any rank, f32, row-major; the first dimension is the number of samples. They are on the host or in the
/// memory of a [`Device`].
///
/// Clones share the values; the last owner returns their memory for reuse.
#[derive(Debug, Clone)]
pub struct Activation {
    shape: Vec<usize>,
    /// `None` while only the packed values are there.
    values: Option<SharedRange>,
    /// The format to which all values are rounded.
    rounded_to: Option<ShortFormat>,
    /// The same values in 2 bytes, which clones share, once one of them is packed.
    packed: Arc<OnceLock<PackedValues>>,
    /// What clones have in common, also without the values.
    identity: Arc<()>,
}

/// The values of an activation: a range of memory, the rest of which may have the values of the samples before and after it.
#[derive(Debug, Clone)]
struct SharedRange {
    buffer: Arc<DeviceBuffer>,
    range: Range<usize>,
}

impl SharedRange {
    fn new(buffer: DeviceBuffer) -> Self {
        Self {
            range: 0..buffer.length(),
            buffer: Arc::new(buffer),
        }
    }

    fn is_whole(&self) -> bool {
        self.range == (0..self.buffer.length())
    }

    fn slice(&self) -> DeviceSlice<'_> {
        match self.is_whole() {
            true => self.buffer.slice(),
            false => self.buffer.slice().range(self.range.clone()),
        }
    }

    /// Returns the values for changes; `None` if other owners share the memory.
    fn slice_mut(&mut self) -> Option<DeviceSliceMut<'_>> {
        let range = self.range.clone();
        let buffer = Arc::get_mut(&mut self.buffer)?;
        Some(buffer.slice_mut().range(range))
    }

    /// Returns whether other values begin in the same memory where these end.
    fn is_before(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer) && self.range.end == other.range.start
    }
}

/// Values in a format of 2 bytes.
#[derive(Debug)]
struct PackedValues {
    format: ShortFormat,
    buffer: DeviceBuffer,
}

impl Activation {
    /// Takes ownership of values on the host. Cost: none.
    ///
    /// # Panics
    /// When the number of values does not match `shape`.
    #[must_use]
    pub fn from_host(shape: &[usize], values: Vec<f32>) -> Self {
        let elements: usize = shape.iter().product();
        assert_eq!(
            values.len(),
            elements,
            "{} values for shape {shape:?}",
            values.len()
        );
        Self::from_buffer(shape.to_vec(), DeviceBuffer::Host(values.into()))
    }

    fn from_buffer(shape: Vec<usize>, values: DeviceBuffer) -> Self {
        Self {
            shape,
            values: Some(SharedRange::new(values)),
            rounded_to: None,
            packed: Arc::default(),
            identity: Arc::default(),
        }
    }

    /// Returns an activation without values, as the placeholder of a moved one.
    pub(crate) fn nothing() -> Self {
        Self::from_host(&[0], Vec::new())
    }

    /// Returns memory of a device with unspecified contents, to be written before it is read.
    pub(crate) fn unwritten(device: &dyn Device, shape: &[usize]) -> Self {
        let values = device.allocate(shape.iter().product());
        Self::from_buffer(shape.to_vec(), values)
    }

    /// Returns memory of a device for packed values, to be written before they are read.
    pub(crate) fn unwritten_packed(
        device: &dyn Device,
        shape: &[usize],
        format: ShortFormat,
    ) -> Self {
        let buffer = device.allocate(ShortFormat::packed_length(shape.iter().product()));
        Self {
            shape: shape.to_vec(),
            values: None,
            rounded_to: Some(format),
            packed: Arc::new(OnceLock::from(PackedValues { format, buffer })),
            identity: Arc::default(),
        }
    }

    /// Returns the planned values of samples, from outside.
    pub(crate) fn sample(device: &PlanningDevice, shape: &[usize]) -> Self {
        Self::from_buffer(shape.to_vec(), device.on_heap(shape.iter().product()))
    }

    /// Returns the values in memory that a device uses. Cost: none, or a copy between the host and the device.
    pub(crate) fn on_device(mut self, device: &dyn Device) -> Self {
        self.unpack(device);
        match (self.values(), device.is_host()) {
            (DeviceSlice::Host(_), true) | (DeviceSlice::Foreign { .. }, false) => self,
            (DeviceSlice::Foreign { .. }, true) => self.on_host(),
            (DeviceSlice::Host(values), false) => {
                let mut there = device.allocate(values.len());
                device.write(values, there.slice_mut());
                Self::from_buffer(self.shape, there)
            }
        }
    }

    /// Returns the values on the host. Cost: none, or a copy from the device after its work.
    #[must_use]
    pub fn on_host(self) -> Self {
        match self.values() {
            DeviceSlice::Host(_) => self,
            foreign @ DeviceSlice::Foreign { .. } => Self::from_host(&self.shape, foreign.to_vec()),
        }
    }

    /// Returns the length of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of samples: the first dimension, 1 for a scalar.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the values.
    ///
    /// # Panics
    /// When they are in the memory of a device: see [`Activation::on_host`].
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        self.values().host()
    }

    /// Returns the values for the kernels of their device. A layer that packed them unpacks them before it passes them on.
    pub(crate) fn values(&self) -> DeviceSlice<'_> {
        let values = self.values.as_ref();
        let values = values.expect("values are unpacked before they are read");
        values.slice()
    }

    /// Returns the values for the kernels of their device to write. Cost: a copy when other owners share them.
    pub(crate) fn values_mut(&mut self, device: &dyn Device) -> DeviceSliceMut<'_> {
        self.rounded_to = None;
        if Arc::get_mut(&mut self.packed).is_none_or(|packed| packed.get().is_some()) {
            self.packed = Arc::default();
        }
        self.become_another();
        self.own_values(device)
    }

    /// Is no longer the value of its clones.
    fn become_another(&mut self) {
        if Arc::get_mut(&mut self.identity).is_none() {
            self.identity = Arc::default();
        }
    }

    /// Returns the format of packed values that are there alone.
    pub(crate) fn packed_format(&self) -> Option<ShortFormat> {
        let packed = self.packed.get().filter(|_| self.values.is_none());
        packed.map(|packed| packed.format)
    }

    /// Returns the packed values.
    pub(crate) fn packed_values(&self) -> DeviceSlice<'_> {
        let packed = self.packed.get();
        let packed = packed.expect("values are packed before they are read as such");
        packed.buffer.slice()
    }

    /// Returns packed values that have no other owner, to be written.
    pub(crate) fn packed_values_mut(&mut self) -> DeviceSliceMut<'_> {
        let packed = Arc::get_mut(&mut self.packed).and_then(OnceLock::get_mut);
        let packed = packed.expect("packed values of one owner");
        packed.buffer.slice_mut()
    }

    /// Prepares packed values for changes. If they have other owners, the memory is another, and what is returned has the
    /// values.
    pub(crate) fn make_own(&mut self, device: &dyn Device) -> Option<Self> {
        let format = self.packed_format()?;
        self.become_another();
        if Arc::get_mut(&mut self.packed).is_some() {
            return None;
        }
        let own = Self::unwritten_packed(device, &self.shape, format);
        Some(std::mem::replace(self, own))
    }

    /// Returns the values for changes that keep them equal to the packed ones.
    fn own_values(&mut self, device: &dyn Device) -> DeviceSliceMut<'_> {
        let mut own = self.values.take().unwrap_or_else(|| {
            unreachable!("values are unpacked before they are written");
        });
        if own.slice_mut().is_none() {
            let mut copy = device.allocate(own.range.len());
            CopyKernel {
                from: own.slice(),
                to: copy.slice_mut(),
            }
            .run_on(device);
            own = SharedRange::new(copy);
        }
        let own = self.values.insert(own).slice_mut();
        own.expect("the only owner after the copy")
    }

    /// Returns the format to which all values are rounded.
    pub(crate) fn rounded_to(&self) -> Option<ShortFormat> {
        self.rounded_to
    }

    /// Returns some of the values as a matrix of `rows` by `columns`.
    pub(crate) fn matrix<'a>(
        &self,
        values: DeviceSlice<'a>,
        rows: usize,
        columns: usize,
    ) -> MatrixSlice<'a> {
        MatrixSlice::new(values, rows, columns).rounded_to(self.rounded_to)
    }

    /// Returns a handle without values of the clones of this one.
    pub(crate) fn handle(&self) -> Self {
        let mut handle = self.clone();
        handle.leave();
        handle
    }

    /// Returns whether another activation is a clone, or a handle of the clones, with the same values.
    pub(crate) fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity)
    }

    /// Drops the values, which are computed again before they are read.
    pub(crate) fn leave(&mut self) {
        self.values = None;
        self.packed = Arc::default();
    }

    /// Takes the values of a clone that was computed again, unless it has values.
    pub(crate) fn restore(&mut self, again: &Self) {
        if !self.has_values() {
            self.values.clone_from(&again.values);
            self.packed.clone_from(&again.packed);
            self.rounded_to = again.rounded_to;
        }
    }

    /// Returns whether there are values, packed or not.
    pub(crate) fn has_values(&self) -> bool {
        self.values.is_some() || self.packed.get().is_some()
    }

    /// Rounds the values to a format. Cost: one pass, or none when it was done before; a copy when other owners share them.
    pub(crate) fn round(&mut self, device: &dyn Device, format: ShortFormat) {
        if self.rounded_to != Some(format) {
            self.become_another();
            RoundKernel {
                format,
                values: self.own_values(device),
            }
            .run_on(device);
            self.rounded_to = Some(format);
        }
    }

    /// Keeps only the packed values, rounded to a format, which clones share. Cost: one pass, or none when a clone was packed.
    pub(crate) fn pack(&mut self, device: &dyn Device, format: ShortFormat) {
        if self.values.is_some() {
            self.fill_packed(device, format);
            self.values = None;
            self.rounded_to = Some(format);
        }
    }

    fn fill_packed(&mut self, device: &dyn Device, format: ShortFormat) {
        if self.packed_as(format).is_none() {
            let mut buffer = device.allocate(ShortFormat::packed_length(self.elements()));
            PackKernel {
                format,
                values: self.values(),
                packed: buffer.slice_mut(),
            }
            .run_on(device);
            self.set_packed(PackedValues { format, buffer });
        }
    }

    fn packed_as(&self, format: ShortFormat) -> Option<&PackedValues> {
        let packed = self.packed.get();
        packed.filter(|packed| packed.format == format)
    }

    /// Stores a packed form for all clones, or only for this one when the clones have another format.
    fn set_packed(&mut self, packed: PackedValues) {
        if let Err(packed) = self.packed.set(packed) {
            self.packed = Arc::new(OnceLock::from(packed));
        }
    }

    /// Drops the values if their packed form is kept.
    pub(crate) fn drop_unpacked(&mut self) {
        if let Some(packed) = self.packed.get() {
            self.rounded_to = Some(packed.format);
            self.values = None;
        }
    }

    /// Returns the values as f32. Cost: one pass if only the packed ones are there.
    pub(crate) fn unpacked(&self, device: &dyn Device) -> Self {
        let mut values = self.clone();
        values.unpack(device);
        values
    }

    /// Writes the packed values as f32 again, if only they are kept. Cost: one pass.
    pub(crate) fn unpack(&mut self, device: &dyn Device) {
        if self.values.is_some() {
            return;
        }
        let packed = self.packed.get();
        let PackedValues { format, buffer } = packed.expect("packed values before others drop");
        let mut values = device.allocate(self.elements());
        UnpackKernel {
            format: *format,
            packed: buffer.slice(),
            values: values.slice_mut(),
        }
        .run_on(device);
        self.values = Some(SharedRange::new(values));
        self.rounded_to = Some(*format);
    }

    /// Returns a copy of consecutive samples.
    ///
    /// # Panics
    /// When the values are in the memory of a device, or there are fewer samples.
    #[must_use]
    pub fn part(&self, samples: Range<usize>) -> Self {
        let each = self.elements() / self.samples().max(1);
        let mut shape = self.shape.clone();
        shape[0] = samples.len();
        let values = &self.as_slice()[samples.start * each..samples.end * each];
        Self {
            rounded_to: self.rounded_to,
            ..Self::from_host(&shape, values.to_vec())
        }
    }

    /// Joins the samples of activations, which have one shape otherwise.
    ///
    /// # Panics
    /// When values are in the memory of a device.
    #[must_use]
    pub fn joined(parts: Vec<Self>) -> Self {
        let mut shape = parts
            .first()
            .map_or_else(|| vec![0], |part| part.shape.clone());
        shape[0] = parts.iter().map(Self::samples).sum();
        let mut rounded = parts.iter().map(|part| part.rounded_to);
        let first = rounded.next().flatten();
        let is_rounded = rounded.all(|format| format == first);
        let mut values = Vec::with_capacity(shape.iter().product());
        for part in parts {
            values.extend_from_slice(part.as_slice());
        }
        Self {
            rounded_to: first.filter(|_| is_rounded),
            ..Self::from_host(&shape, values)
        }
    }

    /// Joins f32 values of several shards, one sample after the other. Cost: none if they are the [parts](Self::divided) of one
    /// value, else a copy.
    pub(crate) fn together(device: &dyn Device, mut parts: Vec<Self>) -> Self {
        if parts.len() == 1 {
            return parts.swap_remove(0);
        }
        let mut joined = Self {
            packed: Arc::default(),
            identity: Arc::default(),
            ..parts.first().map_or_else(Self::nothing, Self::clone)
        };
        joined.shape[0] = parts.iter().map(Self::samples).sum();
        if parts.iter().any(|p| p.rounded_to != joined.rounded_to) {
            joined.rounded_to = None;
        }
        let values = parts.iter().map(|part| {
            let values = part.values.as_ref();
            values.expect("values are unpacked before they are joined")
        });
        let mut filled = values.clone().filter(|values| !values.range.is_empty());
        let mut pairs = filled.clone().zip(filled.clone().skip(1));
        if pairs.all(|(before, after)| before.is_before(after)) {
            if let Some(first) = filled.next() {
                let last = filled.next_back().unwrap_or(first);
                let range = first.range.start..last.range.end;
                joined.values = Some(SharedRange {
                    range,
                    ..first.clone()
                });
            }
            return joined;
        }
        let mut memory = device.allocate(joined.elements());
        let mut start = 0;
        for values in filled {
            let range = start..start + values.range.len();
            start = range.end;
            CopyKernel {
                from: values.slice(),
                to: memory.slice_mut().range(range),
            }
            .run_on(device);
        }
        joined.values = Some(SharedRange::new(memory));
        joined
    }

    /// Divides f32 values into parts of consecutive samples, which share the memory. Cost: none.
    pub(crate) fn divided(self, samples: impl IntoIterator<Item = Range<usize>>) -> Vec<Self> {
        let each = self.elements() / self.samples().max(1);
        let values = self.values.as_ref();
        let values = values.expect("values are unpacked before they are divided");
        let part = |samples: Range<usize>| {
            let mut shape = self.shape.clone();
            shape[0] = samples.len();
            let start = values.range.start;
            Self {
                shape,
                values: Some(SharedRange {
                    buffer: values.buffer.clone(),
                    range: start + samples.start * each..start + samples.end * each,
                }),
                rounded_to: self.rounded_to,
                packed: Arc::default(),
                identity: Arc::default(),
            }
        };
        samples.into_iter().map(part).collect()
    }

    /// Returns the values of some samples, which share the memory. Cost: none. Only all of packed values.
    pub(crate) fn some_samples(&self, samples: &Range<usize>) -> Self {
        let whole = self.clone();
        if *samples == (0..self.samples()) {
            return whole;
        }
        let parts = whole.divided([samples.clone()]);
        parts.into_iter().next().unwrap_or_else(Self::nothing)
    }

    /// Returns the same values with another shape of as many elements. Cost: none.
    pub(crate) fn reshaped(self, shape: &[usize]) -> Self {
        debug_assert_eq!(self.elements(), shape.iter().product::<usize>());
        Self {
            shape: shape.to_vec(),
            ..self
        }
    }

    /// Returns the values for changes on the host. `None` if other owners share them or they are in the memory of a device.
    pub fn host_mut(&mut self) -> Option<&mut [f32]> {
        let values = self.values.as_mut().and_then(SharedRange::slice_mut)?;
        let DeviceSliceMut::Host(values) = values else {
            return None;
        };
        self.rounded_to = None;
        self.packed = Arc::default();
        self.identity = Arc::default();
        Some(values)
    }

    /// Returns the values on the host. Cost: a copy, unless this is the only owner of values that were created from a vector.
    #[must_use]
    pub fn into_host(mut self) -> Vec<f32> {
        let values = self.values.take();
        let values = values.expect("values are unpacked before they are read");
        if !values.is_whole() {
            return values.slice().to_vec();
        }
        match Arc::try_unwrap(values.buffer) {
            Ok(DeviceBuffer::Host(values)) => values.into_vec(),
            Ok(foreign) => foreign.slice().to_vec(),
            Err(shared) => shared.slice().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unique_vec_goes_through_without_a_copy() {
        let values = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let at = values.as_ptr();
        let activation = Activation::from_host(&[2, 3], values);
        assert_eq!(activation.shape(), [2, 3]);
        assert_eq!(activation.samples(), 2);
        let back = activation.into_host();
        assert_eq!(back.as_ptr(), at);
        assert_eq!(back, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn a_shared_activation_is_copied_before_it_changes() {
        let device = crate::HostDevice::new();
        let mut changed = Activation::from_host(&[2], vec![1.0, 2.0]);
        let other = changed.clone();
        changed.values_mut(&device).host()[0] = 5.0;
        assert_eq!(
            (changed.as_slice(), other.as_slice()),
            (&[5.0, 2.0][..], &[1.0, 2.0][..])
        );
        let at = changed.as_slice().as_ptr();
        changed.values_mut(&device).host()[1] = 6.0;
        let back = changed.reshaped(&[2, 1]).into_host();
        assert_eq!(back.as_ptr(), at);
    }

    #[test]
    fn clones_share_one_packed_copy_until_one_of_them_changes() {
        let device = crate::PlanningDevice::new();
        let mut first = Activation::unwritten(&device, &[10, 10]);
        first.round(&device, ShortFormat::Bf16);
        let mut second = first.clone().reshaped(&[100]);
        let mut changed = first.clone();
        first.pack(&device, ShortFormat::Bf16);
        second.pack(&device, ShortFormat::Bf16);
        assert_eq!(device.memory().in_use, 150, "f32 of `changed`, packed once");
        changed.values_mut(&device);
        changed.pack(&device, ShortFormat::Bf16);
        assert_eq!(device.memory().in_use, 100);
        assert!(second.is_clone_of(&first) && !changed.is_clone_of(&first));
        drop(first);
        second.unpack(&device);
        assert_eq!((device.memory().in_use, second.shape()), (200, &[100][..]));
    }

    #[test]
    fn packed_values_are_the_rounded_ones() {
        let device = crate::HostDevice::new();
        let values = vec![1.0 + 1.0 / 1024.0, -3.0, 1e-9];
        let mut output = Activation::from_host(&[3], values);
        let mut kept = output.clone();
        kept.pack(&device, ShortFormat::Bf16);
        output.round(&device, ShortFormat::Bf16);
        kept.unpack(&device);
        assert_eq!(kept.as_slice(), output.as_slice());
        assert_eq!(output.as_slice()[..2], [1.0, -3.0]);
        // A change, and a value that is not rounded, have separate packed forms.
        output.values_mut(&device).host()[0] = 7.0;
        output.pack(&device, ShortFormat::F16);
        output.unpack(&device);
        assert_eq!((output.as_slice()[0], kept.as_slice()[0]), (7.0, 1.0));
    }

    #[test]
    fn a_value_that_was_left_is_restored_in_its_form() {
        let device = crate::HostDevice::new();
        let mut value = Activation::from_host(&[2], vec![1.0, 2.0]);
        value.pack(&device, ShortFormat::F16);
        let (mut left, handle) = (value.clone(), value.handle());
        left.leave();
        assert!(!left.has_values() && !handle.has_values() && left.is_clone_of(&handle));
        left.restore(&value);
        assert_eq!(left.unpacked(&device).as_slice(), [1.0, 2.0]);
    }
}
