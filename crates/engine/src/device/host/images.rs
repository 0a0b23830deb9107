//! Convolution and pooling on the host.

use std::ops::Range;

use ronde_kernels::{
    ConvolutionDivision, add_to_channels, average_pool, average_pool_backward, channel_sums,
    max_pool, max_pool_backward, upsample, upsample_backward,
};

use super::HostDevice;
use super::threads::{part, split};
use crate::device::kernel::{
    AddToChannelsKernel, ConvolveInputGradientKernel, ConvolveKernel,
    ConvolveShardsWeightGradientKernel, ConvolveWeightGradientKernel, ImageKernels,
    MapPlanesGradientKernel, MapPlanesKernel, MaxPoolGradientKernel, MaxPoolKernel, OnHost,
    PlaneMap, SumChannelsKernel,
};
use crate::device::{Device, DeviceBuffer};

/// The number of channels of the output whose weights get their gradients together.
const OUTPUTS_TOGETHER: usize = 16;

impl HostDevice {
    /// Divides `0..items` among threads at multiples of a number.
    fn ranges_of_groups(&self, items: usize, together: usize, floats: usize) -> Vec<Range<usize>> {
        let ranges = self.threads.ranges(items.div_ceil(together), floats);
        let whole = |range: Range<usize>| range.start * together..(range.end * together).min(items);
        ranges.into_iter().map(whole).collect()
    }

    /// Divides the channels of images `[samples, channels, ..]` among threads. `work` writes the images of a range of
    /// channels, which are copied to their places.
    fn by_channels(
        &self,
        [samples, channels]: [usize; 2],
        together: usize,
        floats: usize,
        to: &mut [f32],
        work: impl Fn(Range<usize>, &mut [f32]) + Sync,
    ) {
        let ranges = self.ranges_of_groups(channels, together, floats);
        if ranges.len() == 1 {
            return work(0..channels, to);
        }
        let plane = to.len() / (samples * channels).max(1);
        let allocated = ranges
            .iter()
            .map(|range| self.allocate(samples * range.len() * plane));
        let mut buffers: Vec<DeviceBuffer> = allocated.collect();
        let mut places: Vec<Vec<&mut [f32]>> = ranges.iter().map(|_| Vec::new()).collect();
        for sample in to.chunks_exact_mut((channels * plane).max(1)) {
            let own = split(sample, channels, &ranges);
            places
                .iter_mut()
                .zip(own)
                .for_each(|(places, own)| places.push(own));
        }
        let parts = ranges.into_iter().zip(&mut buffers).zip(places);
        self.threads
            .each(parts.collect(), |((range, images), places)| {
                let (length, images) = (range.len() * plane, images.slice_mut().host());
                work(range, images);
                for (to, from) in places.into_iter().zip(images.chunks_exact(length.max(1))) {
                    to.copy_from_slice(from);
                }
            });
    }
}

impl HostDevice {
    pub(super) fn run_image(&self, kernel: ImageKernels<OnHost<'_>>) {
        match kernel {
            ImageKernels::Convolve(kernel) => self.convolve(kernel),
            ImageKernels::ConvolveInputGradient(kernel) => self.convolve_input_gradient(kernel),
            ImageKernels::ConvolveWeightGradient(kernel) => self.convolve_weight_gradient(kernel),
            ImageKernels::ConvolveShardsWeightGradient(kernel) => {
                self.convolve_shards_weight_gradient(kernel);
            }
            ImageKernels::AddToChannels(kernel) => self.add_to_channels(kernel),
            ImageKernels::SumChannels(kernel) => self.sum_channels(kernel),
            ImageKernels::MaxPool(kernel) => self.max_pool(kernel),
            ImageKernels::MaxPoolGradient(kernel) => self.max_pool_gradient(kernel),
            ImageKernels::MapPlanes(kernel) => self.map_planes(kernel),
            ImageKernels::MapPlanesGradient(kernel) => self.map_planes_gradient(kernel),
        }
    }

