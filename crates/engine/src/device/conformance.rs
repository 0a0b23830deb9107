//! The check that a device computes what the host computes.

mod empty;
mod kernels;
mod non_finite;
mod propagation;
mod shared_cases;

use ronde_kernels::{ShortFormat, round_short};

use super::{Device, DeviceBuffer, DeviceSlice, DeviceSliceMut, HostDevice};

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
    let mut all = KernelComparison {
        device,
        host: HostDevice::new(),
        tolerance,
        found: Vec::new(),
    };
    all.ordinary_values();
    all.empty_inputs();
    all.non_finite_inputs();
    if let Some(cause) = device.take_error() {
        all.found.push(format!("the device failed: {cause}"));
    }
    all.found
}

struct KernelComparison<'a> {
    device: &'a dyn Device,
    host: HostDevice,
    tolerance: f32,
    found: Vec<String>,
}

/// What an output has before a kernel writes it: a value that no kernel computes.
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

type Kernel<'a> = &'a dyn Fn(&dyn Device, &[DeviceSlice<'_>], &mut [DeviceBuffer]);

impl KernelComparison<'_> {
    /// Returns the outputs of a kernel on a device.
    fn run(
        device: &dyn Device,
        inputs: &[Vec<f32>],
        outputs: &[Vec<f32>],
        kernel: Kernel<'_>,
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
    fn case(&mut self, name: &str, inputs: &[Vec<f32>], outputs: &[Vec<f32>], kernel: Kernel<'_>) {
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
        kernel: Kernel<'_>,
    ) {
        let found = Self::run(self.device, inputs, outputs, kernel);
        for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
            self.compare(&format!("{name}, output {number}"), expected, found);
        }
    }
}
