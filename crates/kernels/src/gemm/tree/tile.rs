//! [`TreeTile`]: the products of several shards for one tile, added along a tree.
#![expect(unsafe_code, reason = "vector loads and stores in the innermost loops")]

use std::ops::Range;

use crate::gemm::tile::{PackedPanels, TILE_MAX, multiply, sums};
use crate::simd::{PanelForm, SimdVector};

/// A block of the inner index of a shard, and what happens to its tiles.
#[derive(Debug)]
pub(super) struct TreeStep {
    /// The inner indices.
    pub(super) depth: Range<usize>,
    /// The start in the packed memory of the group, as an inner length.
    pub(super) start: usize,
    /// The slots whose tiles are added to the left of the product, from the lowest bit on.
    pub(super) adds: u64,
    /// The slot that the sum is written to.
    pub(super) to: usize,
    /// Whether this and the next three steps are products of four shards that have a common parent of their parents.
    pub(super) starts_four: bool,
}

/// A panel in the packed memory of all steps of a group.
#[derive(Clone, Copy)]
pub(super) struct GroupPanel<'a> {
    pub(super) memory: &'a [f32],
    /// The number of outer indices for which there is memory.
    pub(super) outer: usize,
    /// The number of the panel, and the width of those before it.
    pub(super) number: usize,
    pub(super) whole_width: usize,
}

impl<'a> GroupPanel<'a> {
    /// Returns the part that a step multiplies, of a panel of some width in a group of some inner length.
    #[inline(always)]
    fn part<V: SimdVector>(&self, step: &TreeStep, width: usize, length: usize) -> &'a [f32] {
        let depth = step.depth.len();
        let start = match V::FORM {
            // All steps are packed as one inner index.
            PanelForm::Values => self.number * self.whole_width * length + step.start * width,
            form => step.start * self.outer + self.number * self.whole_width * form.length(depth),
        };
        &self.memory[start..start + V::FORM.rows(depth) * width]
    }
}

/// The sums of subtrees, in slots of the size of a whole tile; rows have no space between them.
pub(super) struct TileSlots<'a> {
    /// The first slots.
    pub(super) local: &'a mut [f32],
    /// The slots from `local_slots` on.
    pub(super) carried: &'a mut [f32],
    pub(super) local_slots: usize,
}

impl TileSlots<'_> {
    /// Returns the tile of a slot.
    #[inline(always)]
    pub(super) fn tile<V: SimdVector>(&mut self, slot: usize) -> &mut [f32] {
        let size = V::ROWS * V::COLUMNS * V::LANES;
        match slot.checked_sub(self.local_slots) {
            None => &mut self.local[slot * size..][..size],
            Some(slot) => &mut self.carried[slot * size..][..size],
        }
    }
}

/// The steps of a group for one tile.
pub(super) struct TreeTile<'a> {
    pub(super) steps: &'a [TreeStep],
    /// The inner length of the packed memory.
    pub(super) length: usize,
    pub(super) left: GroupPanel<'a>,
    pub(super) right: GroupPanel<'a>,
    /// The number of vectors of columns.
    pub(super) columns: usize,
    pub(super) slots: TileSlots<'a>,
}

