//! Normalisations on the host.

use std::ops::Range;

use ronde_kernels::{
    Affine, BatchNorm, BatchNormGradients, BatchStatistics, GroupNorm, layer_norm_affine_gradients,
    layer_norm_backward,
};

use super::HostDevice;
use super::threads::{part, split};
use crate::device::{AffineSlices, DeviceSlice, DeviceSliceMut, ElementKernels, NormKernels};

fn affine(of: AffineSlices<'_>) -> Affine<'_> {
    Affine {
        gamma: of.gamma.host(),
        beta: of.beta.host(),
    }
}

/// Reads statistics stored as `[3, C]`.
fn read_statistics(from: DeviceSlice<'_>) -> BatchStatistics {
    let values = from.host();
    let channels = values.len() / 3;
    let part = |index: usize| values[index * channels..(index + 1) * channels].to_vec();
    BatchStatistics {
        mean: part(0),
        variance: part(1),
        inverse: part(2),
    }
}

/// Returns statistics as `[3, C]`.
pub(crate) fn statistics_values(found: &BatchStatistics) -> Vec<f32> {
    [&found.mean[..], &found.variance, &found.inverse].concat()
}

/// Views statistics of rows or groups.
fn pairs(of: DeviceSlice<'_>) -> &[[f32; 2]] {
    of.host().as_chunks().0
}

impl HostDevice {
    /// Returns a row of sums for each sample, summed in the order of the samples.
    fn sums_of_samples(
        &self,
        samples: &[Range<usize>],
        width: usize,
        sums: impl Fn(usize) -> Vec<f64> + Sync,
    ) -> Vec<f64> {
        let count = samples.last().map_or(0, |range| range.end);
        let mut each = vec![Vec::new(); count];
        let mut rest = &mut each[..];
        let mut parts = Vec::new();
        for range in samples {
            let (part, after) = rest.split_at_mut(range.len());
            parts.push((range, part));
            rest = after;
        }
        self.threads.each(parts, |(range, found)| {
            for (sample, found) in range.clone().zip(found) {
                *found = sums(sample);
            }
        });
        let mut total = vec![0.0; width];
        for row in each {
            for (total, sum) in total.iter_mut().zip(row) {
                *total += sum;
            }
        }
        total
    }

    /// Normalises by statistics, sample by sample.
    fn normalise(
        &self,
        shape: &BatchNorm,
        x: &[f32],
        statistics: &BatchStatistics,
        affine: Affine<'_>,
        (added, y): (Option<&[f32]>, &mut [f32]),
    ) {
        let ranges = self.threads.ranges(shape.samples, x.len());
        let parts = split(y, shape.samples, &ranges);
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, y)| {
                let of = |values| part(values, shape.samples, range);
                of_samples(shape, range).normalise(of(x), statistics, affine, added.map(of), y);
            });
    }

    /// Returns the gradient sums of all samples.
    fn gradient_sums(
        &self,
        shape: &BatchNorm,
        x: &[f32],
        dy: &[f32],
        statistics: &BatchStatistics,
    ) -> Vec<f64> {
        let samples = shape.samples;
        let ranges = self.threads.ranges(samples, x.len());
        if ranges.len() == 1 {
            return shape.gradient_sums(x, dy, statistics);
        }
        self.sums_of_samples(&ranges, shape.sums_len(), |sample| {
            let of = |values| part(values, samples, &(sample..sample + 1));
            let one = of_samples(shape, &(0..1));
            one.gradient_sums(of(x), of(dy), statistics)
        })
    }
}

impl HostDevice {
    /// Turns the gradient of the output into that of the input, sample by sample.
    fn turn_gradient(
        &self,
        shape: &BatchNorm,
        x: &[f32],
        gamma: &[f32],
        statistics: &BatchStatistics,
        summed: &[f64],
        dy: &mut [f32],
    ) {
        let ranges = self.threads.ranges(shape.samples, x.len());
        let parts = split(dy, shape.samples, &ranges);
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, dy)| {
                let x = part(x, shape.samples, range);
                of_samples(shape, range).input_gradient(x, gamma, statistics, summed, dy);
            });
    }
}

/// Returns the shape of some samples of a batch.
fn of_samples(shape: &BatchNorm, samples: &Range<usize>) -> BatchNorm {
    BatchNorm {
        samples: samples.len(),
        ..*shape
    }
}

