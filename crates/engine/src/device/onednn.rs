//! [`OneDnn`]: matrix products and convolutions by oneDNN, which is loaded at run time.

mod convolution;
mod library;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use convolution::{CompiledConvolution, ReorderMemory};
use library::{ConvolutionPass, OneDnnLibrary};
use ronde_kernels::GroupedConvolution;

use super::host::ProductKernels;
use super::{DeviceSlice, DeviceSliceMut, MatrixSlice};

/// The products of a device by oneDNN.
///
/// The bits depend on the version of the library, the processor and the number of threads, and not on the number of
/// workers: each product has the lengths of one shard.
pub(super) struct OneDnn {
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
    /// Loads the library.
    ///
    /// # Errors
    /// If it is not installed or too old.
    pub(super) fn load(threads: usize) -> Result<Self, String> {
        Ok(Self {
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

impl ProductKernels for OneDnn {
    fn name(&self) -> String {
        let threads = match self.threads {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        format!("oneDNN {}, {threads}", self.library.version())
    }

    fn multiply(
        &self,
        left: MatrixSlice<'_>,
        right: MatrixSlice<'_>,
        to: DeviceSliceMut<'_>,
        adds: bool,
    ) {
        let lengths = |of: &MatrixSlice<'_>| match of.is_transposed {
            true => [of.columns, of.rows],
            false => [of.rows, of.columns],
        };
        let ([rows, depth], [_, columns]) = (lengths(&left), lengths(&right));
        let to = to.host();
        if to.is_empty() || depth == 0 {
            if !adds {
                to.fill(0.0);
            }
            return;
        }
        let operands = [left, right].map(|of| (of.values.host(), of.columns, of.is_transposed));
        let mut state = self.state();
        if state.failure.is_none() {
            self.library.set_threads(self.threads);
            let lengths = [rows, depth, columns];
            state.failure = self.library.multiply(lengths, operands, to, adds).err();
        }
    }

    fn convolve(
        &self,
        shape: &GroupedConvolution,
        samples: usize,
        x: DeviceSlice<'_>,
        w: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
    ) {
        let inputs = [x.host(), w.host()];
        self.convolution(ConvolutionPass::Forward, (shape, samples), inputs, y.host());
    }

    fn convolve_input_gradient(
        &self,
        shape: &GroupedConvolution,
        samples: usize,
        w: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        dx: DeviceSliceMut<'_>,
    ) {
        let inputs = [w.host(), dy.host()];
        let pass = ConvolutionPass::InputGradient;
        self.convolution(pass, (shape, samples), inputs, dx.host());
    }

    fn convolve_weight_gradient(
        &self,
        shape: &GroupedConvolution,
        samples: usize,
        x: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        dw: DeviceSliceMut<'_>,
    ) {
        let inputs = [x.host(), dy.host()];
        let pass = ConvolutionPass::WeightGradient;
        self.convolution(pass, (shape, samples), inputs, dw.host());
    }

    fn take_error(&self) -> Option<String> {
        self.state().failure.take()
    }
}

#[cfg(test)]
mod tests {
    use crate::device::{ComputeEngine, ImageKernels, check_device};

    use super::*;

    /// Returns a device with the library, or `None` with a message if it is not installed.
    fn device(threads: usize) -> Option<crate::HostDevice> {
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
            assert_eq!(check_device(&device, 1e-5), Vec::<String>::new());
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
            device.convolve(&shape, None, 3, x, w, y);
            device.convolve_input_gradient(&shape, None, 3, w, dy, dx);
            device.convolve_weight_gradient(&shape, None, 3, x, dy, dw);
            found
        };
        let first = run(16, 12);
        assert!(first.iter().flatten().all(|value| value.is_finite()));
        run(5, 20);
        assert!(run(16, 12) == first);
        let other = std::thread::scope(|scope| scope.spawn(|| run(16, 12)).join().unwrap());
        assert!(other == first);
        assert_eq!(crate::Device::take_error(&device), None);
    }
}
