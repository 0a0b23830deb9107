//! Distances, and scores of users and items, on the host.

use ronde_kernels::{add_centre_gradients, point_gradients, squared_distances};

use super::HostDevice;
use crate::device::kernel::{
    CentreGradientsKernel, FactorGradientsKernel, FactorScoresKernel, OnHost, PointGradientsKernel,
    SquaredDistancesKernel, TableKernels,
};

/// Returns the rows of a user and an item.
fn rows<'a>(pair: &[f32], tables: [&'a [f32]; 2], factors: usize) -> ([usize; 2], [&'a [f32]; 2]) {
    let numbers = [pair[0] as usize, pair[1] as usize];
    let row = |which: usize| &tables[which][numbers[which] * factors..][..factors];
    (numbers, [row(0), row(1)])
}

impl HostDevice {
    pub(super) fn run_table(&self, kernel: TableKernels<OnHost<'_>>) {
        match kernel {
            TableKernels::SquaredDistances(kernel) => self.squared_distances(kernel),
            TableKernels::PointGradients(kernel) => self.point_gradients(kernel),
            TableKernels::CentreGradients(kernel) => self.centre_gradients(kernel),
            TableKernels::FactorScores(kernel) => self.factor_scores(kernel),
            TableKernels::FactorGradients(kernel) => self.factor_gradients(kernel),
        }
    }

    fn squared_distances(
        &self,
        SquaredDistancesKernel {
            points,
            centres,
            to,
            width,
        }: SquaredDistancesKernel<OnHost<'_>>,
    ) {
        squared_distances(points, centres, width, to);
    }

    fn point_gradients(
        &self,
        PointGradientsKernel {
            points,
            centres,
            dy,
            to,
            width,
        }: PointGradientsKernel<OnHost<'_>>,
    ) {
        point_gradients(dy, points, centres, width, to);
    }

    fn centre_gradients(
        &self,
        CentreGradientsKernel {
            points,
            centres,
            dy,
            to,
            width,
            scales,
        }: CentreGradientsKernel<OnHost<'_>>,
    ) {
        to.fill(0.0);
        add_centre_gradients(dy, points, centres, width, to);
        for (row, scale) in to.chunks_exact_mut(width.max(1)).zip(scales) {
            row.iter_mut().for_each(|value| *value *= scale);
        }
    }

    fn factor_scores(
        &self,
        FactorScoresKernel {
            pairs,
            users,
            items,
            user_bias,
            item_bias,
            bias,
            y,
            factors,
        }: FactorScoresKernel<OnHost<'_>>,
    ) {
        for (to, pair) in y.iter_mut().zip(pairs.chunks_exact(2)) {
            let ([user, item], [a, b]) = rows(pair, [users, items], factors);
            let product: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            *to = bias[0] + (user_bias[user] + item_bias[item]) + product;
        }
    }

    fn factor_gradients(
        &self,
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
        }: FactorGradientsKernel<OnHost<'_>>,
    ) {
        for gradient in [
            &mut *of_users,
            &mut *of_items,
            &mut *of_user_bias,
            &mut *of_item_bias,
            &mut *of_bias,
        ] {
            gradient.fill(0.0);
        }
        for (pair, slope) in pairs.chunks_exact(2).zip(dy) {
            let ([user, item], [a, b]) = rows(pair, [users, items], factors);
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