impl NormKernels for HostDevice {
    fn batch_norm(
        &self,
        shape: &BatchNorm,
        x: DeviceSlice<'_>,
        of: AffineSlices<'_>,
        added: Option<DeviceSlice<'_>>,
        y: DeviceSliceMut<'_>,
        statistics: DeviceSliceMut<'_>,
    ) {
        let (x, y, added) = (x.host(), y.host(), added.map(DeviceSlice::host));
        let ranges = self.threads.ranges(shape.samples, x.len());
        let found = if ranges.len() == 1 {
            shape.forward(x, affine(of), added, y)
        } else {
            // Sums for each sample, added as one thread adds them.
            let one = of_samples(shape, &(0..1));
            let of_sample = |sample| part(x, shape.samples, &(sample..sample + 1));
            let count = shape.samples * shape.places;
            let channels = shape.channels;
            let totals =
                self.sums_of_samples(&ranges, channels, |sample| one.totals(of_sample(sample)));
            let mean = BatchStatistics::mean_of(&totals, count);
            let squares = self.sums_of_samples(&ranges, channels, |sample| {
                one.squares(of_sample(sample), &mean)
            });
            let found = BatchStatistics::of_squares(&mean, &squares, count, shape.epsilon);
            self.normalise(shape, x, &found, affine(of), (added, y));
            found
        };
        statistics
            .host()
            .copy_from_slice(&statistics_values(&found));
    }

    fn batch_norm_by(
        &self,
        shape: &BatchNorm,
        x: DeviceSlice<'_>,
        of: AffineSlices<'_>,
        added: Option<DeviceSlice<'_>>,
        y: DeviceSliceMut<'_>,
        statistics: DeviceSlice<'_>,
    ) {
        let known = read_statistics(statistics);
        let added = added.map(DeviceSlice::host);
        self.normalise(shape, x.host(), &known, affine(of), (added, y.host()));
    }

