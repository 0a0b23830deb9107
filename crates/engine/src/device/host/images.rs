//! Convolution and pooling on the host.

use ronde_kernels::{
    GroupedConvolution, SlidingWindow, add_to_channels, average_pool, average_pool_backward,
    channel_sums, max_pool, max_pool_backward, upsample, upsample_backward,
};

use super::HostDevice;
use crate::device::{DeviceSlice, DeviceSliceMut, ImageKernels, PlaneMap};

impl ImageKernels for HostDevice {
    fn convolve(
        &self,
        shape: &GroupedConvolution,
        samples: usize,
        x: DeviceSlice<'_>,
        w: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
    ) {
        shape.forward(samples, x.host(), w.host(), y.host());
    }

    fn convolve_input_gradient(
        &self,
        shape: &GroupedConvolution,
        samples: usize,
        w: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        dx: DeviceSliceMut<'_>,
    ) {
        shape.input_gradient(samples, w.host(), dy.host(), dx.host());
    }

    fn convolve_weight_gradient(
        &self,
        shape: &GroupedConvolution,
        samples: usize,
        x: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        dw: DeviceSliceMut<'_>,
    ) {
        shape.weight_gradient(samples, x.host(), dy.host(), dw.host());
    }

    fn add_to_channels(&self, y: DeviceSliceMut<'_>, places: usize, added: DeviceSlice<'_>) {
        add_to_channels(y.host(), places, added.host());
    }

    fn sum_channels(&self, x: DeviceSlice<'_>, places: usize, to: DeviceSliceMut<'_>) {
        channel_sums(x.host(), places, to.host());
    }

    fn max_pool(
        &self,
        size: [usize; 2],
        window: SlidingWindow,
        x: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
        from: DeviceSliceMut<'_>,
    ) {
        let from = bytemuck::cast_slice_mut(from.host());
        max_pool(x.host(), size, window, y.host(), from);
    }

    fn max_pool_gradient(
        &self,
        size: [usize; 2],
        window: SlidingWindow,
        dy: DeviceSlice<'_>,
        from: DeviceSlice<'_>,
        dx: DeviceSliceMut<'_>,
    ) {
        let from = bytemuck::cast_slice(from.host());
        max_pool_backward(dy.host(), from, size, window, dx.host());
    }

    fn map_planes(&self, map: PlaneMap, x: DeviceSlice<'_>, y: DeviceSliceMut<'_>) {
        let (x, y) = (x.host(), y.host());
        match map {
            PlaneMap::Average { size, window } => average_pool(x, size, window, y),
            PlaneMap::Areas(areas) => areas.forward(x, y),
            PlaneMap::Enlarge { width, factor } => upsample(x, width, factor, y),
        }
    }

    fn map_planes_gradient(&self, map: PlaneMap, dy: DeviceSlice<'_>, dx: DeviceSliceMut<'_>) {
        let (dy, dx) = (dy.host(), dx.host());
        match map {
            PlaneMap::Average { size, window } => average_pool_backward(dy, size, window, dx),
            PlaneMap::Areas(areas) => areas.backward(dy, dx),
            PlaneMap::Enlarge { width, factor } => upsample_backward(dy, width, factor, dx),
        }
    }
}
