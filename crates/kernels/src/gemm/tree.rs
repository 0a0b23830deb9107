//! [`multiply_in_tree`]: a sum of products of shards along the binary tree of an exact sum, without the products in memory.
//!
//! A tile of the output is computed for one shard after the other. The sums of complete subtrees wait in a binary counter of
//! tiles: the tile of a shard is added to the right of those that it completes a subtree with. They stay in the first-level
//! cache, so the output is written once.

mod tile;

use std::ops::Range;

use super::matrix::Matrix;
use super::{
    BlockedLength, COLUMNS_MAX, DEPTH_MAX, ROWS_MAX, chunks, multiply_with, pack_left_block,
    pack_right_block,
};
use crate::scratch::lend;
use crate::shard_tree::{ShardStep, put_canonical, slots};
use crate::simd::{PanelForm, Products, SimdKernel, SimdVector, dispatch_products};
use tile::{GroupPanel, TileSlots, TreeStep, TreeTile};

/// The inner length of the steps that are made for one tile after the other.
const GROUP_LENGTH: usize = 256;
/// The inner length that is packed at once: of several groups, so that their tiles stay in the second-level cache.
const PACKED_LENGTH: usize = 512;
/// The number of elements of tiles that are kept between groups, if there are several.
const CARRIED_MAX: usize = 2 << 20;
/// The least number of columns that are packed at once.
const COLUMNS_MIN: usize = 192;

/// Computes the sum over shards of `left_s * right_s` along the binary tree of the exact sum: row-major, `left.rows()` by
/// `right.columns()`. `shards` has the lengths of the consecutive ranges of the inner index, the columns of `left` and rows of
/// `right`.
///
/// The tree adds neighbours to pairs, pairs to quadruples and so on; a subtree without a right neighbour is lifted. A sum
/// that is NaN is the canonical NaN. Each product has the bits of [`multiply_with`], without addition; that of an empty shard
/// is zero. An element has the same bits if only some rows of `left` or columns of `right` are multiplied. Cost: as one
/// product, and an addition in the cache for each shard and element; the thread's memory, 3 MiB for operands and, with more than
/// 512 inner indices, a tile of each level of the tree for 8 MiB or, if that is more, 192 columns of the output.
///
/// # Panics
/// If the lengths do not match, there is no shard, or this processor does not have the instructions.
///
/// ```
/// use ronde_kernels::{Matrix, Products, multiply_in_tree};
///
/// let (x, dy) = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]);
/// let mut sum = [0.0];
/// let (left, right) = (Matrix::new(&x, 3, 1).transposed(), Matrix::new(&dy, 3, 1));
/// multiply_in_tree(Products::F32, left, right, &[2, 1], &mut sum);
/// assert_eq!(sum, [(4.0 + 10.0) + 18.0]);
/// ```
pub fn multiply_in_tree(
    products: Products,
    left: Matrix<'_>,
    right: Matrix<'_>,
    shards: &[usize],
    out: &mut [f32],
) {
    assert!(
        left.columns() == right.rows() && shards.iter().sum::<usize>() == right.rows(),
        "inner lengths of a product of shards"
    );
    assert_eq!(
        out.len(),
        left.rows() * right.columns(),
        "elements of a product"
    );
    assert!(!shards.is_empty(), "a product of no shard");
    if shards.len() == 1 {
        return multiply_with(products, left, right, out, false);
    }
    dispatch_products(
        products,
        TreeProduct {
            left,
            right,
            shards,
            out,
        },
    );
}

/// Consecutive steps whose panels are packed together.
#[derive(Debug)]
struct StepGroup {
    steps: Vec<TreeStep>,
    /// The start of the packed memory, as an inner length.
    start: usize,
    /// The inner length of the packed memory.
    length: usize,
    /// Whether the sums of the last step are the output.
    is_last: bool,
}

/// The order of all products and additions. The first slot has the blocks of the current shard, each next one a subtree of a
/// level.
#[derive(Debug)]
struct TreePlan {
    /// The groups that are packed at once.
    packs: Vec<Vec<StepGroup>>,
    /// The number of slots.
    slots: usize,
    /// The number of slots that are empty between groups.
    local_slots: usize,
}