    fn batch_norm_gradient(
        &self,
        shape: &BatchNorm,
        [x, y, dy, gamma]: [DeviceSlice<'_>; 4],
        statistics: DeviceSlice<'_>,
        [input, of_gamma, of_beta]: [DeviceSliceMut<'_>; 3],
        of_added: Option<DeviceSliceMut<'_>>,
    ) {
        let statistics = read_statistics(statistics);
        let (x, y, dy, gamma) = (x.host(), y.host(), dy.host(), gamma.host());
        let (input, added) = (input.host(), of_added.map(DeviceSliceMut::host));
        let (of_gamma, of_beta) = (of_gamma.host(), of_beta.host());
        let ranges = self.threads.ranges(shape.samples, x.len());
        if ranges.len() == 1 {
            let gradients = BatchNormGradients {
                input,
                gamma: of_gamma,
                beta: of_beta,
                added,
            };
            return shape.backward(x, y, dy, gamma, &statistics, gradients);
        }
        if shape.rectified {
            self.rectify_gradient(
                DeviceSlice::Host(y),
                DeviceSlice::Host(dy),
                DeviceSliceMut::Host(input),
            );
        } else {
            input.copy_from_slice(dy);
        }
        if let Some(added) = added {
            added.copy_from_slice(input);
        }
        let sums = self.gradient_sums(shape, x, input, &statistics);
        shape.affine_gradients(&sums, &statistics, of_gamma, of_beta);
        self.turn_gradient(shape, x, gamma, &statistics, &sums, input);
    }

    fn known_statistics(
        &self,
        [mean, variance]: [DeviceSlice<'_>; 2],
        epsilon: f64,
        statistics: DeviceSliceMut<'_>,
    ) {
        let known = BatchStatistics::known(mean.host(), variance.host(), epsilon);
        statistics
            .host()
            .copy_from_slice(&statistics_values(&known));
    }

    fn move_statistics(
        &self,
        running: [DeviceSlice<'_>; 2],
        statistics: DeviceSlice<'_>,
        momentum: f64,
        to: [DeviceSliceMut<'_>; 2],
    ) {
        let channels = statistics.length() / 3;
        let parts = statistics.host().chunks_exact(channels.max(1));
        for ((old, new), to) in running.into_iter().zip(parts).zip(to) {
            for ((to, old), new) in to.host().iter_mut().zip(old.host()).zip(new) {
                *to = old * (1.0 - momentum) as f32 + new * momentum as f32;
            }
        }
    }

    fn batch_moments(&self, shape: &BatchNorm, x: DeviceSlice<'_>) -> Vec<f64> {
        shape.moments(x.host())
    }

    fn batch_gradient_sums(
        &self,
        shape: &BatchNorm,
        x: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        statistics: DeviceSlice<'_>,
    ) -> Vec<f64> {
        self.gradient_sums(shape, x.host(), dy.host(), &read_statistics(statistics))
    }

    fn batch_input_gradient(
        &self,
        shape: &BatchNorm,
        x: DeviceSlice<'_>,
        gamma: DeviceSlice<'_>,
        statistics: DeviceSlice<'_>,
        summed: &[f64],
        dy: DeviceSliceMut<'_>,
    ) {
        let statistics = read_statistics(statistics);
        self.turn_gradient(
            shape,
            x.host(),
            gamma.host(),
            &statistics,
            summed,
            dy.host(),
        );
    }

    fn batch_affine_gradients(
        &self,
        shape: &BatchNorm,
        own: &[f64],
        statistics: DeviceSlice<'_>,
        [gamma, beta]: [DeviceSliceMut<'_>; 2],
    ) {
        let statistics = read_statistics(statistics);
        shape.affine_gradients(own, &statistics, gamma.host(), beta.host());
    }

    fn group_norm(
        &self,
        shape: &GroupNorm,
        x: DeviceSlice<'_>,
        of: AffineSlices<'_>,
        y: DeviceSliceMut<'_>,
        statistics: DeviceSliceMut<'_>,
    ) {
        let (x, y, affine) = (x.host(), y.host(), affine(of));
        let samples = shape.samples;
        let ranges = self.threads.ranges(samples, x.len());
        let parts = split(y, samples, &ranges).into_iter();
        let parts = parts.zip(split(statistics.host(), samples, &ranges));
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, (y, to))| {
                let shape = GroupNorm {
                    samples: range.len(),
                    ..*shape
                };
                let found = shape.forward(part(x, samples, range), affine, y);
                to.copy_from_slice(found.as_flattened());
            });
    }

    fn group_norm_gradient(
        &self,
        shape: &GroupNorm,
        [x, dy, gamma]: [DeviceSlice<'_>; 3],
        statistics: DeviceSlice<'_>,
        [input, of_gamma, of_beta]: [DeviceSliceMut<'_>; 3],
    ) {
        let of_affine = [of_gamma.host(), of_beta.host()].map(|values| {
            values.fill(0.0);
            values
        });
        let (x, dy, gamma) = (x.host(), dy.host(), gamma.host());
        shape.backward(x, gamma, pairs(statistics), dy, input.host(), of_affine);
    }

    fn layer_norm(
        &self,
        x: DeviceSlice<'_>,
        of: AffineSlices<'_>,
        epsilon: f64,
        y: DeviceSliceMut<'_>,
        statistics: DeviceSliceMut<'_>,
    ) {
        let Affine { gamma, beta } = affine(of);
        let (x, y) = (x.host(), y.host());
        let rows = x.len() / gamma.len().max(1);
        let ranges = self.threads.ranges(rows, 2 * x.len());
        let parts = split(y, rows, &ranges).into_iter();
        let parts = parts.zip(split(statistics.host(), rows, &ranges));
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, (y, to))| {
                let x = part(x, rows, range);
                let found = ronde_kernels::layer_norm(x, gamma, beta, epsilon, y);
                to.copy_from_slice(found.as_flattened());
            });
    }

    fn layer_norm_gradient(
        &self,
        [x, dy, gamma]: [DeviceSlice<'_>; 3],
        statistics: DeviceSlice<'_>,
        [input, of_gamma, of_beta]: [DeviceSliceMut<'_>; 3],
    ) {
        let (of_gamma, of_beta) = (of_gamma.host(), of_beta.host());
        let (x, dy, gamma, dx) = (x.host(), dy.host(), gamma.host(), input.host());
        let (rows, width) = (pairs(statistics), gamma.len());
        let ranges = self.threads.ranges(rows.len(), 4 * x.len());
        if ranges.len() == 1 {
            return layer_norm_backward(x, gamma, rows, dy, dx, [of_gamma, of_beta]);
        }
        let parts = split(dx, rows.len(), &ranges);
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, dx)| {
                let of = |values| part(values, rows.len(), range);
                let mut unused = [vec![0.0; width], vec![0.0; width]];
                let affine = unused.each_mut().map(Vec::as_mut_slice);
                layer_norm_backward(of(x), gamma, &rows[range.clone()], of(dy), dx, affine);
            });
        let ranges = self.threads.ranges(width, x.len());
        let parts = split(of_gamma, width, &ranges).into_iter();
        let parts = parts.zip(split(of_beta, width, &ranges));
        self.threads.each(
            ranges.iter().zip(parts).collect(),
            |(columns, (gamma, beta))| {
                layer_norm_affine_gradients(x, rows, dy, columns.start, [gamma, beta]);
            },
        );
    }
}
