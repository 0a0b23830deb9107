//! The check that a device computes the results of the host.

mod empty;
mod kernels;
mod non_finite;
mod propagation;
mod runs;
mod shared_cases;

use std::sync::atomic::{AtomicBool, Ordering};

use ronde_kernels::{ShortFormat, round_short};

use super::{Device, DeviceBuffer, DeviceKernel, DeviceSlice, DeviceSliceMut, HostDevice};

/// Checks an implementation of [`Device`]; returns a sentence for each fault, and nothing for a device that fits.
///
/// - Each kernel runs twice, and its results are compared with those of [`HostDevice`]: they may differ by `tolerance` times
///   the greatest value of the result, and not in a bit between both calls.
/// - Kernels without samples, rows or terms of a sum write all outputs: zeros for sums.
/// - NaN in an input reaches the outputs that depend on this input, and no others.
/// - Infinite values have the results that the methods of the device state.
///
/// Cost: about a second on the host.
///
/// ```
/// assert!(ronde_engine::check_device(&ronde_engine::HostDevice::new(), 0.0).is_empty());
/// ```
#[must_use]
pub fn check_device(device: &dyn Device, tolerance: f32) -> Vec<String> {
    KernelComparison::new(device, tolerance, None).run_all()
}

/// Checks one kernel of a device, by its [`name`](super::Kernel::name), as [`check_device`] checks all of them.
#[must_use]
pub fn check_kernel(device: &dyn Device, kernel: &str, tolerance: f32) -> Vec<String> {
    KernelComparison::new(device, tolerance, Some(kernel)).run_all()
}

struct KernelComparison<'a> {
    device: &'a dyn Device,
    host: HostDevice,
    tolerance: f32,
    /// The name of the kernel whose cases run; `None`: all run.
    only: Option<&'a str>,
    found: Vec<String>,
}

/// The host, which notes whether a kernel runs.
struct NotingDevice<'a> {
    host: &'a HostDevice,
    kernel: &'a str,
    has_run: AtomicBool,
}

impl Device for NotingDevice<'_> {
    fn name(&self) -> String {
        self.host.name()
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
        if kernel.name() == self.kernel {
            self.has_run.store(true, Ordering::Relaxed);
        }
        self.host.run(kernel);
    }
}

/// The value of an output before a kernel writes it: a value that no kernel computes.
fn unwritten(length: usize) -> Vec<f32> {
    vec![-123.25; length]
}

/// Returns values between -1 and 1 that look random.
fn values(length: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_769) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..length).map(|_| next()).collect()
}

/// Rounds values to a format, if there is one.
fn rounded(mut values: Vec<f32>, format: Option<ShortFormat>) -> Vec<f32> {
    if let Some(format) = format {
        round_short(format, &mut values);
    }
    values
}

/// Returns the views of buffers for writing.
fn writable<const N: usize>(buffers: &mut [DeviceBuffer]) -> [DeviceSliceMut<'_>; N] {
    let mut all = buffers.iter_mut();
    std::array::from_fn(|_| all.next().expect("a case has all outputs").slice_mut())
}

type KernelRun<'a> = &'a dyn Fn(&dyn Device, &[DeviceSlice<'_>], &mut [DeviceBuffer]);

impl<'a> KernelComparison<'a> {
    fn new(device: &'a dyn Device, tolerance: f32, only: Option<&'a str>) -> Self {
        Self {
            device,
            host: HostDevice::new(),
            tolerance,
            only,
            found: Vec::new(),
        }
    }

    fn run_all(mut self) -> Vec<String> {
        self.ordinary_values();
        self.empty_inputs();
        self.non_finite_inputs();
        if let Some(cause) = self.device.take_error() {
            self.found.push(format!("the device failed: {cause}"));
        }
        self.found
    }

    /// Returns whether a case is to run: it does not if one kernel is checked and the case does not use it.
    fn concerns(&self, inputs: &[Vec<f32>], outputs: &[Vec<f32>], kernel: KernelRun<'_>) -> bool {
        let Some(only) = self.only else {
            return true;
        };
        let noting = NotingDevice {
            host: &self.host,
            kernel: only,
            has_run: AtomicBool::new(false),
        };
        Self::run(&noting, inputs, outputs, kernel);
        noting.has_run.into_inner()
    }

    /// Returns the outputs of a kernel on a device.
    fn run(
        device: &dyn Device,
        inputs: &[Vec<f32>],
        outputs: &[Vec<f32>],
        kernel: KernelRun<'_>,
    ) -> Vec<Vec<f32>> {
        let put = |values: &Vec<f32>| {
            let mut buffer = device.allocate(values.len());
            device.write(values, buffer.slice_mut());
            buffer
        };
        let inputs: Vec<DeviceBuffer> = inputs.iter().map(put).collect();
        let mut outputs: Vec<DeviceBuffer> = outputs.iter().map(put).collect();
        let views: Vec<DeviceSlice<'_>> = inputs.iter().map(DeviceBuffer::slice).collect();
        kernel(device, &views, &mut outputs);
        outputs
            .iter()
            .map(|output| output.slice().to_vec())
            .collect()
    }

    /// Compares the outputs of a kernel, which start with the given values.
    fn case(
        &mut self,
        name: &str,
        inputs: &[Vec<f32>],
        outputs: &[Vec<f32>],
        kernel: KernelRun<'_>,
    ) {
        if !self.concerns(inputs, outputs, kernel) {
            return;
        }
        let expected = Self::run(&self.host, inputs, outputs, kernel);
        let found = Self::run(self.device, inputs, outputs, kernel);
        let again = Self::run(self.device, inputs, outputs, kernel);
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for (number, (found, again)) in found.iter().zip(&again).enumerate() {
            if bits(found) != bits(again) {
                let difference = format!("{name}, output {number}: two calls have different bits");
                self.found.push(difference);
            }
        }
        for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
            self.compare(&format!("{name}, output {number}"), expected, found);
        }
    }

    /// Compares values: NaN and infinite ones are equal to themselves only.
    fn compare(&mut self, name: &str, expected: &[f32], found: &[f32]) {
        let finite = expected.iter().filter(|x| x.is_finite());
        let size = finite.fold(0.0_f32, |most, x| most.max(x.abs()));
        let differs = |(expected, found): (&f32, &f32)| {
            let equal = expected.to_bits() == found.to_bits();
            let near = (expected - found).abs() <= self.tolerance * size;
            !(equal || near || expected.is_nan() && found.is_nan())
        };
        let at = expected.iter().zip(found).position(differs);
        if let Some(at) = at {
            let (wanted, got) = (expected[at], found[at]);
            self.found
                .push(format!("{name}: element {at} is {got}, expected {wanted}"));
        } else if expected.len() != found.len() {
            let (wanted, got) = (expected.len(), found.len());
            self.found
                .push(format!("{name}: {got} elements, expected {wanted}"));
        }
    }

    /// Compares the outputs of a kernel with known values.
    fn known_case(
        &mut self,
        name: &str,
        inputs: &[Vec<f32>],
        outputs: &[Vec<f32>],
        expected: &[Vec<f32>],
        kernel: KernelRun<'_>,
    ) {
        if !self.concerns(inputs, outputs, kernel) {
            return;
        }
        let found = Self::run(self.device, inputs, outputs, kernel);
        for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
            self.compare(&format!("{name}, output {number}"), expected, found);
        }
    }
}
