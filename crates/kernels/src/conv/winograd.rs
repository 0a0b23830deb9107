//! Convolution by the minimal filtering algorithm F(4x4, 3x3) of Winograd, forward and backward.
//!
//! A tile of 4 x 4 outputs needs 36 products per pair of channels instead of 144. Tiles of the input and weights are
//! transformed to 36 points; at each point, one matrix product sums over channels (for the gradient of the weights:
//! over tiles); the products are transformed to outputs. Vectors hold neighbouring channels.
//! Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.
//!
//! Bits: the order of sums depends on the shape alone; for the gradient of the weights, on the samples too.
//!
//! It is used for stride 1, numbers of channels from 64 on that are multiples of 16, and outputs of about 3 x 3 positions or more.
//! Its error is at most ten times as large as in the direct form (`errors_are_at_most_ten_times_those_of_the_direct_form`). The
//! rule reads the shape alone, so a model has one form on every machine; a change of the rule increments `ENGINE_VERSION` of the
//! engine.

mod output;
mod panels;
mod points;
mod product;
mod sizes;
mod tiles;
mod transform;
mod tree;
mod weights;

use std::ops::Range;

use super::Convolution;
use crate::gemm::chunks;
use crate::moves::transpose_into;
use crate::scratch::{ScratchBuffer, lend};
use crate::simd::{SimdKernel, SimdVector};

use output::TiledOutput;
use panels::PanelLayout;
use product::{LeftSide, multiply_panels};
use sizes::{KERNEL, POINTS, SIDE, TILE, TILES_PER_BLOCK};
use tiles::{TileGrid, TiledImages};
use transform::{InputTile, OutputGradientTile};
use tree::TransformedImages;
use weights::{TAPS, add_gradients};

pub(super) use tree::{WinogradTreeGradient, bytes_of_shard};
pub(super) use weights::TiledWeights;

/// The smallest number of channels: with fewer, the transforms cost more than the products save.
const CHANNELS_MIN: usize = 64;
/// The number of channels is a multiple of the longest vector.
const CHANNELS_STEP: usize = 16;
/// The number of output channels whose products are computed and transformed together.
const PANEL: usize = 64;
/// The number of bytes of the transformed input of a group of tiles.
const GROUP_BYTES: usize = 4 << 20;

/// Returns whether a convolution is computed by this algorithm.
///
/// It has a 3 x 3 kernel with stride 1 and at most two zeros of padding, numbers of channels that are multiples of 16
/// and at least 64, and a size of the output whose tiles need at most half as many multiplications as the
/// direct form. The rule depends on the shape alone, because the choice changes rounding.
pub(super) fn applies(shape: &Convolution) -> bool {
    let fits = |channels: usize| channels >= CHANNELS_MIN && channels.is_multiple_of(CHANNELS_STEP);
    if shape.kernel != [KERNEL; 2]
        || shape.stride != [1, 1]
        || shape.padding.iter().any(|&zeros| zeros >= KERNEL)
        || !fits(shape.channels)
        || !fits(shape.outputs)
    {
        return false;
    }
    let output = shape.output_size();
    let grid = TileGrid::of(output);
    2 * POINTS * grid.rows * grid.columns <= TAPS * output[0] * output[1]
}

/// Returns whether the weights take longer to transform than the images.
pub(super) fn has_more_weights_than_tiles(shape: &Convolution, samples: usize) -> bool {
    let grid = TileGrid::of(shape.output_size());
    shape.outputs > samples * grid.rows * grid.columns
}

/// Returns the number of columns of a register tile.
#[inline(always)]
fn panel_width<V: SimdVector>() -> usize {
    let vectors = if V::LANES == 16 { 4 } else { V::COLUMNS };
    vectors * V::LANES
}

/// Returns the number of tiles of a group, by the larger number of channels.
pub(super) fn group_tiles(channels: usize) -> usize {
    (GROUP_BYTES / (POINTS * size_of::<f32>() * channels)).max(TILES_PER_BLOCK)
}

/// The output for `x`: forward, or the gradient of the input as the convolution with flipped weights.
pub(super) struct WinogradForward<'a> {
    pub(super) shape: Convolution,
    pub(super) samples: usize,
    pub(super) x: &'a [f32],
    pub(super) weights: TiledWeights<'a>,
    pub(super) y: &'a mut [f32],
}

