//! [`HostDevice`]: the kernels of `ronde-kernels` in ordinary memory.

mod elements;
mod formats;
mod helpers;
mod images;
mod matrix;
mod norms;
mod sequences;
mod tables;
mod threads;

pub(crate) use norms::statistics_values;
use ronde_kernels::{Products, ShortFormat};
use serde::{Deserialize, Serialize};
use threads::Threads;

use super::{Device, DeviceBuffer, DeviceKernel, DeviceSliceMut, Kernel, kernel::OnHost};
use crate::error::EngineError;
use crate::host::engine_name;
use crate::memory::HostValues;

/// The processor: kernels compiled for its instruction sets, on ordinary memory, by one thread or several. The number of
/// threads does not change a bit.
#[derive(Debug, Default)]
pub struct HostDevice {
    threads: Threads,
    /// How our own kernels multiply.
    method: ProductMethod,
}

/// How the engine `ronde` multiplies values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ProductMethod {
    /// Values of f32 and f16 in f32; those of bf16 in bf16 where this is faster. Sums are f32.
    #[default]
    Plain,
    /// Values of f32 as sums of three values of bf16 each, with AMX: as exact as in f32.
    Split,
    /// Values of f16 in f16, with AVX512-FP16: up to 16 products are summed in f16, and these sums in f32.
    F16,
}

impl ProductMethod {
    /// Returns the products of values of a format (`None`: f32) on this processor.
    #[must_use]
    pub fn of(self, format: Option<ShortFormat>) -> Products {
        let fastest = Products::of(format);
        let is_allowed = match fastest {
            Products::SplitTiles => self == Self::Split,
            Products::F16Sums => self == Self::F16,
            Products::F32 | Products::Bf16Pairs | Products::Bf16Tiles => true,
        };
        if is_allowed { fastest } else { Products::F32 }
    }
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
            method: ProductMethod::default(),
        })
    }

    /// Runs a kernel whose operands are in ordinary memory.
    pub(super) fn run_on_host(&self, kernel: Kernel<OnHost<'_>>) {
        match kernel {
            Kernel::Matrix(kernel) => self.run_matrix(kernel),
            Kernel::Image(kernel) => self.run_image(kernel),
            Kernel::Norm(kernel) => self.run_norm(kernel),
            Kernel::Sequence(kernel) => self.run_sequence(kernel),
            Kernel::Table(kernel) => self.run_table(kernel),
            Kernel::Element(kernel) => self.run_element(kernel),
            Kernel::Format(kernel) => self.run_format(kernel),
        }
    }

    /// Multiplies by a method.
    #[must_use]
    pub fn with_method(self, method: ProductMethod) -> Self {
        Self { method, ..self }
    }
}

impl Device for HostDevice {
    fn name(&self) -> String {
        engine_name()
    }

    fn allocate(&self, length: usize) -> DeviceBuffer {
        DeviceBuffer::Host(HostValues::take(length))
    }

    fn has_independent_rows(&self) -> bool {
        true
    }

    fn is_host(&self) -> bool {
        true
    }

    fn write(&self, from: &[f32], to: DeviceSliceMut<'_>) {
        to.host().copy_from_slice(from);
    }

    fn run(&self, kernel: DeviceKernel<'_>) {
        self.run_on_host(kernel.on_host());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceSlice;
    use crate::device::check_device;
    use crate::device::kernel::{
        ConvolveInputGradientKernel, ConvolveKernel, ConvolveWeightGradientKernel, MatrixSlice,
        MultiplyKernel,
    };

    #[test]
    fn several_threads_compute_the_bits_of_one() {
        for threads in [1, 2, 3, 5] {
            let device = HostDevice::with_threads(threads).unwrap();
            assert_eq!(check_device(&device, 0.0), Vec::<String>::new());
        }
    }

    #[test]
    fn split_products_are_near_those_of_f32_on_any_number_of_threads() {
        if ProductMethod::Split.of(None) == Products::F32 {
            eprintln!("this processor has no AMX, so products of f32 are compared");
        }
        let values: Vec<f32> = (0..70 * 300)
            .map(|index: u32| (index * 7919 % 1013) as f32 / 507.0 - 1.0)
            .collect();
        let products = [1, 3].map(|threads| {
            let device = HostDevice::with_threads(threads).unwrap();
            let device = device.with_method(ProductMethod::Split);
            assert_eq!(check_device(&device, 1e-5), Vec::<String>::new());
            let left = MatrixSlice::new(DeviceSlice::Host(&values), 70, 300);
            let mut product = vec![0.0; 70 * 70];
            let to = DeviceSliceMut::Host(&mut product);
            MultiplyKernel {
                left,
                right: left.transposed(),
                to,
                adds: false,
            }
            .run_on(&device);
            product
        });
        assert!(products[0] == products[1]);
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
                ConvolveKernel {
                    shape,
                    format: None,
                    samples,
                    x,
                    w,
                    y,
                }
                .run_on(&device);
                ConvolveInputGradientKernel {
                    shape,
                    format: None,
                    samples,
                    w,
                    dy,
                    dx,
                }
                .run_on(&device);
                ConvolveWeightGradientKernel {
                    shape,
                    format: None,
                    samples,
                    x,
                    dy,
                    dw,
                }
                .run_on(&device);
                found
            };
            let one = run(1);
            for threads in [2, 3, 6] {
                assert!(run(threads) == one, "{threads} threads of {each:?}");
            }
        }
    }
}
