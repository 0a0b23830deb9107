//! [`OneDnn`]: matrix products and convolutions by oneDNN, which is loaded at run time.

mod convolution;
mod library;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use convolution::{CompiledConvolution, ReorderMemory};
use library::{ConvolutionPass, OneDnnLibrary};
use ronde_kernels::GroupedConvolution;

use super::kernel::{
    ConvolveInputGradientKernel, ConvolveKernel, ConvolveWeightGradientKernel, ImageKernels,
    MatrixKernels, MultiplyKernel, OnHost,
};
use super::{Device, DeviceBuffer, DeviceKernel, DeviceSliceMut, HostDevice, Kernel};

/// The processor, with the matrix products and convolutions of oneDNN. All other kernels are those of [`HostDevice`].
///
/// The bits depend on the version of the library, the processor and the number of threads, and not on the number of
/// workers: each product has the lengths of one shard.
pub(super) struct OneDnn {
    host: HostDevice,
    library: &'static OneDnnLibrary,
    threads: usize,
    state: Mutex<OneDnnState>,
}

#[derive(Default)]
struct OneDnnState {
    compiled: HashMap<(u8, [usize; 12]), CompiledConvolution>,
    memory: ReorderMemory,
    failure: Option<String>,
}

impl fmt::Debug for OneDnn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// Returns the key of a convolution among the compiled ones.
fn key(pass: ConvolutionPass, shape: &GroupedConvolution, samples: usize) -> (u8, [usize; 12]) {
    let each = &shape.each;
    let [[height, width], kernel, stride, padding] =
        [each.size, each.kernel, each.stride, each.padding];
    let lengths = [
        samples,
        shape.groups,
        each.channels,
        each.outputs,
        height,
        width,
        kernel[0],
        kernel[1],
        stride[0],
        stride[1],
        padding[0],
        padding[1],
    ];
    (pass as u8, lengths)
}

