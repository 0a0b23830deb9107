//! [`HostDevice`]: the kernels of `ronde-kernels` in ordinary memory.

mod elements;
mod helpers;
mod images;
mod matrix;
mod norms;
mod precision;
mod products;
mod sequences;
mod tables;
mod threads;

pub(crate) use norms::statistics_values;
pub(super) use products::ProductKernels;

use ronde_kernels::ShortFormat;

use super::{Device, DeviceBuffer, DeviceSlice, DeviceSliceMut};
use crate::EngineError;
use crate::host::engine_name;
use crate::memory::take;
use threads::Threads;

/// The processor: kernels compiled for its instruction sets, on ordinary memory, by one thread or several. The number of
/// threads does not change a bit.
#[derive(Debug, Default)]
pub struct HostDevice {
    threads: Threads,
    /// What computes matrix products and convolutions instead.
    products: Option<Box<dyn ProductKernels>>,
    /// Whether products of f16 may be summed in f16.
    f16_products: bool,
}

impl HostDevice {
    /// Creates a device that computes on the calling thread. Cost: none.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a device that computes on the calling thread and `threads - 1` others, which inherit its cores.
    ///
    /// # Errors
    /// When the system starts no more threads.
    pub fn with_threads(threads: usize) -> Result<Self, EngineError> {
        let started = Threads::start(threads).map_err(|cause| EngineError::Threads {
            threads,
            cause: cause.to_string(),
        })?;
        Ok(Self {
            threads: started,
            products: None,
            f16_products: false,
        })
    }

    /// Sums up to 16 products of f16 values in f16, if the processor can.
    #[must_use]
    pub fn with_f16_products(self, f16_products: bool) -> Self {
        Self {
            f16_products,
            ..self
        }
    }

    /// Returns the format in which operands of a format are multiplied; `None` for f32.
    fn product_format(&self, format: Option<ShortFormat>) -> Option<ShortFormat> {
        format.filter(|format| *format != ShortFormat::F16 || self.f16_products)
    }

    /// Computes matrix products and convolutions by other kernels.
    pub(super) fn with_products(self, products: Box<dyn ProductKernels>) -> Self {
        Self {
            products: Some(products),
            ..self
        }
    }
}

impl Device for HostDevice {
    fn name(&self) -> String {
        match &self.products {
            Some(products) => format!("{} with {}", engine_name(), products.name()),
            None => engine_name(),
        }
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

    fn take_error(&self) -> Option<String> {
        self.products.as_ref()?.take_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{ImageKernels, check_device};

    #[test]
    fn several_threads_compute_the_bits_of_one() {
        for threads in [1, 2, 3, 5] {
            let device = HostDevice::with_threads(threads).unwrap();
            assert_eq!(check_device(&device, 0.0), Vec::<String>::new());
        }
    }

    #[test]
    fn every_form_of_a_convolution_can_be_divided() {
        let shape = |channels, outputs, side, stride| ronde_kernels::Convolution {
            channels,
            size: [side; 2],
            outputs,
            kernel: [3, 3],
            stride: [stride; 2],
            padding: [1, 1],
        };
        let values = |length: usize| -> Vec<f32> {
            let value = |index: usize| (index * 7919 % 1013) as f32 / 507.0 - 1.0;
            (0..length).map(value).collect()
        };
        let samples = 6;
        // Images whose gradients overlap in one product or are divided by channels, tiles of images, and more weights than
        // tiles.
        for each in [
            shape(8, 16, 32, 2),
            shape(200, 24, 7, 2),
            shape(64, 128, 16, 1),
            shape(64, 80, 8, 1),
            shape(80, 96, 4, 1),
        ] {
            let shape = ronde_kernels::GroupedConvolution { each, groups: 1 };
            let places: usize = each.output_size().iter().product();
            let x = values(samples * each.channels * each.size[0] * each.size[1]);
            let w = values(each.outputs * each.channels * 9);
            let dy = values(samples * each.outputs * places);
            let run = |threads| {
                let device = HostDevice::with_threads(threads).unwrap();
                let mut found = [&dy, &x, &w].map(|values| vec![f32::NAN; values.len()]);
                let [y, dx, dw] = found.each_mut().map(|found| DeviceSliceMut::Host(found));
                let [x, w, dy] = [&x, &w, &dy].map(|values| DeviceSlice::Host(values));
                device.convolve(&shape, None, samples, x, w, y);
                device.convolve_input_gradient(&shape, None, samples, w, dy, dx);
                device.convolve_weight_gradient(&shape, None, samples, x, dy, dw);
                found
            };
            let one = run(1);
            for threads in [2, 3, 6] {
                assert!(run(threads) == one, "{threads} threads of {each:?}");
            }
        }
    }
}