impl TreePlan {
    #[inline(always)]
    fn of<V: SimdVector>(shards: &[usize]) -> Self {
        let length = |shard: &usize| -> usize {
            let blocks = BlockedLength::of_depth(*shard).ranges();
            blocks.map(|block| V::FORM.length(block.len())).sum()
        };
        let lengths: Vec<usize> = shards.iter().map(length).collect();
        let fits = |level: &u32| {
            let mut subtrees = lengths.chunks(1 << level);
            subtrees.all(|subtree| subtree.iter().sum::<usize>() <= GROUP_LENGTH)
        };
        let last = shards.len() - 1;
        let levels = usize::BITS - last.leading_zeros();
        // The highest level whose subtrees are each packed at once.
        let level = (0..=levels).take_while(fits).last();
        let mut groups: Vec<StepGroup> = Vec::new();
        let mut start = 0;
        for (shard, rows) in shards.iter().enumerate() {
            let blocks: Vec<_> = BlockedLength::of_depth(*rows).ranges().collect();
            let added = ShardStep::of(shard, shards.len());
            for (number, block) in blocks.iter().enumerate() {
                let is_first = match level {
                    Some(level) => number == 0 && shard.is_multiple_of(1 << level),
                    None => true,
                };
                if is_first {
                    groups.push(StepGroup {
                        steps: Vec::new(),
                        start: 0,
                        length: 0,
                        is_last: false,
                    });
                }
                let of_shard = u64::from(number > 0);
                let is_whole = number + 1 == blocks.len();
                let (adds, to) = match is_whole {
                    false => (of_shard, 0),
                    true => (of_shard | added.adds, added.to),
                };
                let Some(group) = groups.last_mut() else {
                    continue;
                };
                group.steps.push(TreeStep {
                    depth: start + block.start..start + block.end,
                    start: group.length,
                    adds,
                    to,
                    starts_four: level.is_some_and(|level| level >= 2)
                        && shard.is_multiple_of(4)
                        && shard + 3 <= last
                        && shards[shard..shard + 4]
                            .iter()
                            .all(|rows| *rows <= DEPTH_MAX),
                });
                group.length += V::FORM.length(block.len());
                group.is_last = is_whole && shard == last;
            }
            start += rows;
        }
        let slots = slots(shards.len());
        Self {
            local_slots: level.map_or(0, |level| 1 + level as usize).min(slots),
            packs: Self::packs(groups),
            slots,
        }
    }
}

impl TreePlan {
    /// Divides groups into those that are packed at once.
    fn packs(groups: Vec<StepGroup>) -> Vec<Vec<StepGroup>> {
        let mut packs: Vec<Vec<StepGroup>> = Vec::new();
        let mut length = 0;
        for mut group in groups {
            if packs.is_empty() || length + group.length > PACKED_LENGTH {
                packs.push(Vec::new());
                length = 0;
            }
            group.start = length;
            length += group.length;
            if let Some(pack) = packs.last_mut() {
                pack.push(group);
            }
        }
        packs
    }
}

impl StepGroup {
    /// Returns the inner indices that are packed at once, and where, as an inner length.
    #[inline(always)]
    fn packed<V: SimdVector>(&self) -> Vec<(Range<usize>, usize)> {
        let place = |step: &TreeStep| (step.depth.clone(), self.start + step.start);
        match (V::FORM, self.steps.first(), self.steps.last()) {
            (PanelForm::Values, Some(first), Some(last)) => {
                vec![(first.depth.start..last.depth.end, self.start)]
            }
            _ => self.steps.iter().map(place).collect(),
        }
    }
}

struct TreeProduct<'a> {
    left: Matrix<'a>,
    right: Matrix<'a>,
    shards: &'a [usize],
    out: &'a mut [f32],
}