    fn convolve(
        &self,
        ConvolveKernel {
            x,
            w,
            y,
            shape,
            format,
            samples,
        }: ConvolveKernel<OnHost<'_>>,
    ) {
        let shape = &shape;
        let instructions = self.method.of(format);
        let work = x.len() + y.len();
        match shape.each.division(samples) {
            ConvolutionDivision::Channels(together) if shape.groups == 1 => {
                let size = [samples, shape.each.outputs];
                self.by_channels(size, together, work, y, |outputs, y| {
                    shape
                        .each
                        .forward_of(outputs, instructions, samples, x, w, y);
                });
            }
            _ => {
                let ranges = self.threads.ranges(samples, work);
                let parts = split(y, samples, &ranges);
                self.threads
                    .each(ranges.iter().zip(parts).collect(), |(range, y)| {
                        shape.forward(instructions, range.len(), part(x, samples, range), w, y);
                    });
            }
        }
    }

    fn convolve_input_gradient(
        &self,
        ConvolveInputGradientKernel {
            w,
            dy,
            dx,
            shape,
            format,
            samples,
        }: ConvolveInputGradientKernel<OnHost<'_>>,
    ) {
        let shape = &shape;
        let instructions = self.method.of(format);
        let work = dy.len() + dx.len();
        let together = match shape.each.gradient_division(samples) {
            _ if shape.groups > 1 => 1,
            ConvolutionDivision::Samples(together) => together,
            ConvolutionDivision::Channels(together) => {
                let size = [samples, shape.each.channels];
                return self.by_channels(size, together, work, dx, |channels, dx| {
                    let each = shape.each;
                    each.input_gradient_of(channels, instructions, samples, w, dy, dx);
                });
            }
        };
        let ranges = self.ranges_of_groups(samples, together, work);
        let parts = split(dx, samples, &ranges);
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, dx)| {
                shape.input_gradient(instructions, range.len(), w, part(dy, samples, range), dx);
            });
    }

    fn convolve_weight_gradient(
        &self,
        ConvolveWeightGradientKernel {
            x,
            dy,
            dw,
            shape,
            format,
            samples,
        }: ConvolveWeightGradientKernel<OnHost<'_>>,
    ) {
        let shape = &shape;
        let instructions = self.method.of(format);
        if shape.groups > 1 {
            return shape.weight_gradient(instructions, samples, x, dy, dw);
        }
        self.weight_gradients(shape.each.outputs, [x, dy], dw, |outputs, dw| {
            shape
                .each
                .weight_gradient_of(outputs, instructions, samples, x, dy, dw);
        });
    }

    fn convolve_shards_weight_gradient(
        &self,
        ConvolveShardsWeightGradientKernel {
            x,
            dy,
            dw,
            shape,
            shards,
        }: ConvolveShardsWeightGradientKernel<OnHost<'_>>,
    ) {
        let instructions = self.method.of(None);
        self.weight_gradients(shape.outputs, [x, dy], dw, |outputs, dw| {
            shape.weight_gradient_in_tree(outputs, instructions, &shards, x, dy, dw);
        });
    }

    /// Divides the channels of the output among threads, which compute the gradients of their weights.
    fn weight_gradients(
        &self,
        outputs: usize,
        [x, dy]: [&[f32]; 2],
        dw: &mut [f32],
        gradient: impl Fn(Range<usize>, &mut [f32]) + Sync,
    ) {
        let ranges = self.ranges_of_groups(outputs, OUTPUTS_TOGETHER, x.len() + dy.len());
        let parts = split(dw, outputs, &ranges);
        self.threads
            .each(ranges.into_iter().zip(parts).collect(), |(outputs, dw)| {
                gradient(outputs, dw);
            });
    }

    fn add_to_channels(
        &self,
        AddToChannelsKernel { y, added, places }: AddToChannelsKernel<OnHost<'_>>,
    ) {
        let samples = y.len() / (added.len() * places).max(1);
        let ranges = self.threads.ranges(samples, y.len());
        self.threads.each(split(y, samples, &ranges), |y| {
            add_to_channels(y, places, added);
        });
    }

    fn sum_channels(
        &self,
        SumChannelsKernel {
            x,
            to: sums,
            places,
        }: SumChannelsKernel<OnHost<'_>>,
    ) {
        let samples = x.len() / (sums.len() * places).max(1);
        let ranges = self.threads.ranges(samples, x.len());
        if ranges.len() == 1 {
            return channel_sums(x, places, sums);
        }
        // A sum for each sample and channel, which are then added in the order of the samples.
        let mut each = vec![0.0; samples * sums.len()];
        let parts = split(&mut each, samples, &ranges);
        let channels = sums.len();
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, each)| {
                let samples = part(x, samples, range).chunks_exact((channels * places).max(1));
                for (x, sums) in samples.zip(each.chunks_exact_mut(channels)) {
                    channel_sums(x, places, sums);
                }
            });
        sums.fill(0.0);
        ronde_kernels::add_rows(&each, sums);
    }

    fn max_pool(
        &self,
        MaxPoolKernel {
            x,
            y,
            from,
            size,
            window,
        }: MaxPoolKernel<OnHost<'_>>,
    ) {
        let planes = x.len() / (size[0] * size[1]).max(1);
        let ranges = self.threads.ranges(planes, x.len());
        let parts = split(y, planes, &ranges).into_iter();
        let parts = parts.zip(split(from, planes, &ranges));
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, (y, from))| {
                let from = bytemuck::cast_slice_mut(from);
                max_pool(part(x, planes, range), size, window, y, from);
            });
    }

    fn max_pool_gradient(
        &self,
        MaxPoolGradientKernel {
            dy,
            from,
            dx,
            size,
            window,
        }: MaxPoolGradientKernel<OnHost<'_>>,
    ) {
        let planes = dx.len() / (size[0] * size[1]).max(1);
        let ranges = self.threads.ranges(planes, dx.len());
        let parts = split(dx, planes, &ranges);
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, dx)| {
                let from = bytemuck::cast_slice(part(from, planes, range));
                max_pool_backward(part(dy, planes, range), from, size, window, dx);
            });
    }

    fn map_planes(&self, MapPlanesKernel { x, y, map }: MapPlanesKernel<OnHost<'_>>) {
        let planes = x.len() / map.elements();
        let ranges = self.threads.ranges(planes, x.len() + y.len());
        let parts = split(y, planes, &ranges);
        let one = |(range, y): (&Range<usize>, &mut [f32])| {
            let x = part(x, planes, range);
            match map {
                PlaneMap::Average { size, window } => average_pool(x, size, window, y),
                PlaneMap::Areas(areas) => areas.forward(x, y),
                PlaneMap::Enlarge { size, factor } => upsample(x, size[1], factor, y),
            }
        };
        self.threads.each(ranges.iter().zip(parts).collect(), one);
    }

    fn map_planes_gradient(
        &self,
        MapPlanesGradientKernel { dy, dx, map }: MapPlanesGradientKernel<OnHost<'_>>,
    ) {
        let planes = dx.len() / map.elements();
        let ranges = self.threads.ranges(planes, dx.len() + dy.len());
        let parts = split(dx, planes, &ranges);
        let one = |(range, dx): (&Range<usize>, &mut [f32])| {
            let dy = part(dy, planes, range);
            match map {
                PlaneMap::Average { size, window } => average_pool_backward(dy, size, window, dx),
                PlaneMap::Areas(areas) => areas.backward(dy, dx),
                PlaneMap::Enlarge { size, factor } => upsample_backward(dy, size[1], factor, dx),
            }
        };
        self.threads.each(ranges.iter().zip(parts).collect(), one);
    }
}
