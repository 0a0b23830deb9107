//! [`ObservedDevice`]: a device that reports each kernel, for measurements.

use std::sync::Arc;

use super::kernel::KernelWork;
use super::{Device, DeviceBuffer, DeviceKernel, DeviceSliceMut};

/// One call of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelCall {
    /// The name of the kernel, such as `convolve_input_gradient`.
    pub kernel: &'static str,
    /// Its work.
    pub work: KernelWork,
}

/// Receives the kernels of an [`ObservedDevice`], from the thread that runs a layer.
pub trait KernelObserver: Send + Sync {
    /// Called before a kernel.
    fn begin(&self);

    /// Called after the kernel has returned.
    fn end(&self, call: KernelCall);
}

/// Another device, whose kernels are reported to an observer. Bits and buffers are those of the other device.
pub struct ObservedDevice {
    inner: Arc<dyn Device>,
    observer: Arc<dyn KernelObserver>,
}

impl ObservedDevice {
    /// Wraps a device.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>, observer: Arc<dyn KernelObserver>) -> Self {
        Self { inner, observer }
    }
}

impl Device for ObservedDevice {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn allocate(&self, length: usize) -> DeviceBuffer {
        self.inner.allocate(length)
    }

    fn has_independent_rows(&self) -> bool {
        self.inner.has_independent_rows()
    }

    fn is_host(&self) -> bool {
        self.inner.is_host()
    }

    fn write(&self, from: &[f32], to: DeviceSliceMut<'_>) {
        self.inner.write(from, to);
    }

    fn run(&self, kernel: DeviceKernel<'_>) {
        let call = KernelCall {
            kernel: kernel.name(),
            work: kernel.work(),
        };
        self.observer.begin();
        self.inner.run(kernel);
        self.observer.end(call);
    }

    fn take_error(&self) -> Option<String> {
        self.inner.take_error()
    }
}

#[cfg(test)]
mod tests;
