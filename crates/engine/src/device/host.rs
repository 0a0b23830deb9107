//! [`HostDevice`]: the kernels of `ronde-kernels` in ordinary memory.

mod elements;
mod images;
mod matrix;
mod norms;
mod sequences;
mod tables;

pub(crate) use norms::statistics_values;

use super::{Device, DeviceBuffer, DeviceSlice, DeviceSliceMut};
use crate::host::engine_name;
use crate::memory::take;

/// The processor: kernels compiled for its instruction sets, on ordinary memory.
#[derive(Debug, Default)]
pub struct HostDevice {}

impl HostDevice {
    /// Creates the device. Cost: none.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Device for HostDevice {
    fn name(&self) -> String {
        engine_name()
    }

    fn allocate(&self, length: usize) -> DeviceBuffer {
        DeviceBuffer::Host(take(length))
    }

    fn is_host(&self) -> bool {
        true
    }

    fn write(&self, from: &[f32], to: DeviceSliceMut<'_>) {
        to.host().copy_from_slice(from);
    }

    fn copy(&self, from: DeviceSlice<'_>, to: DeviceSliceMut<'_>) {
        to.host().copy_from_slice(from.host());
    }

    fn fill(&self, to: DeviceSliceMut<'_>, value: f32) {
        to.host().fill(value);
    }
}
