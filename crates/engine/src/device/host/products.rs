//! [`ProductKernels`]: matrix products and convolutions by another library on memory of the host.

use ronde_kernels::GroupedConvolution;

use crate::device::{DeviceSlice, DeviceSliceMut, MatrixSlice};

/// The kernels of [`HostDevice`](super::HostDevice) that another library computes, with the arguments of
/// [`MatrixKernels`](crate::MatrixKernels) and [`ImageKernels`](crate::ImageKernels).
pub(in crate::device) trait ProductKernels:
    std::fmt::Debug + Send + Sync
{
    /// Returns the name, version and settings, which are conditions of equal bits.
    fn name(&self) -> String;

    /// Computes `to = left * right`, or `to += left * right` if `adds`.
    fn multiply(
        &self,
        left: MatrixSlice<'_>,
        right: MatrixSlice<'_>,
        to: DeviceSliceMut<'_>,
        adds: bool,
    );

    /// Computes a convolution.
    fn convolve(
        &self,
        shape: &GroupedConvolution,
        samples: usize,
        x: DeviceSlice<'_>,
        w: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
    );

    /// Computes the gradient of the input of a convolution.
    fn convolve_input_gradient(
        &self,
        shape: &GroupedConvolution,
        samples: usize,
        w: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        dx: DeviceSliceMut<'_>,
    );

    /// Computes the gradient of the weights of a convolution.
    fn convolve_weight_gradient(
        &self,
        shape: &GroupedConvolution,
        samples: usize,
        x: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        dw: DeviceSliceMut<'_>,
    );

    /// Returns the first error since the last call. After an error, outputs are unspecified.
    fn take_error(&self) -> Option<String>;
}