impl SimdKernel for WinogradForward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let shape = self.shape;
        let (channels, size) = (shape.channels, shape.output_size());
        let grid = TileGrid::of(size);
        let images = TiledImages {
            data: self.x,
            channels,
            size: shape.size,
            padding: shape.padding,
        };
        let mut output = TiledOutput {
            data: self.y,
            channels: shape.outputs,
            size,
        };
        let buffers = &mut *lend();
        let products_stride = grid.block_tiles() * PANEL + CHANNELS_STEP;
        let mut packed = None;
        for group in grid.groups(self.samples, group_tiles(channels)) {
            let of_input = PanelLayout {
                columns: channels,
                width: channels,
                depth: group.len() * grid.columns,
            };
            let input = buffers.right.take(of_input.all_points());
            for block in grid.blocks(group.clone()) {
                let first = (block.start - group.start) * grid.columns;
                let to = (&mut *input, of_input);
                images.transform::<V, InputTile, SIDE>(grid, block, first, to, &mut buffers.image);
            }
            for panel in chunks(0..shape.outputs, PANEL) {
                let of_weights = PanelLayout {
                    columns: panel.len(),
                    width: panel_width::<V>(),
                    depth: channels,
                };
                let memory = buffers
                    .left
                    .take(of_weights.all_points() + POINTS * products_stride);
                let (weights, products) = memory.split_at_mut(of_weights.all_points());
                if packed.replace(panel.clone()) != Some(panel.clone()) {
                    let (to, memory) = ((&mut *weights, of_weights), &mut buffers.image);
                    self.weights
                        .transform::<V>(channels, panel.clone(), to, memory);
                }
                for block in grid.blocks(group.clone()) {
                    let first = (block.start - group.start) * grid.columns;
                    for point in 0..POINTS {
                        let input = &input[point * of_input.point_stride()..];
                        let left = LeftSide {
                            data: &input[of_input.position(first, 0)..],
                            rows: block.len() * grid.columns,
                            row_stride: channels,
                            depth_stride: 1,
                        };
                        let right = &weights[point * of_weights.point_stride()..];
                        let out = &mut products[point * products_stride..];
                        multiply_panels::<V>(left, right, of_weights, out);
                    }
                    let products = (&*products, products_stride);
                    let memory = &mut buffers.image;
                    output.write::<V>(grid, block, panel.clone(), products, memory);
                }
            }
        }
    }
}

/// The gradient of the weights, summed over tiles.
pub(super) struct WinogradWeightGradient<'a> {
    pub(super) shape: Convolution,
    pub(super) samples: usize,
    pub(super) x: &'a [f32],
    pub(super) dy: &'a [f32],
    /// The number of tiles whose products are summed together: it changes rounding.
    pub(super) group_tiles: usize,
    pub(super) dw: &'a mut [f32],
}

impl WinogradWeightGradient<'_> {
    /// Returns the images whose tiles are multiplied.
    fn images(&self) -> [TiledImages<'_>; 2] {
        let input = TiledImages {
            data: self.x,
            channels: self.shape.channels,
            size: self.shape.size,
            padding: self.shape.padding,
        };
        let gradient = TiledImages {
            data: self.dy,
            channels: self.shape.outputs,
            size: self.shape.output_size(),
            padding: [0, 0],
        };
        [input, gradient]
    }
}

impl SimdKernel for WinogradWeightGradient<'_> {
    type Output = ();

    /// Sums `[channels, taps, outputs]` group by group, in order, and transposes the sum at the end.
    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let Convolution {
            channels, outputs, ..
        } = self.shape;
        let grid = TileGrid::of(self.shape.output_size());
        let buffers = &mut *lend();
        let products_stride = PANEL * PANEL + CHANNELS_STEP;
        let sums_length = channels * TAPS * outputs;
        let memory = buffers.left.take(sums_length + POINTS * products_stride);
        let (sums, products) = memory.split_at_mut(sums_length);
        sums.fill(0.0);
        for group in grid.groups(self.samples, self.group_tiles) {
            let depth = group.len() * grid.columns;
            let memory = (&mut buffers.right, &mut buffers.image);
            let images = transform_images::<V>(&self, grid, group, memory);
            let (input, of_input) = images.input;
            let (gradient, of_gradient) = images.gradient;
            for columns in chunks(0..outputs, PANEL) {
                let of_panel = PanelLayout {
                    columns: columns.len(),
                    ..of_gradient
                };
                for rows in chunks(0..channels, PANEL) {
                    for point in 0..POINTS {
                        let left = LeftSide {
                            data: &input[point * of_input.point_stride() + rows.start..],
                            rows: rows.len(),
                            row_stride: 1,
                            depth_stride: channels,
                        };
                        let at = point * of_gradient.point_stride() + columns.start * depth;
                        let out = &mut products[point * products_stride..];
                        multiply_panels::<V>(left, &gradient[at..], of_panel, out);
                    }
                    let lengths = [rows.len(), columns.len()];
                    let sums = &mut sums[rows.start * TAPS * outputs + columns.start..];
                    add_gradients::<V>(products, products_stride, lengths, sums, outputs);
                }
            }
        }
        let rows = channels * TAPS;
        transpose_into::<V>(sums, outputs, rows, outputs, rows, self.dw);
    }
}

/// Transforms the tiles of some strips of the input and the output's gradient.
#[inline(always)]
fn transform_images<'a, V: SimdVector>(
    of: &WinogradWeightGradient<'_>,
    grid: TileGrid,
    strips: Range<usize>,
    (memory, bands): (&'a mut ScratchBuffer, &mut ScratchBuffer),
) -> TransformedImages<'a> {
    let Convolution {
        channels, outputs, ..
    } = of.shape;
    let depth = strips.len() * grid.columns;
    let [of_input, of_gradient] =
        [(channels, channels), (outputs, panel_width::<V>())].map(|(columns, width)| PanelLayout {
            columns,
            width,
            depth,
        });
    let memory = memory.take(of_input.all_points() + of_gradient.all_points());
    let (input, gradient) = memory.split_at_mut(of_input.all_points());
    let [input_images, gradient_images] = of.images();
    for block in grid.blocks(strips.clone()) {
        let first = (block.start - strips.start) * grid.columns;
        let to = (&mut *input, of_input);
        input_images.transform::<V, InputTile, SIDE>(grid, block.clone(), first, to, bands);
        let to = (&mut *gradient, of_gradient);
        gradient_images.transform::<V, OutputGradientTile, TILE>(grid, block, first, to, bands);
    }
    TransformedImages {
        input: (input, of_input),
        gradient: (gradient, of_gradient),
    }
}

#[cfg(test)]
mod tests;
