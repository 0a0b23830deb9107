//! Distances from rows of tables, and products of chosen rows.

use super::operands::kernels;

kernels! {
    /// Distances from rows of tables, and products of chosen rows.
    TableKernels {
        /// Writes the squared distance of each point from each centre, `[points, centres]`, of rows of `width` floats.
        SquaredDistancesKernel as SquaredDistances, "squared_distances" {
            read points,
            read centres,
            write to,
            ;
            /// The number of floats of a point.
            width: usize,
        }

        /// Writes the gradient of the points of [`SquaredDistancesKernel`]. A distance whose gradient is zero has no effect, even
        /// if it is NaN; the same holds for the centres.
        PointGradientsKernel as PointGradients, "point_gradients" {
            read points,
            read centres,
            read dy,
            write to,
            ;
            /// The number of floats of a point.
            width: usize,
        }

        /// Writes the gradient of each centre of [`SquaredDistancesKernel`], times its scale.
        CentreGradientsKernel as CentreGradients, "centre_gradients" {
            read points,
            read centres,
            read dy,
            write to,
            ;
            /// The number of floats of a point.
            width: usize,
            /// The factor of each centre.
            scales: Vec<f32>,
        }

        /// Writes the score of each user and item: the product of their rows of `factors` floats, plus a bias of each and of all.
        /// `pairs` are the numbers of a user and an item each, below the numbers of rows.
        FactorScoresKernel as FactorScores, "factor_scores" {
            read pairs,
            read users,
            read items,
            read user_bias,
            read item_bias,
            read bias,
            write y,
            ;
            /// The number of floats of a row.
            factors: usize,
        }

        /// Writes the gradients of all tables of [`FactorScoresKernel`], summed in the order of the pairs.
        FactorGradientsKernel as FactorGradients, "factor_gradients" {
            read pairs,
            read users,
            read items,
            read dy,
            write of_users,
            write of_items,
            write of_user_bias,
            write of_item_bias,
            write of_bias,
            ;
            /// The number of floats of a row.
            factors: usize,
        }
    }
}
