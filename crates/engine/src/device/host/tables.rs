//! Distances, and scores of users and items, on the host.

use ronde_kernels::{add_centre_gradients, point_gradients, squared_distances};

use super::HostDevice;
use crate::device::{DeviceSlice, DeviceSliceMut, TableKernels};

/// Returns the rows of a user and an item.
fn rows<'a>(pair: &[f32], tables: [&'a [f32]; 2], factors: usize) -> ([usize; 2], [&'a [f32]; 2]) {
    let numbers = [pair[0] as usize, pair[1] as usize];
    let row = |which: usize| &tables[which][numbers[which] * factors..][..factors];
    (numbers, [row(0), row(1)])
}

impl TableKernels for HostDevice {
    fn squared_distances(
        &self,
        width: usize,
        [points, centres]: [DeviceSlice<'_>; 2],
        to: DeviceSliceMut<'_>,
    ) {
        squared_distances(points.host(), centres.host(), width, to.host());
    }

    fn point_gradients(
        &self,
        width: usize,
        [points, centres]: [DeviceSlice<'_>; 2],
        dy: DeviceSlice<'_>,
        to: DeviceSliceMut<'_>,
    ) {
        point_gradients(dy.host(), points.host(), centres.host(), width, to.host());
    }

    fn centre_gradients(
        &self,
        width: usize,
        [points, centres]: [DeviceSlice<'_>; 2],
        dy: DeviceSlice<'_>,
        scales: &[f32],
        to: DeviceSliceMut<'_>,
    ) {
        let to = to.host();
        to.fill(0.0);
        add_centre_gradients(dy.host(), points.host(), centres.host(), width, to);
        for (row, scale) in to.chunks_exact_mut(width.max(1)).zip(scales) {
            row.iter_mut().for_each(|value| *value *= scale);
        }
    }

    fn factor_scores(
        &self,
        factors: usize,
        pairs: DeviceSlice<'_>,
        tables: [DeviceSlice<'_>; 5],
        y: DeviceSliceMut<'_>,
    ) {
        let [users, items, user_bias, item_bias, bias] = tables.map(DeviceSlice::host);
        for (to, pair) in y.host().iter_mut().zip(pairs.host().chunks_exact(2)) {
            let ([user, item], [a, b]) = rows(pair, [users, items], factors);
            let product: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            *to = bias[0] + (user_bias[user] + item_bias[item]) + product;
        }
    }

    fn factor_gradients(
        &self,
        factors: usize,
        pairs: DeviceSlice<'_>,
        tables: [DeviceSlice<'_>; 2],
        dy: DeviceSlice<'_>,
        gradients: [DeviceSliceMut<'_>; 5],
    ) {
        let tables = tables.map(DeviceSlice::host);
        let mut gradients = gradients.map(DeviceSliceMut::host);
        for gradient in &mut gradients {
            gradient.fill(0.0);
        }
        let [of_users, of_items, of_user_bias, of_item_bias, of_bias] = gradients;
        for (pair, slope) in pairs.host().chunks_exact(2).zip(dy.host()) {
            let ([user, item], [a, b]) = rows(pair, tables, factors);
            for (to, number, partner) in [(&mut *of_users, user, b), (&mut *of_items, item, a)] {
                let row = &mut to[number * factors..][..factors];
                for (to, factor) in row.iter_mut().zip(partner) {
                    *to += slope * factor;
                }
            }
            of_user_bias[user] += slope;
            of_item_bias[item] += slope;
            of_bias[0] += slope;
        }
    }
}
