//! Normalisations on the host.

use std::ops::Range;

use ronde_kernels::{
    Affine, BatchNorm, BatchNormGradients, BatchStatistics, GroupNorm, layer_norm_affine_gradients,
    layer_norm_backward,
};

use super::HostDevice;
use super::threads::{part, split};
use crate::device::kernel::{
    BatchAffineGradientsKernel, BatchGradientSumsKernel, BatchInputGradientKernel,
    BatchMomentsKernel, BatchNormByKernel, BatchNormGradientKernel, BatchNormKernel,
    GroupNormGradientKernel, GroupNormKernel, KnownStatisticsKernel, LayerNormGradientKernel,
    LayerNormKernel, MoveStatisticsKernel, NormKernels, OnHost, RectifyGradientKernel,
};
use crate::device::write_f64;

/// Reads statistics stored as `[3, C]`.
fn read_statistics(values: &[f32]) -> BatchStatistics {
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
fn pairs(values: &[f32]) -> &[[f32; 2]] {
    values.as_chunks().0
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

impl HostDevice {
    pub(super) fn run_norm(&self, kernel: NormKernels<OnHost<'_>>) {
        match kernel {
            NormKernels::Batch(kernel) => self.batch_norm(kernel),
            NormKernels::BatchBy(kernel) => self.batch_norm_by(kernel),
            NormKernels::BatchGradient(kernel) => self.batch_norm_gradient(kernel),
            NormKernels::KnownStatistics(kernel) => self.known_statistics(kernel),
            NormKernels::MoveStatistics(kernel) => self.move_statistics(kernel),
            NormKernels::BatchMoments(kernel) => self.batch_moments(kernel),
            NormKernels::BatchGradientSums(kernel) => self.batch_gradient_sums(kernel),
            NormKernels::BatchInputGradient(kernel) => self.batch_input_gradient(kernel),
            NormKernels::BatchAffineGradients(kernel) => self.batch_affine_gradients(kernel),
            NormKernels::Group(kernel) => self.group_norm(kernel),
            NormKernels::GroupGradient(kernel) => self.group_norm_gradient(kernel),
            NormKernels::Layer(kernel) => self.layer_norm(kernel),
            NormKernels::LayerGradient(kernel) => self.layer_norm_gradient(kernel),
        }
    }

    fn batch_norm(
        &self,
        BatchNormKernel {
            x,
            gamma,
            beta,
            added,
            y,
            statistics,
            shape,
        }: BatchNormKernel<OnHost<'_>>,
    ) {
        let shape = &shape;
        let ranges = self.threads.ranges(shape.samples, x.len());
        let found = if ranges.len() == 1 {
            shape.forward(x, Affine { gamma, beta }, added, y)
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
            self.normalise(shape, x, &found, Affine { gamma, beta }, (added, y));
            found
        };
        statistics.copy_from_slice(&statistics_values(&found));
    }

    fn batch_norm_by(
        &self,
        BatchNormByKernel {
            x,
            gamma,
            beta,
            added,
            statistics,
            y,
            shape,
        }: BatchNormByKernel<OnHost<'_>>,
    ) {
        let shape = &shape;
        let known = read_statistics(statistics);
        self.normalise(shape, x, &known, Affine { gamma, beta }, (added, y));
    }

    fn batch_norm_gradient(
        &self,
        BatchNormGradientKernel {
            x,
            y,
            dy,
            gamma,
            statistics,
            dx: input,
            of_gamma,
            of_beta,
            of_added: added,
            shape,
        }: BatchNormGradientKernel<OnHost<'_>>,
    ) {
        let shape = &shape;
        let statistics = read_statistics(statistics);
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
            let dx = &mut *input;
            self.rectify_gradient(RectifyGradientKernel { y, dy, dx });
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
        KnownStatisticsKernel {
            mean,
            variance,
            statistics,
            epsilon,
        }: KnownStatisticsKernel<OnHost<'_>>,
    ) {
        let known = BatchStatistics::known(mean, variance, epsilon);
        statistics.copy_from_slice(&statistics_values(&known));
    }

    fn move_statistics(
        &self,
        MoveStatisticsKernel {
            mean,
            variance,
            statistics,
            new_mean,
            new_variance,
            momentum,
        }: MoveStatisticsKernel<OnHost<'_>>,
    ) {
        let channels = statistics.len() / 3;
        let parts = statistics.chunks_exact(channels.max(1));
        let running = [(mean, new_mean), (variance, new_variance)];
        for ((old, to), new) in running.into_iter().zip(parts) {
            for ((to, old), new) in to.iter_mut().zip(old).zip(new) {
                *to = old * (1.0 - momentum) as f32 + new * momentum as f32;
            }
        }
    }

    fn batch_moments(&self, BatchMomentsKernel { x, sums, shape }: BatchMomentsKernel<OnHost<'_>>) {
        write_f64(&shape.moments(x), sums);
    }

    fn batch_gradient_sums(
        &self,
        BatchGradientSumsKernel {
            x,
            dy,
            statistics,
            sums,
            shape,
        }: BatchGradientSumsKernel<OnHost<'_>>,
    ) {
        let found = self.gradient_sums(&shape, x, dy, &read_statistics(statistics));
        write_f64(&found, sums);
    }

    fn batch_input_gradient(
        &self,
        BatchInputGradientKernel {
            x,
            gamma,
            statistics,
            dy,
            shape,
            summed,
        }: BatchInputGradientKernel<OnHost<'_>>,
    ) {
        let statistics = read_statistics(statistics);
        self.turn_gradient(&shape, x, gamma, &statistics, &summed, dy);
    }

    fn batch_affine_gradients(
        &self,
        BatchAffineGradientsKernel {
            statistics,
            of_gamma,
            of_beta,
            shape,
            own,
        }: BatchAffineGradientsKernel<OnHost<'_>>,
    ) {
        let statistics = read_statistics(statistics);
        shape.affine_gradients(&own, &statistics, of_gamma, of_beta);
    }

    fn group_norm(
        &self,
        GroupNormKernel {
            x,
            gamma,
            beta,
            y,
            statistics,
            shape,
        }: GroupNormKernel<OnHost<'_>>,
    ) {
        let affine = Affine { gamma, beta };
        let samples = shape.samples;
        let ranges = self.threads.ranges(samples, x.len());
        let parts = split(y, samples, &ranges).into_iter();
        let parts = parts.zip(split(statistics, samples, &ranges));
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, (y, to))| {
                let shape = GroupNorm {
                    samples: range.len(),
                    ..shape
                };
                let found = shape.forward(part(x, samples, range), affine, y);
                to.copy_from_slice(found.as_flattened());
            });
    }

    fn group_norm_gradient(
        &self,
        GroupNormGradientKernel {
            x,
            dy,
            gamma,
            statistics,
            dx: input,
            of_gamma,
            of_beta,
            shape,
        }: GroupNormGradientKernel<OnHost<'_>>,
    ) {
        let of_affine = [of_gamma, of_beta].map(|values| {
            values.fill(0.0);
            values
        });
        shape.backward(x, gamma, pairs(statistics), dy, input, of_affine);
    }

    fn layer_norm(
        &self,
        LayerNormKernel {
            x,
            gamma,
            beta,
            y,
            statistics,
            epsilon,
        }: LayerNormKernel<OnHost<'_>>,
    ) {
        let rows = x.len() / gamma.len().max(1);
        let ranges = self.threads.ranges(rows, 2 * x.len());
        let parts = split(y, rows, &ranges).into_iter();
        let parts = parts.zip(split(statistics, rows, &ranges));
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, (y, to))| {
                let x = part(x, rows, range);
                let found = ronde_kernels::layer_norm(x, gamma, beta, epsilon, y);
                to.copy_from_slice(found.as_flattened());
            });
    }

    fn layer_norm_gradient(
        &self,
        LayerNormGradientKernel {
            x,
            dy,
            gamma,
            statistics,
            dx,
            of_gamma,
            of_beta,
        }: LayerNormGradientKernel<OnHost<'_>>,
    ) {
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
