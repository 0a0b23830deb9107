//! Convolution and pooling of images `[N, C, height, width]`.

use std::sync::Arc;

use ronde_kernels::{AverageAreas, Convolution, GroupedConvolution, ShortFormat, SlidingWindow};

use super::operands::kernels;

/// A map of planes `[height, width]` to planes of another size, linear in their elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaneMap {
    /// The mean of each window; padding counts as zeros.
    Average {
        /// Height and width of the input.
        size: [usize; 2],
        /// The window.
        window: SlidingWindow,
    },
    /// The means of areas that cover the plane evenly.
    Areas(AverageAreas),
    /// Each element becomes a square of `factor` by `factor`.
    Enlarge {
        /// Height and width of the input.
        size: [usize; 2],
        /// The side of a square.
        factor: usize,
    },
}

impl PlaneMap {
    /// Returns the number of elements of a plane of the input, at least 1.
    pub(crate) fn elements(&self) -> usize {
        let (Self::Average { size, .. }
        | Self::Areas(AverageAreas { size, .. })
        | Self::Enlarge { size, .. }) = self;
        (size[0] * size[1]).max(1)
    }
}

kernels! {
    /// Convolution and pooling.
    ///
    /// Padding counts as zeros, by which weights and gradients may be multiplied. A convolution may be computed in a transformed
    /// form, in which NaN or an infinite value reaches all outputs of the same tile of its sample, as NaN.
    ImageKernels {
        /// Computes the convolution of `samples` images `x` by the weights `w`. If both are rounded to a format, products may be
        /// computed in it; sums and the result are f32.
        ConvolveKernel as Convolve, "convolve" {
            read x,
            read w,
            write y,
            ;
            /// The shape of the convolution.
            shape: GroupedConvolution,
            /// The format to which both inputs are rounded.
            format: Option<ShortFormat>,
            /// The number of images.
            samples: usize,
        }

        /// Computes the gradient of the input of a convolution from that of its output.
        ConvolveInputGradientKernel as ConvolveInputGradient, "convolve_input_gradient" {
            read w,
            read dy,
            write dx,
            ;
            /// The shape of the convolution.
            shape: GroupedConvolution,
            /// The format to which both inputs are rounded.
            format: Option<ShortFormat>,
            /// The number of images.
            samples: usize,
        }

        /// Computes the gradient of the weights of a convolution, summed over samples.
        ConvolveWeightGradientKernel as ConvolveWeightGradient, "convolve_weight_gradient" {
            read x,
            read dy,
            write dw,
            ;
            /// The shape of the convolution.
            shape: GroupedConvolution,
            /// The format to which both inputs are rounded.
            format: Option<ShortFormat>,
            /// The number of images.
            samples: usize,
        }

        /// Computes the sum over shards of the gradients of the weights of a convolution without groups, in the order of the
        /// exact sum. A shard has consecutive images. Each gradient has the bits of [`ConvolveWeightGradientKernel`] without a
        /// format, each sum those of [`AddExactKernel`](super::AddExactKernel).
        ConvolveShardsWeightGradientKernel as ConvolveShardsWeightGradient, "convolve_shards_weight_gradient" {
            read x,
            read dy,
            write dw,
            ;
            /// The shape of the convolution.
            shape: Convolution,
            /// The number of images of each shard, at least one shard.
            shards: Arc<[usize]>,
        }

        /// Adds a number per channel to all `places` positions of it.
        AddToChannelsKernel as AddToChannels, "add_to_channels" {
            update y,
            read added,
            ;
            /// The positions of a channel.
            places: usize,
        }

        /// Writes the sum of each channel over samples and positions.
        SumChannelsKernel as SumChannels, "sum_channels" {
            read x,
            write to,
            ;
            /// The positions of a channel.
            places: usize,
        }

        /// Writes the greatest value of each window, and to `from` its position in its plane, as the bits of a u32. NaN counts as
        /// the greatest value; of equal values the first is taken. Padding is not a value: a window of -infinity has this result.
        MaxPoolKernel as MaxPool, "max_pool" {
            read x,
            write y,
            write from,
            ;
            /// Height and width of a plane.
            size: [usize; 2],
            /// The window.
            window: SlidingWindow,
        }

        /// Computes the gradient of the input of [`MaxPoolKernel`].
        MaxPoolGradientKernel as MaxPoolGradient, "max_pool_gradient" {
            read dy,
            read from,
            write dx,
            ;
            /// Height and width of a plane.
            size: [usize; 2],
            /// The window.
            window: SlidingWindow,
        }

        /// Maps each plane.
        MapPlanesKernel as MapPlanes, "map_planes" {
            read x,
            write y,
            ;
            /// The map.
            map: PlaneMap,
        }

        /// Computes the gradient of the input of [`MapPlanesKernel`].
        MapPlanesGradientKernel as MapPlanesGradient, "map_planes_gradient" {
            read dy,
            write dx,
            ;
            /// The map.
            map: PlaneMap,
        }
    }
}
