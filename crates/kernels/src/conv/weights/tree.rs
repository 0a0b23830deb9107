//! [`WeightGradientTree`]: the gradient of the weights of several shards, added along a tree in the first-level cache.
#![expect(unsafe_code, reason = "vector stores after the innermost loops")]

use std::ops::Range;

use super::{TAPS, VECTORS, WeightGradient, WeightGradientPass, give, turn};
use crate::conv::Convolution;
use crate::conv::image::{COLUMNS_MAX, GroupImage, OutputGroup};
use crate::gemm::chunks;
use crate::scratch::lend;
use crate::shard_tree::{ShardStep, SlotTiles, put_canonical};
use crate::simd::{SimdKernel, SimdVector};

/// The largest number of positions of a shard: with more, the gradient of a shard is a small part of the time.
const PLACES_MAX: usize = 64;

// A longer sum would be divided into groups, whose sums are added.
const _: () = assert!(PLACES_MAX <= COLUMNS_MAX, "a shard is one group");

/// Returns the number of bytes of the bordered images and turned outputs of a shard, or nothing if it has too many positions.
pub(in super::super) fn bytes_of_shard(shape: &Convolution, samples: usize) -> Option<usize> {
    let places: usize = shape.output_size().iter().product();
    let bordered = |axis: usize| shape.size[axis] + 2 * shape.padding[axis];
    let image = shape.channels * bordered(0) * bordered(1);
    let panel = places * shape.outputs.min(VECTORS * 16);
    let has_few = places > 0 && samples * places <= PLACES_MAX;
    has_few.then_some(samples * (image + panel) * size_of::<f32>())
}

/// The gradients of the weights of some shards, with the bits of [`WeightGradient`], and their sum.
pub(in super::super) struct WeightGradientTree<'a> {
    /// All samples.
    pub(in super::super) all: WeightGradient<'a>,
    /// The numbers of samples.
    pub(in super::super) shards: &'a [usize],
}

impl SimdKernel for WeightGradientTree<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let Self { all, shards } = self;
        let shape = all.shape;
        let (output, window) = (shape.output_size(), shape.window());
        let vectors = if V::LANES == 16 { VECTORS } else { V::COLUMNS };
        let buffers = &mut *lend();
        let sums_length = window * all.outputs.len().next_multiple_of(V::LANES);
        let tiles = SlotTiles::elements(shards.len(), TAPS * vectors * V::LANES);
        let memory = sums_length + tiles;
        let (sums, tiles) = buffers.left.take(memory).split_at_mut(sums_length);
        let group = OutputGroup {
            images: 0..all.samples,
            rows: 0..output[0],
        };
        let image = GroupImage::of::<V>(&shape, all.x, &group, &mut buffers.image);
        let pass = WeightGradientPass::of(&shape, &image, &group);
        let mut ends = 0;
        let rows: Vec<Range<usize>> = shards
            .iter()
            .map(|samples| {
                let start = ends;
                ends += samples * output[0];
                start..ends
            })
            .collect();
        for outputs in chunks(all.outputs.clone(), vectors * V::LANES) {
            let count = outputs.len().div_ceil(V::LANES);
            let panel = group.columns(output) * count * V::LANES;
            let panel = buffers.right.take(panel);
            turn::<V>(&shape, all.dy, &group, outputs.clone(), panel);
            let sums = &mut sums[(outputs.start - all.outputs.start) * window..];
            let tile = TAPS * count * V::LANES;
            let tiles = &mut tiles[..SlotTiles::elements(shards.len(), tile)];
            let tiles = SlotTiles::new(tiles, tile);
            match count {
                4 => pass.add_shards::<V, 4>(panel, &rows, tiles, sums),
                3 => pass.add_shards::<V, 3>(panel, &rows, tiles, sums),
                2 => pass.add_shards::<V, 2>(panel, &rows, tiles, sums),
                _ => pass.add_shards::<V, 1>(panel, &rows, tiles, sums),
            }
        }
        give::<V>(sums, all.dw, window, vectors * V::LANES);
    }
}

impl WeightGradientPass<'_> {
    /// Writes the sums over shards of the products of all taps with the outputs of a panel. `rows` has the rows of the output
    /// of each shard.
    #[inline(always)]
    fn add_shards<V: SimdVector, const C: usize>(
        &self,
        panel: &[f32],
        rows: &[Range<usize>],
        mut tiles: SlotTiles<'_>,
        sums: &mut [f32],
    ) {
        let width = C * V::LANES;
        for (tile, sums) in self.taps.chunks(TAPS).zip(sums.chunks_mut(TAPS * width)) {
            // Missing taps repeat the last one and are not given.
            let taps = std::array::from_fn(|i| tile[i.min(tile.len() - 1)]);
            for (shard, of_shard) in rows.iter().enumerate() {
                let step = ShardStep::of(shard, rows.len());
                let panel = &panel[of_shard.start * self.width * width..];
                let found = self.tile::<V, C>(&taps, of_shard.clone(), panel);
                give_tile(&found, tiles.of_shard(step));
                tiles.add::<V>(step);
            }
            let length = tile.len() * width;
            put_canonical::<V>(&tiles.result()[..length], &mut sums[..length]);
        }
    }
}

/// Writes the sums of taps and outputs.
#[expect(
    clippy::needless_range_loop,
    reason = "indices of registers; iterators hide from the compiler that they are"
)]
#[inline(always)]
fn give_tile<V: SimdVector, const C: usize>(found: &[[V; C]; TAPS], to: &mut [f32]) {
    assert!(to.len() >= TAPS * C * V::LANES, "sums of a tile");
    for tap in 0..TAPS {
        for c in 0..C {
            let sum = found[tap][c].multiply_add(V::splat(1.0), V::splat(0.0));
            // SAFETY: all sums fit, as asserted.
            unsafe { sum.store(to.as_mut_ptr().add((tap * C + c) * V::LANES)) };
        }
    }
}
