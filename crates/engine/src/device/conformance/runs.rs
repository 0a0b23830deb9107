//! Kernels that several checks run together: a forward pass and its gradients.

use crate::device::kernel::{
    BatchNormByKernel, BatchNormGradientKernel, BatchNormKernel, CentreGradientsKernel,
    ConvolveInputGradientKernel, ConvolveKernel, ConvolveWeightGradientKernel, EmbedGradientKernel,
    EmbedKernel, EmbedRowsGradientKernel, EmbedRowsKernel, FactorGradientsKernel,
    FactorScoresKernel, KnownStatisticsKernel, MapPlanesGradientKernel, MapPlanesKernel,
    MaxPoolGradientKernel, MaxPoolKernel, MoveStatisticsKernel, PlaneMap, PointGradientsKernel,
    SquaredDistancesKernel, TableRows,
};
use crate::device::{Device, DeviceBuffer, DeviceSlice, DeviceSliceMut};
use ronde_kernels::{BatchNorm, GroupedConvolution, ShortFormat, SlidingWindow};

use super::writable;

/// A convolution of some samples, in a format.
#[derive(Clone, Copy)]
pub(super) struct ConvolutionRun {
    pub(super) shape: GroupedConvolution,
    pub(super) format: Option<ShortFormat>,
    pub(super) samples: usize,
}

