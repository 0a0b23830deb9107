//! Normalisations.

use ronde_kernels::{BatchNorm, GroupNorm};

use super::operands::kernels;

kernels! {
    /// Normalisations, by a scale `gamma` and a shift `beta` per channel or per element of a row.
    ///
    /// Statistics of a batch are `[3, C]`: mean, variance without correction, and inverse deviation of each channel. Those of
    /// rows and groups are `[.., 2]`: mean and inverse deviation. Sums over samples are f64, in the bits of two floats each; see
    /// [`DeviceSlice::to_f64`](crate::DeviceSlice::to_f64).
    NormKernels {
        /// Normalises channels by the statistics of the batch, which it writes; then adds `added` if given, then rectifies if
        /// configured. NaN or an infinite value makes its whole channel NaN. Without samples, mean and variance are zero.
        BatchNormKernel as Batch, "batch_norm" {
            read x,
            read gamma,
            read beta,
            read_optional added,
            write y,
            write statistics,
            ;
            /// The shape of the input.
            shape: BatchNorm,
        }

        /// Normalises channels by given statistics, and otherwise does the same as [`BatchNormKernel`].
        BatchNormByKernel as BatchBy, "batch_norm_by" {
            read x,
            read gamma,
            read beta,
            read_optional added,
            read statistics,
            write y,
            ;
            /// The shape of the input.
            shape: BatchNorm,
        }

        /// Computes the gradients of the input, of gamma and beta, and of the added operand if requested.
        BatchNormGradientKernel as BatchGradient, "batch_norm_gradient" {
            read x,
            read y,
            read dy,
            read gamma,
            read statistics,
            write dx,
            write of_gamma,
            write of_beta,
            write_optional of_added,
            ;
            /// The shape of the input.
            shape: BatchNorm,
        }

        /// Writes statistics from running means and variances.
        KnownStatisticsKernel as KnownStatistics, "known_statistics" {
            read mean,
            read variance,
            write statistics,
            ;
            /// The term that is added to each variance.
            epsilon: f64,
        }

        /// Writes `old * (1 - momentum) + new * momentum` for the running mean and variance.
        MoveStatisticsKernel as MoveStatistics, "move_statistics" {
            read mean,
            read variance,
            read statistics,
            write new_mean,
            write new_variance,
            ;
            /// The share of the new statistics.
            momentum: f64,
        }

        /// Writes the number of elements of a channel, and the sum and sum of squares of each channel.
        BatchMomentsKernel as BatchMoments, "batch_moments" {
            read x,
            write sums,
            ;
            /// The shape of the input.
            shape: BatchNorm,
        }

        /// Writes the number of elements of a channel, and per channel the sum of the gradients and of the gradients times the
        /// normalised input.
        BatchGradientSumsKernel as BatchGradientSums, "batch_gradient_sums" {
            read x,
            read dy,
            read statistics,
            write sums,
            ;
            /// The shape of the input.
            shape: BatchNorm,
        }

        /// Turns the gradient of the output into that of the input, given the sums over all shards.
        BatchInputGradientKernel as BatchInputGradient, "batch_input_gradient" {
            read x,
            read gamma,
            read statistics,
            update dy,
            ;
            /// The shape of the input.
            shape: BatchNorm,
            /// The sums of [`BatchGradientSumsKernel`] over all shards.
            summed: Vec<f64>,
        }

        /// Writes the gradients of gamma and beta of a shard from its own sums.
        BatchAffineGradientsKernel as BatchAffineGradients, "batch_affine_gradients" {
            read statistics,
            write of_gamma,
            write of_beta,
            ;
            /// The shape of the input.
            shape: BatchNorm,
            /// The sums of [`BatchGradientSumsKernel`] of the shard.
            own: Vec<f64>,
        }

        /// Normalises groups of channels of each sample; writes the statistics of each group.
        GroupNormKernel as Group, "group_norm" {
            read x,
            read gamma,
            read beta,
            write y,
            write statistics,
            ;
            /// The shape of the input.
            shape: GroupNorm,
        }

        /// Computes the gradients of the input, gamma and beta of a group normalisation.
        GroupNormGradientKernel as GroupGradient, "group_norm_gradient" {
            read x,
            read dy,
            read gamma,
            read statistics,
            write dx,
            write of_gamma,
            write of_beta,
            ;
            /// The shape of the input.
            shape: GroupNorm,
        }

        /// Normalises rows of the length of gamma; writes the statistics of each row.
        LayerNormKernel as Layer, "layer_norm" {
            read x,
            read gamma,
            read beta,
            write y,
            write statistics,
            ;
            /// The term that is added to each variance.
            epsilon: f64,
        }

        /// Computes the gradients of the input, gamma and beta of [`LayerNormKernel`].
        LayerNormGradientKernel as LayerGradient, "layer_norm_gradient" {
            read x,
            read dy,
            read gamma,
            read statistics,
            write dx,
            write of_gamma,
            write of_beta,
        }
    }
}
