//! [`Activation`]: the values passed from one layer to the next.

use std::sync::Arc;

use crate::device::{Device, DeviceBuffer, DeviceSlice, DeviceSliceMut};

/// Values of any rank, f32, row-major; the first dimension is the number of samples. They lie on the host or in the
/// memory of a [`Device`].
///
/// Clones share the values; the last owner returns their memory for reuse.
#[derive(Debug, Clone)]
pub struct Activation {
    shape: Vec<usize>,
    values: Arc<DeviceBuffer>,
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
        Self {
            shape: shape.to_vec(),
            values: Arc::new(DeviceBuffer::Host(values)),
        }
    }

    /// Returns an activation without values, as the placeholder of a moved one.
    pub(crate) fn nothing() -> Self {
        Self::from_host(&[0], Vec::new())
    }

    /// Returns memory of a device with unspecified contents, to be written before it is read.
    pub(crate) fn unwritten(device: &dyn Device, shape: &[usize]) -> Self {
        Self {
            shape: shape.to_vec(),
            values: Arc::new(device.allocate(shape.iter().product())),
        }
    }

    /// Returns the values in memory that a device uses. Cost: none, or a copy between the host and the device.
    pub(crate) fn on_device(self, device: &dyn Device) -> Self {
        match (self.values.as_ref(), device.is_host()) {
            (DeviceBuffer::Host(_), true) | (DeviceBuffer::Foreign(_), false) => self,
            (DeviceBuffer::Foreign(_), true) => self.on_host(),
            (DeviceBuffer::Host(values), false) => {
                let mut there = device.allocate(values.len());
                device.write(values, there.slice_mut());
                Self {
                    shape: self.shape,
                    values: Arc::new(there),
                }
            }
        }
    }

    /// Returns the values on the host. Cost: none, or a copy from the device after its work.
    #[must_use]
    pub fn on_host(self) -> Self {
        match self.values.as_ref() {
            DeviceBuffer::Host(_) => self,
            DeviceBuffer::Foreign(_) => Self::from_host(&self.shape, self.values.slice().to_vec()),
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
        self.values.length()
    }

    /// Returns the values.
    ///
    /// # Panics
    /// When they are in the memory of a device: see [`Activation::on_host`].
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        self.values.slice().host()
    }

    /// Returns the values for the kernels of their device.
    pub(crate) fn values(&self) -> DeviceSlice<'_> {
        self.values.slice()
    }

    /// Returns the values for the kernels of their device to write. Cost: a copy when other owners share them.
    pub(crate) fn values_mut(&mut self, device: &dyn Device) -> DeviceSliceMut<'_> {
        if Arc::get_mut(&mut self.values).is_none() {
            let mut copy = device.allocate(self.elements());
            device.copy(self.values(), copy.slice_mut());
            self.values = Arc::new(copy);
        }
        let values = Arc::get_mut(&mut self.values);
        values.expect("the only owner after the copy").slice_mut()
    }

    /// Returns the same values with another shape of as many elements. Cost: none.
    pub(crate) fn reshaped(self, shape: &[usize]) -> Self {
        debug_assert_eq!(self.elements(), shape.iter().product::<usize>());
        Self {
            shape: shape.to_vec(),
            values: self.values,
        }
    }

    /// Returns the values on the host: without a copy when this is the only owner of values there, otherwise a copy.
    #[must_use]
    pub fn into_host(self) -> Vec<f32> {
        match Arc::try_unwrap(self.values) {
            Ok(mut values) => match &mut values {
                DeviceBuffer::Host(values) => std::mem::take(values),
                DeviceBuffer::Foreign(_) => values.slice().to_vec(),
            },
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
}
