//! [`WinogradTreeGradient`]: the gradient of the weights of several shards, added along a tree in the first-level cache.
#![expect(unsafe_code, reason = "vector loads in the innermost loops")]

use std::ops::Range;

use super::panels::PanelLayout;
use super::product::DEPTH_MAX;
use super::sizes::{KERNEL, POINTS, SIDE, TILES_PER_BLOCK};
use super::tiles::TileGrid;
use super::transform::{LineTransform, WeightGradients};
use super::weights::TAPS;
use super::{WinogradWeightGradient, transform_images};
use crate::conv::Convolution;
use crate::moves::transpose_into;
use crate::scratch::lend;
use crate::shard_tree::{ShardStep, SlotTiles, put_canonical};
use crate::simd::{SimdKernel, SimdVector};

/// The largest number of tiles of a shard. With more, shards are faster one after the other: writing their gradients is then a
/// small part of the time.
const TILES_MAX: usize = 8;

// A longer sum would be divided into groups or blocks, whose sums are added.
const _: () = assert!(
    TILES_MAX <= DEPTH_MAX && TILES_MAX <= TILES_PER_BLOCK,
    "a shard is one sum"
);

/// Returns the number of bytes of the transformed images of a shard, or nothing if it has too many tiles.
pub(in super::super) fn bytes_of_shard(shape: &Convolution, samples: usize) -> Option<usize> {
    let grid = TileGrid::of(shape.output_size());
    let tiles = samples * grid.rows * grid.columns;
    let bytes = POINTS * size_of::<f32>() * tiles * (shape.channels + shape.outputs);
    (tiles <= TILES_MAX).then_some(bytes)
}

/// The gradients of the weights of some shards, with the bits of [`WinogradWeightGradient`], and their sum.
pub(in super::super) struct WinogradTreeGradient<'a> {
    /// All samples.
    pub(in super::super) all: WinogradWeightGradient<'a>,
    /// The numbers of samples.
    pub(in super::super) shards: &'a [usize],
}

impl SimdKernel for WinogradTreeGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        // Six points of each row are summed in registers.
        match V::LANES {
            16 => self.run_rows::<V, 4>(),
            _ => self.run_rows::<V, 2>(),
        }
    }
}

impl WinogradTreeGradient<'_> {
    /// Adds the gradients of `R` channels of the input and a vector of outputs, one shard after the other.
    #[inline(always)]
    fn run_rows<V: SimdVector, const R: usize>(self) {
        let Self { all, shards } = self;
        let Convolution {
            channels, outputs, ..
        } = all.shape;
        let grid = TileGrid::of(all.shape.output_size());
        let strips = 0..all.samples * grid.rows;
        let buffers = &mut *lend();
        let images =
            transform_images::<V>(&all, grid, strips, (&mut buffers.right, &mut buffers.image));
        let window = channels * TAPS;
        let tile = R * TAPS * V::LANES;
        let most = SlotTiles::elements(shards.len(), tile);
        let packed_length = images.input.1.depth * POINTS * R;
        let memory = buffers.left.take(most + tile + packed_length);
        let (tiles, memory) = memory.split_at_mut(most);
        let (turned, packed) = memory.split_at_mut(tile);
        for row in (0..channels).step_by(R) {
            images.pack::<R>(row, packed);
            for column in (0..outputs).step_by(V::LANES) {
                let mut tiles = SlotTiles::new(&mut *tiles, tile);
                let mut first = 0;
                for (shard, samples) in shards.iter().enumerate() {
                    let step = ShardStep::of(shard, shards.len());
                    let depth = first..first + samples * grid.rows * grid.columns;
                    first = depth.end;
                    images.gradients::<V, R>(packed, &depth, column, tiles.of_shard(step));
                    tiles.add::<V>(step);
                }
                let found = tiles.result();
                transpose_into::<V>(found, V::LANES, R * TAPS, V::LANES, R * TAPS, turned);
                let to = all.dw[column * window..].chunks_exact_mut(window);
                for (from, to) in turned.chunks_exact(R * TAPS).zip(to) {
                    put_canonical::<V>(from, &mut to[row * TAPS..(row + R) * TAPS]);
                }
            }
        }
    }
}

/// The transformed tiles of the input and of the output's gradient.
pub(super) struct TransformedImages<'a> {
    pub(super) input: (&'a [f32], PanelLayout),
    pub(super) gradient: (&'a [f32], PanelLayout),
}

impl TransformedImages<'_> {
    /// Packs `R` channels of the input as `[point][tile][channel]`.
    #[inline(always)]
    fn pack<const R: usize>(&self, row: usize, packed: &mut [f32]) {
        let (input, layout) = self.input;
        let points = input.chunks(layout.point_stride()).take(POINTS);
        for (from, to) in points.zip(packed.chunks_exact_mut(layout.depth * R)) {
            let tiles = from.chunks_exact(layout.columns).zip(to.as_chunks_mut().0);
            for (from, to) in tiles {
                *to = std::array::from_fn::<f32, R, _>(|r| from[row + r]);
            }
        }
    }

    /// Multiplies some tiles of packed channels of the input with those of a vector of outputs, transforms the sums over tiles to
    /// gradients of the weights, and writes them as `[channel][tap][outputs]`.
    #[expect(
        clippy::needless_range_loop,
        reason = "indices of registers; iterators hide from the compiler that they are"
    )]
    #[inline(always)]
    fn gradients<V: SimdVector, const R: usize>(
        &self,
        input: &[f32],
        tiles: &Range<usize>,
        column: usize,
        to: &mut [f32],
    ) {
        let depth = self.input.1.depth;
        let (gradient, of_gradient) = self.gradient;
        let start = column / of_gradient.width * of_gradient.width;
        let width = (of_gradient.columns - start).min(of_gradient.width);
        assert!(
            tiles.start <= tiles.end
                && tiles.end <= depth
                && depth == of_gradient.depth
                && column + V::LANES <= start + width
                && input.len() >= POINTS * depth * R
                && to.len() >= R * TAPS * V::LANES
                && gradient.len() >= of_gradient.all_points(),
            "tiles of a group"
        );
        let [left_stride, right_stride] = [depth * R, of_gradient.point_stride()];
        let zero = V::splat(0.0);
        let mut half = [[[zero; SIDE]; KERNEL]; R];
        for j in 0..SIDE {
            let mut sums = [[zero; R]; SIDE];
            for tile in tiles.clone() {
                let left = tile * R;
                let right = of_gradient.position(tile, column);
                for i in 0..SIDE {
                    let point = i * SIDE + j;
                    // SAFETY: all points have these tiles, channels and outputs, as asserted.
                    unsafe {
                        let left = input.as_ptr().add(point * left_stride + left);
                        let right = V::load(gradient.as_ptr().add(point * right_stride + right));
                        for r in 0..R {
                            let left = V::splat(*left.add(r));
                            sums[i][r] = left.multiply_add(right, sums[i][r]);
                        }
                    }
                }
            }
            for r in 0..R {
                let mut line = [zero; SIDE];
                for i in 0..SIDE {
                    line[i] = sums[i][r];
                }
                let line = WeightGradients::line(line);
                for i in 0..KERNEL {
                    half[r][i][j] = line[i];
                }
            }
        }
        for r in 0..R {
            for i in 0..KERNEL {
                let line = WeightGradients::line(half[r][i]);
                for j in 0..KERNEL {
                    let at = (r * TAPS + i * KERNEL + j) * V::LANES;
                    // SAFETY: all gradients fit, as asserted.
                    unsafe { zero.add(line[j]).store(to.as_mut_ptr().add(at)) };
                }
            }
        }
    }
}