impl ConvolutionRun {
    /// Writes `[y, dx, dw]` from `[x, w, dy]`.
    pub(super) fn run(
        self,
        device: &dyn Device,
        [x, w, dy]: [DeviceSlice<'_>; 3],
        [y, dx, dw]: [DeviceSliceMut<'_>; 3],
    ) {
        let Self {
            shape,
            format,
            samples,
        } = self;
        ConvolveKernel {
            x,
            w,
            y,
            shape,
            format,
            samples,
        }
        .run_on(device);
        ConvolveInputGradientKernel {
            w,
            dy,
            dx,
            shape,
            format,
            samples,
        }
        .run_on(device);
        ConvolveWeightGradientKernel {
            x,
            dy,
            dw,
            shape,
            format,
            samples,
        }
        .run_on(device);
    }
}

/// Writes `[y, statistics, dx, of_gamma, of_beta, of_added, y by the statistics, known statistics, new mean, new variance]` of a batch
/// norm from `[x, dy, added, gamma, beta, variance]`; beta is the running mean, too. Without `adds`, `of_added` is not written.
pub(super) fn batch_norm(
    device: &dyn Device,
    (shape, adds): (BatchNorm, bool),
    x: &[DeviceSlice<'_>],
    to: &mut [DeviceBuffer],
) {
    let [x, dy, added, gamma, beta, variance] = *x else {
        return;
    };
    let added = adds.then_some(added);
    let (first, rest) = to.split_at_mut(2);
    let [y, statistics] = writable(first);
    BatchNormKernel {
        x,
        gamma,
        beta,
        added,
        y,
        statistics,
        shape,
    }
    .run_on(device);
    let (y, statistics) = (first[0].slice(), first[1].slice());
    let [
        dx,
        of_gamma,
        of_beta,
        of_added,
        again,
        known,
        new_mean,
        new_variance,
    ] = writable(rest);
    BatchNormGradientKernel {
        x,
        y,
        dy,
        gamma,
        statistics,
        dx,
        of_gamma,
        of_beta,
        of_added: adds.then_some(of_added),
        shape,
    }
    .run_on(device);
    BatchNormByKernel {
        x,
        gamma,
        beta,
        added,
        statistics,
        y: again,
        shape,
    }
    .run_on(device);
    let moved = [known, new_mean, new_variance];
    running_statistics(device, [beta, variance, statistics], moved);
}

/// Writes `[known statistics, new mean, new variance]` from `[mean, variance, statistics]`.
pub(super) fn running_statistics(
    device: &dyn Device,
    [mean, variance, statistics]: [DeviceSlice<'_>; 3],
    [known, new_mean, new_variance]: [DeviceSliceMut<'_>; 3],
) {
    MoveStatisticsKernel {
        mean,
        variance,
        statistics,
        new_mean,
        new_variance,
        momentum: 0.1,
    }
    .run_on(device);
    KnownStatisticsKernel {
        mean,
        variance,
        statistics: known,
        epsilon: 1e-5,
    }
    .run_on(device);
}

/// Writes `[y, from, dx]` from `[x, dy]`.
pub(super) fn max_pool(
    device: &dyn Device,
    (size, window): ([usize; 2], SlidingWindow),
    [x, dy]: [DeviceSlice<'_>; 2],
    to: &mut [DeviceBuffer],
) {
    let [y, from, dx] = to else { return };
    MaxPoolKernel {
        x,
        y: y.slice_mut(),
        from: from.slice_mut(),
        size,
        window,
    }
    .run_on(device);
    MaxPoolGradientKernel {
        dy,
        from: from.slice(),
        dx: dx.slice_mut(),
        size,
        window,
    }
    .run_on(device);
}

/// Writes `[y, dx]` from `[x, dy]`.
pub(super) fn map_planes(
    device: &dyn Device,
    map: PlaneMap,
    [x, dy]: [DeviceSlice<'_>; 2],
    [y, dx]: [DeviceSliceMut<'_>; 2],
) {
    MapPlanesKernel { x, y, map }.run_on(device);
    MapPlanesGradientKernel { dy, dx, map }.run_on(device);
}

/// Writes `[y, gradient of the vectors, gradient of the positions]` from `[tokens, vectors, positions, dy]`.
pub(super) fn embed(
    device: &dyn Device,
    width: usize,
    [tokens, vectors, positions, dy]: [DeviceSlice<'_>; 4],
    [y, of_vectors, of_positions]: [DeviceSliceMut<'_>; 3],
) {
    EmbedKernel {
        tokens,
        vectors,
        positions,
        y,
        width,
    }
    .run_on(device);
    EmbedGradientKernel {
        tokens,
        dy,
        of_vectors,
        of_positions,
        width,
    }
    .run_on(device);
}

/// Writes `[y, gradient of the table]` from `[tokens, table, dy]`.
pub(super) fn embed_rows(
    device: &dyn Device,
    rows: TableRows,
    [tokens, table, dy]: [DeviceSlice<'_>; 3],
    [y, gradient]: [DeviceSliceMut<'_>; 2],
) {
    EmbedRowsKernel {
        tokens,
        table,
        y,
        rows,
    }
    .run_on(device);
    EmbedRowsGradientKernel {
        tokens,
        dy,
        gradient,
        rows,
    }
    .run_on(device);
}

/// Writes `[y, gradient of the points, gradient of the centres]` from `[points, centres, dy]` of rows of five.
pub(super) fn distances(
    device: &dyn Device,
    scales: &[f32],
    [points, centres, dy]: [DeviceSlice<'_>; 3],
    [y, of_points, of_centres]: [DeviceSliceMut<'_>; 3],
) {
    let width = 5;
    SquaredDistancesKernel {
        points,
        centres,
        to: y,
        width,
    }
    .run_on(device);
    PointGradientsKernel {
        points,
        centres,
        dy,
        to: of_points,
        width,
    }
    .run_on(device);
    CentreGradientsKernel {
        points,
        centres,
        dy,
        to: of_centres,
        width,
        scales: scales.to_vec(),
    }
    .run_on(device);
}

/// Writes `y` and the gradients of the tables from the tables, `[pairs, dy]`, and rows of three factors.
pub(super) fn factors(
    device: &dyn Device,
    [users, items, user_bias, item_bias, bias]: [DeviceSlice<'_>; 5],
    [pairs, dy]: [DeviceSlice<'_>; 2],
    [y, of_users, of_items, of_user_bias, of_item_bias, of_bias]: [DeviceSliceMut<'_>; 6],
) {
    let factors = 3;
    FactorScoresKernel {
        pairs,
        users,
        items,
        user_bias,
        item_bias,
        bias,
        y,
        factors,
    }
    .run_on(device);
    FactorGradientsKernel {
        pairs,
        users,
        items,
        dy,
        of_users,
        of_items,
        of_user_bias,
        of_item_bias,
        of_bias,
        factors,
    }
    .run_on(device);
}