impl OneDnn {
    /// Loads the library. `host` computes the other kernels.
    ///
    /// # Errors
    /// If it is not installed or too old.
    pub(super) fn load(host: HostDevice, threads: usize) -> Result<Self, String> {
        Ok(Self {
            host,
            library: OneDnnLibrary::get()?,
            threads,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, OneDnnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn convolution(
        &self,
        pass: ConvolutionPass,
        (shape, samples): (&GroupedConvolution, usize),
        inputs: [&[f32]; 2],
        to: &mut [f32],
    ) {
        if to.is_empty() || inputs.iter().any(|values| values.is_empty()) {
            return to.fill(0.0);
        }
        let mut state = self.state();
        let OneDnnState {
            compiled,
            memory,
            failure,
        } = &mut *state;
        if failure.is_some() {
            return;
        }
        self.library.set_threads(self.threads);
        let key = key(pass, shape, samples);
        let outcome = (|| {
            let compiled = match compiled.remove(&key) {
                Some(found) => compiled.entry(key).or_insert(found),
                None => {
                    let new = CompiledConvolution::new(self.library, pass, shape, samples)?;
                    compiled.entry(key).or_insert(new)
                }
            };
            compiled.run(inputs, to, memory)
        })();
        *failure = outcome.err();
    }
}

impl OneDnn {
    /// Returns the version and settings of the library, which are conditions of equal bits.
    pub(super) fn version(&self) -> String {
        let threads = match self.threads {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        format!("oneDNN {}, {threads}", self.library.version())
    }

    fn multiply(&self, kernel: MultiplyKernel<OnHost<'_>>) {
        let MultiplyKernel {
            left,
            right,
            to,
            adds,
        } = kernel;
        let ([rows, depth], [_, columns]) = (left.size(), right.size());
        if to.is_empty() || depth == 0 {
            if !adds {
                to.fill(0.0);
            }
            return;
        }
        let operands = [left, right].map(|of| (of.values, of.columns, of.is_transposed));
        let mut state = self.state();
        if state.failure.is_none() {
            self.library.set_threads(self.threads);
            let lengths = [rows, depth, columns];
            state.failure = self.library.multiply(lengths, operands, to, adds).err();
        }
    }

    /// Runs a convolution; other kernels of images are those of the host.
    fn run_image(&self, kernel: ImageKernels<OnHost<'_>>) {
        match kernel {
            ImageKernels::Convolve(ConvolveKernel {
                x,
                w,
                y,
                shape,
                samples,
                ..
            }) => self.convolution(ConvolutionPass::Forward, (&shape, samples), [x, w], y),
            ImageKernels::ConvolveInputGradient(ConvolveInputGradientKernel {
                w,
                dy,
                dx,
                shape,
                samples,
                ..
            }) => {
                let pass = ConvolutionPass::InputGradient;
                self.convolution(pass, (&shape, samples), [w, dy], dx);
            }
            ImageKernels::ConvolveWeightGradient(ConvolveWeightGradientKernel {
                x,
                dy,
                dw,
                shape,
                samples,
                ..
            }) => {
                let pass = ConvolutionPass::WeightGradient;
                self.convolution(pass, (&shape, samples), [x, dy], dw);
            }
            kernel => self.host.run_on_host(kernel.into()),
        }
    }
}

impl Device for OneDnn {
    fn name(&self) -> String {
        format!("{} with {}", self.host.name(), self.version())
    }

    fn allocate(&self, length: usize) -> DeviceBuffer {
        self.host.allocate(length)
    }

    fn is_host(&self) -> bool {
        true
    }

    fn write(&self, from: &[f32], to: DeviceSliceMut<'_>) {
        self.host.write(from, to);
    }

    fn run(&self, kernel: DeviceKernel<'_>) {
        match kernel.on_host() {
            Kernel::Matrix(MatrixKernels::Multiply(kernel)) => self.multiply(kernel),
            Kernel::Image(kernel) => self.run_image(kernel),
            kernel => self.host.run_on_host(kernel),
        }
    }

    fn take_error(&self) -> Option<String> {
        self.state().failure.take()
    }
}

#[cfg(test)]
mod tests {
    use crate::device::DeviceSlice;
    use crate::device::{ComputeEngine, check_device};

    use super::*;

    /// Returns a device with the library, or `None` with a message if it is not installed.
    fn device(threads: usize) -> Option<std::sync::Arc<dyn Device>> {
        let device = ComputeEngine::OneDnn.device(threads, crate::ProductMethod::default());
        device
            .inspect_err(|cause| ronde_testing::skip(&cause.to_string()))
            .ok()
    }

    #[test]
    fn it_conforms_with_any_number_of_threads() {
        for threads in [1, 2] {
            let Some(device) = device(threads) else {
                return;
            };
            assert_eq!(check_device(&*device, 1e-5), Vec::<String>::new());
        }
    }

    #[test]
    fn equal_products_have_equal_bits_after_others_and_in_other_threads() {
        let Some(device) = device(1) else { return };
        let shape = |channels, side| GroupedConvolution {
            each: ronde_kernels::Convolution {
                channels,
                size: [side; 2],
                outputs: 24,
                kernel: [3; 2],
                stride: [1; 2],
                padding: [1; 2],
            },
            groups: 1,
        };
        let run = |channels: usize, side: usize| {
            let shape = shape(channels, side);
            let [input, output, weights] = shape.elements();
            let value = |index: usize| (index * 7919 % 1013) as f32 / 507.0 - 1.0;
            let [x, w, dy] =
                [3 * input, weights, 3 * output].map(|length| (0..length).map(value).collect());
            let [x, w, dy]: [Vec<f32>; 3] = [x, w, dy];
            let mut found = [&dy, &x, &w].map(|values| vec![f32::NAN; values.len()]);
            let [y, dx, dw] = found.each_mut().map(|found| DeviceSliceMut::Host(found));
            let [x, w, dy] = [&x, &w, &dy].map(|values| DeviceSlice::Host(values));
            ConvolveKernel {
                shape,
                format: None,
                samples: 3,
                x,
                w,
                y,
            }
            .run_on(&*device);
            ConvolveInputGradientKernel {
                shape,
                format: None,
                samples: 3,
                w,
                dy,
                dx,
            }
            .run_on(&*device);
            ConvolveWeightGradientKernel {
                shape,
                format: None,
                samples: 3,
                x,
                dy,
                dw,
            }
            .run_on(&*device);
            found
        };
        let first = run(16, 12);
        assert!(first.iter().flatten().all(|value| value.is_finite()));
        run(5, 20);
        assert!(run(16, 12) == first);
        let other = std::thread::scope(|scope| scope.spawn(|| run(16, 12)).join().unwrap());
        assert!(other == first);
        assert_eq!(device.take_error(), None);
    }
}
