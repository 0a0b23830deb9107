//! Normalisations on the host.

use ronde_kernels::{Affine, BatchNorm, BatchNormGradients, BatchStatistics, GroupNorm};

use super::HostDevice;
use crate::device::{AffineSlices, DeviceSlice, DeviceSliceMut, NormKernels};

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
        let added = added.map(DeviceSlice::host);
        let found = shape.forward(x.host(), affine(of), added, y.host());
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
        shape.normalise(x.host(), &known, affine(of), added, y.host());
    }

    fn batch_norm_gradient(
        &self,
        shape: &BatchNorm,
        [x, y, dy, gamma]: [DeviceSlice<'_>; 4],
        statistics: DeviceSlice<'_>,
        [input, of_gamma, of_beta]: [DeviceSliceMut<'_>; 3],
        of_added: Option<DeviceSliceMut<'_>>,
    ) {
        let gradients = BatchNormGradients {
            input: input.host(),
            gamma: of_gamma.host(),
            beta: of_beta.host(),
            added: of_added.map(DeviceSliceMut::host),
        };
        let statistics = read_statistics(statistics);
        let (x, y, dy) = (x.host(), y.host(), dy.host());
        shape.backward(x, y, dy, gamma.host(), &statistics, gradients);
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
        shape.gradient_sums(x.host(), dy.host(), &read_statistics(statistics))
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
        shape.input_gradient(x.host(), gamma.host(), &statistics, summed, dy.host());
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
        let found = shape.forward(x.host(), affine(of), y.host());
        statistics.host().copy_from_slice(found.as_flattened());
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
        let rows = ronde_kernels::layer_norm(x.host(), gamma, beta, epsilon, y.host());
        statistics.host().copy_from_slice(rows.as_flattened());
    }

    fn layer_norm_gradient(
        &self,
        [x, dy, gamma]: [DeviceSlice<'_>; 3],
        statistics: DeviceSlice<'_>,
        [input, of_gamma, of_beta]: [DeviceSliceMut<'_>; 3],
    ) {
        let (of_gamma, of_beta) = (of_gamma.host(), of_beta.host());
        of_gamma.fill(0.0);
        of_beta.fill(0.0);
        let (x, dy, gamma) = (x.host(), dy.host(), gamma.host());
        let rows = pairs(statistics);
        ronde_kernels::layer_norm_backward(x, gamma, rows, dy, input.host(), [of_gamma, of_beta]);
    }
}