impl TreeTile<'_> {
    /// Multiplies the panels of each step, adds the product to the right of the tiles of its slots, and writes the sum to its slot.
    #[inline(always)]
    pub(super) fn multiply<V: SimdVector>(&mut self) {
        assert!(self.columns <= V::COLUMNS, "columns of a tile");
        match (V::FORM, V::ROWS, self.columns) {
            (PanelForm::Values | PanelForm::Bf16Pairs, 8, 3) => self.multiply_sized::<V, 8, 3>(),
            (PanelForm::Values | PanelForm::Bf16Pairs, 8, 2) => self.multiply_sized::<V, 8, 2>(),
            (PanelForm::Values | PanelForm::Bf16Pairs, 8, 1) => self.multiply_sized::<V, 8, 1>(),
            (PanelForm::Values, 6, 2) => self.multiply_sized::<V, 6, 2>(),
            (PanelForm::Values, 6, 1) => self.multiply_sized::<V, 6, 1>(),
            (PanelForm::Values, 4, 2) => self.multiply_sized::<V, 4, 2>(),
            (PanelForm::Values, 4, 1) => self.multiply_sized::<V, 4, 1>(),
            _ => self.multiply_arranged::<V>(),
        }
    }

    /// Makes the steps for R rows of C vectors.
    #[inline(always)]
    fn multiply_sized<V: SimdVector, const R: usize, const C: usize>(&mut self) {
        let mut steps = self.steps;
        while let [step, rest @ ..] = steps {
            if step.starts_four
                && let [first, second, third, step, rest @ ..] = steps
            {
                // Without branches that depend on the number of the shard.
                let sums = self.product::<V, R, C>(first);
                self.store::<V, R, C>(&sums, 1);
                let sums = self.product::<V, R, C>(second);
                let sums = self.plus::<V, R, C>(sums, 1);
                self.store::<V, R, C>(&sums, 2);
                let sums = self.product::<V, R, C>(third);
                self.store::<V, R, C>(&sums, 1);
                let sums = self.product::<V, R, C>(step);
                let sums = self.plus::<V, R, C>(sums, 1);
                let sums = self.plus::<V, R, C>(sums, 2);
                self.put::<V, R, C>(sums, step.adds & !0b110, step.to);
                steps = rest;
            } else {
                let sums = self.product::<V, R, C>(step);
                self.put::<V, R, C>(sums, step.adds, step.to);
                steps = rest;
            }
        }
    }

    #[inline(always)]
    fn product<V: SimdVector, const R: usize, const C: usize>(
        &self,
        step: &TreeStep,
    ) -> [[V; C]; R] {
        let a = self.left.part::<V>(step, R, self.length);
        let b = self.right.part::<V>(step, C * V::LANES, self.length);
        sums::<V, R, C>(a, b)
    }

    /// Adds sums to the right of the tile of a slot.
    #[expect(
        clippy::needless_range_loop,
        reason = "indices of registers; iterators hide from the compiler that they are"
    )]
    #[inline(always)]
    fn plus<V: SimdVector, const R: usize, const C: usize>(
        &mut self,
        mut sums: [[V; C]; R],
        slot: usize,
    ) -> [[V; C]; R] {
        let left = self.slots.tile::<V>(slot);
        assert!(left.len() >= R * C * V::LANES, "a tile of a slot");
        for r in 0..R {
            for c in 0..C {
                // SAFETY: the slot has all vectors, as asserted.
                let left = unsafe { V::load(left.as_ptr().add((r * C + c) * V::LANES)) };
                sums[r][c] = left.add(sums[r][c]);
            }
        }
        sums
    }

    /// Writes sums to the tile of a slot.
    #[inline(always)]
    fn store<V: SimdVector, const R: usize, const C: usize>(
        &mut self,
        sums: &[[V; C]; R],
        slot: usize,
    ) {
        let to = self.slots.tile::<V>(slot);
        assert!(to.len() >= R * C * V::LANES, "a tile of a slot");
        for (r, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                // SAFETY: the slot has all vectors, as asserted.
                unsafe { sum.store(to.as_mut_ptr().add((r * C + c) * V::LANES)) };
            }
        }
    }

    /// Adds sums to the right of the tiles of some slots, and writes them to a slot.
    #[inline(always)]
    fn put<V: SimdVector, const R: usize, const C: usize>(
        &mut self,
        mut sums: [[V; C]; R],
        mut adds: u64,
        to: usize,
    ) {
        while adds != 0 {
            sums = self.plus::<V, R, C>(sums, adds.trailing_zeros() as usize);
            adds &= adds - 1;
        }
        self.store::<V, R, C>(&sums, to);
    }

    /// Makes the steps for panels in a separate form.
    #[inline(always)]
    fn multiply_arranged<V: SimdVector>(&mut self) {
        let width = self.columns * V::LANES;
        let mut tile = [0.0; TILE_MAX];
        for step in self.steps {
            let panels = PackedPanels {
                a: self.left.part::<V>(step, V::ROWS, self.length),
                b: self.right.part::<V>(step, width, self.length),
                depth: step.depth.len(),
                columns: self.columns,
            };
            multiply::<V>(panels, &mut tile);
            for at in (0..V::ROWS * width).step_by(V::LANES) {
                // SAFETY: the tile has all vectors.
                let mut sum = unsafe { V::load(tile[at..at + V::LANES].as_ptr()) };
                let mut adds = step.adds;
                while adds != 0 {
                    let left = self.slots.tile::<V>(adds.trailing_zeros() as usize);
                    adds &= adds - 1;
                    // SAFETY: the slot has the vector.
                    sum = unsafe { V::load(left[at..at + V::LANES].as_ptr()) }.add(sum);
                }
                let to = &mut self.slots.tile::<V>(step.to)[at..at + V::LANES];
                // SAFETY: `to` has as many elements as a vector.
                unsafe { sum.store(to.as_mut_ptr()) };
            }
        }
    }
}
