//! [`ShardStep`]: the order in which the sums of shards are added along the binary tree of an exact sum.
#![expect(unsafe_code, reason = "vector loads in an inner loop")]

use crate::simd::SimdVector;

/// What is done with the sum of a shard. Slot 0 has the result; slot `1 + level` has a complete subtree of a level, until its right
/// neighbour is added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardStep {
    /// The slots to which the sum is added on the right, from the lowest bit on.
    pub(crate) adds: u64,
    /// The slot that the result is written to.
    pub(crate) to: usize,
}

impl ShardStep {
    /// Returns the step of one of several shards, which are added in order.
    pub(crate) fn of(shard: usize, shards: usize) -> Self {
        if shard + 1 == shards {
            return Self {
                adds: (shard as u64) << 1,
                to: 0,
            };
        }
        let completed = shard.trailing_ones() as usize;
        Self {
            adds: ((1 << completed) - 1) << 1,
            to: 1 + completed,
        }
    }

    /// Returns the numbers of the slots to which the sum is added, in order.
    #[inline(always)]
    pub(crate) fn added_slots(self) -> impl Iterator<Item = usize> {
        let mut rest = self.adds;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let slot = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                slot
            })
        })
    }
}

/// Returns the number of slots that the steps of some shards use.
pub(crate) fn slots(shards: usize) -> usize {
    1 + (usize::BITS - shards.saturating_sub(1).leading_zeros()) as usize
}

/// Memory for one tile in each slot, and for that of a shard.
pub(crate) struct SlotTiles<'a> {
    memory: &'a mut [f32],
    /// The number of elements of a tile, of whole vectors.
    tile: usize,
}

impl<'a> SlotTiles<'a> {
    /// Returns the number of elements of the tiles of some shards.
    pub(crate) fn elements(shards: usize, tile: usize) -> usize {
        (slots(shards) + 1) * tile
    }

    /// Divides memory into tiles of a number of elements.
    pub(crate) fn new(memory: &'a mut [f32], tile: usize) -> Self {
        Self { memory, tile }
    }

    /// Returns the tile that the sums of a step's shard are written to before they are added.
    pub(crate) fn of_shard(&mut self, step: ShardStep) -> &mut [f32] {
        let last = self.memory.len() / self.tile - 1;
        let slot = if step.adds == 0 { step.to } else { last };
        &mut self.memory[slot * self.tile..][..self.tile]
    }

    /// Adds the tile of a step's shard to the right of those of the step's slots.
    #[inline(always)]
    pub(crate) fn add<V: SimdVector>(&mut self, step: ShardStep) {
        if step.adds == 0 {
            return;
        }
        let tiles = self.memory.len() / self.tile;
        let highest = (u64::BITS - 1 - step.adds.leading_zeros()) as usize;
        assert!(
            highest.max(step.to) < tiles && self.tile.is_multiple_of(V::LANES),
            "tiles of slots"
        );
        let memory = self.memory.as_mut_ptr();
        for at in (0..self.tile).step_by(V::LANES) {
            // SAFETY: the slots of the step and the last one have a tile with this vector, as asserted.
            unsafe {
                let mut sum = V::load(memory.add((tiles - 1) * self.tile + at));
                let mut rest = step.adds;
                while rest != 0 {
                    let slot = rest.trailing_zeros() as usize;
                    sum = V::load(memory.add(slot * self.tile + at)).add(sum);
                    rest &= rest - 1;
                }
                sum.store(memory.add(step.to * self.tile + at));
            }
        }
    }

    /// Returns the tile of the result.
    pub(crate) fn result(&self) -> &[f32] {
        &self.memory[..self.tile]
    }
}

/// Copies values to a slice that may be shorter, and replaces every NaN by the canonical one.
#[inline(always)]
pub(crate) fn put_canonical<V: SimdVector>(from: &[f32], to: &mut [f32]) {
    let canonical = |value: f32| if value.is_nan() { f32::NAN } else { value };
    let mut vectors = to.chunks_exact_mut(V::LANES);
    let mut from = from.chunks_exact(V::LANES);
    for (to, from) in (&mut vectors).zip(&mut from) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = canonical(*from);
        }
    }
    let rest = from.next().unwrap_or(from.remainder());
    for (to, from) in vectors.into_remainder().iter_mut().zip(rest) {
        *to = canonical(*from);
    }
}

#[cfg(test)]
mod tests {
    use super::{ShardStep, slots};

    /// Adds texts, so that the result shows the order.
    fn sum(shards: usize) -> String {
        let mut found = vec![String::new(); slots(shards)];
        for shard in 0..shards {
            let step = ShardStep::of(shard, shards);
            let right = shard.to_string();
            let sum = step
                .added_slots()
                .fold(right, |right, slot| format!("({}+{right})", found[slot]));
            found[step.to] = sum;
        }
        found.swap_remove(0)
    }

    #[test]
    fn neighbours_are_added_to_pairs_and_pairs_to_quadruples() {
        for (shards, expected) in [
            (1, "0"),
            (2, "(0+1)"),
            (3, "((0+1)+2)"),
            (4, "((0+1)+(2+3))"),
            (7, "(((0+1)+(2+3))+((4+5)+6))"),
            (8, "(((0+1)+(2+3))+((4+5)+(6+7)))"),
        ] {
            assert_eq!(sum(shards), expected);
        }
    }
}