impl SimdKernel for TreeProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let (rows, columns) = (self.left.rows(), self.right.columns());
        let (mut left, mut right) = (self.left.transposed(), self.right);
        let plan = TreePlan::of::<V>(self.shards);
        let tile_columns = V::COLUMNS * V::LANES;
        let is_packed_once = plan.packs.len() == 1;
        let carried = (plan.slots - plan.local_slots) * V::ROWS;
        let columns_max = match is_packed_once {
            true => COLUMNS_MAX,
            false => CARRIED_MAX / (carried * rows.div_ceil(V::ROWS)).max(1),
        };
        let packed_columns = columns_max
            .clamp(COLUMNS_MIN, COLUMNS_MAX)
            .next_multiple_of(tile_columns);
        let packed_rows = ROWS_MAX.next_multiple_of(V::ROWS);
        let ends = plan.packs.iter().filter_map(|pack| pack.last());
        let length = ends.map(|group| group.start + group.length).max();
        let length = length.unwrap_or(0);
        let buffers = &mut *lend();
        let a = buffers.left.take(packed_rows * length);
        let b = buffers.right.take(packed_columns * length);
        let carried = carried * tile_columns;
        let (row_panels, panels) = match is_packed_once {
            true => (0, packed_rows / V::ROWS),
            false => (
                rows.div_ceil(V::ROWS),
                rows.div_ceil(V::ROWS) * packed_columns.min(columns).div_ceil(tile_columns),
            ),
        };
        let local = plan.slots * V::ROWS * tile_columns;
        let memory = buffers.image.take(local + panels * carried);
        let (local, carried_tiles) = memory.split_at_mut(local);
        for columns in chunks(0..columns, packed_columns) {
            for pack in &plan.packs {
                let ranges = pack.iter().flat_map(StepGroup::packed::<V>);
                let ranges: Vec<_> = ranges.collect();
                for (depth, start) in &ranges {
                    let b = &mut b[start * packed_columns..];
                    pack_right_block::<V>(&mut right, depth.clone(), columns.clone(), b);
                }
                for rows in chunks(0..rows, packed_rows) {
                    for (depth, start) in &ranges {
                        let a = &mut a[start * packed_rows..];
                        pack_left_block::<V>(&mut left, depth.clone(), rows.clone(), a);
                    }
                    let mut block = TreeBlock {
                        sides: [(&*a, packed_rows), (&*b, packed_columns)],
                        out: &mut *self.out,
                        stride: self.right.columns(),
                        local: &mut *local,
                        carried: &mut *carried_tiles,
                        carried_length: carried,
                        local_slots: plan.local_slots,
                    };
                    let first = match is_packed_once {
                        true => 0,
                        false => rows.start / V::ROWS,
                    };
                    block.multiply::<V>(pack, rows, columns.clone(), [first, row_panels]);
                }
            }
        }
    }
}

/// The packed panels of some rows and columns, and the destinations.
struct TreeBlock<'a> {
    /// The packed rows and columns, and the numbers of them for which there is memory.
    sides: [(&'a [f32], usize); 2],
    out: &'a mut [f32],
    stride: usize,
    /// The slots of the current tile.
    local: &'a mut [f32],
    /// The slots of all tiles that are kept between groups.
    carried: &'a mut [f32],
    /// The number of elements of these slots of a tile.
    carried_length: usize,
    local_slots: usize,
}

impl TreeBlock<'_> {
    /// Makes all steps of the groups for each tile. The first tile that is kept has the number `first`; the tiles of the next
    /// panel of columns are `tiles` further.
    #[inline(always)]
    fn multiply<V: SimdVector>(
        &mut self,
        groups: &[StepGroup],
        rows: Range<usize>,
        columns: Range<usize>,
        [first, tiles]: [usize; 2],
    ) {
        let tile_columns = V::COLUMNS * V::LANES;
        for (right, columns) in chunks(columns, tile_columns).enumerate() {
            for group in groups {
                for (left, rows) in chunks(rows.clone(), V::ROWS).enumerate() {
                    let kept = right * tiles + first + left;
                    self.multiply_tile::<V>(group, [left, right], kept, rows, columns.clone());
                }
            }
        }
    }

    #[inline(always)]
    fn multiply_tile<V: SimdVector>(
        &mut self,
        group: &StepGroup,
        [left, right]: [usize; 2],
        kept: usize,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        let vectors = columns.len().div_ceil(V::LANES);
        let width = vectors * V::LANES;
        let panel = |side: usize, number, whole_width| {
            let (memory, outer) = self.sides[side];
            GroupPanel {
                memory: &memory[group.start * outer..],
                outer,
                number,
                whole_width,
            }
        };
        let carried = kept * self.carried_length;
        let mut product = TreeTile {
            steps: &group.steps,
            length: group.length,
            left: panel(0, left, V::ROWS),
            right: panel(1, right, V::COLUMNS * V::LANES),
            columns: vectors,
            slots: TileSlots {
                local: &mut *self.local,
                carried: &mut self.carried[carried..carried + self.carried_length],
                local_slots: self.local_slots,
            },
        };
        if !group.is_last {
            return product.multiply::<V>();
        }
        let to = &mut self.out[rows.start * self.stride + columns.start..];
        for to in to.chunks(self.stride).take(rows.len()) {
            for vector in to[..columns.len()].chunks(V::LANES) {
                V::fetch(vector.as_ptr());
            }
        }
        product.multiply::<V>();
        let sums = product.slots.tile::<V>(0).chunks_exact(width);
        for (to, sums) in to.chunks_mut(self.stride).take(rows.len()).zip(sums) {
            put_canonical::<V>(sums, &mut to[..columns.len()]);
        }
    }
}

#[cfg(test)]
mod tests;
