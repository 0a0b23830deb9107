//! Long operands within a host go in blocks, one after the other, so that what is received, reduced and
//! sent on is still in the cache of a core.
//!
//! A rank that takes 64 MiB at once reads every byte from memory when it sends it, again when it reduces
//! into it and again when it sends the sum. By blocks it does so once. More messages are the price: as
//! many as blocks. The executor begins with the next block while one is under way, so that nobody waits
//! between two of them. Each element is added up as in a schedule of one block: an exact sum has the same
//! bits, a plain one of a ring or of halves may round in another way than without blocks.

use std::ops::Range;

use crate::schedule::{LocalAction, Region, Round, Schedule, Transfer};
use crate::{Algorithm, Hosts, ScheduleError};

/// Elements of a block for each rank: the slice of one in direct exchange. A message costs about as much as
/// copying a quarter of that, and the slices of all others stay in the cache.
const SLICE_LEN: usize = 1 << 16;
/// Blocks that may be under way at once: each has scratch of its own.
pub(crate) const SETS: usize = 2;

/// Elements of a block where ranks of `hosts` reduce operands of `len`; `len` where they take all at once:
/// between hosts the links decide and few long messages are best, and two blocks are the least that is
/// worth it. A tree's and a driver's ranks pass on whole operands.
#[must_use]
pub fn block_len(algorithm: Algorithm, hosts: &Hosts, len: usize) -> usize {
    use Algorithm::{Driver, Tree};
    let block = SLICE_LEN * hosts.size();
    let is_by_slices = !matches!(algorithm, Driver | Tree);
    if !is_by_slices || hosts.count() > 1 || len < 2 * block {
        len
    } else {
        block
    }
}

/// One rank's schedule for operands of `len` elements, in blocks of `block` elements, the last one shorter:
/// that which `make` gives for a block's length, for one block after the other.
///
/// For every length `make` must give the same count of slots, inputs as long as an operand, and the
/// result in one whole slot; what it leaves in other scratch nobody may want in a later round.
///
/// # Errors
/// Those of `make`.
pub fn in_blocks(
    len: usize,
    block: usize,
    make: impl Fn(usize) -> Result<Schedule, ScheduleError>,
) -> Result<Schedule, ScheduleError> {
    if block == 0 || block >= len {
        return make(len);
    }
    let mut blocks = Blocks::of(&make(block)?, len);
    for start in (0..len).step_by(block) {
        blocks.add(start, make(block.min(len - start))?);
    }
    Ok(blocks.whole)
}

/// A schedule in blocks that is being made.
struct Blocks {
    whole: Schedule,
    /// Where a block's slots are in the whole, by the set of scratch that it takes.
    slots: [Vec<usize>; SETS],
    /// The slot of a block that holds its result, of which the whole has one as long as an operand.
    result: usize,
    /// Blocks that were added.
    count: usize,
}

impl Blocks {
    /// No block yet. `first` is one of the longest.
    fn of(first: &Schedule, len: usize) -> Self {
        let result = first.result.slot;
        let mut whole = Schedule::new(vec![len; first.inputs], Region::new(result, 0..len));
        if result >= first.inputs {
            whole.result.slot = whole.scratch(len);
        }
        let slots = std::array::from_fn(|_| {
            let place = |slot: usize| match slot {
                _ if slot == result => whole.result.slot,
                _ if slot < first.inputs => slot,
                _ => whole.scratch(first.slots[slot]),
            };
            (0..first.slots.len()).map(place).collect()
        });
        Self {
            whole,
            slots,
            result,
            count: 0,
        }
    }

    /// Adds the block that begins at an element.
    fn add(&mut self, start: usize, block: Schedule) {
        let (inputs, result) = (self.whole.inputs, self.result);
        let slots = &self.slots[self.count % SETS];
        self.count += 1;
        let place = |region: &mut Region| {
            if region.slot < inputs || region.slot == result {
                let Range { start: from, end } = region.elements;
                region.elements = start + from..start + end;
            }
            region.slot = slots[region.slot];
        };
        for mut round in block.rounds {
            round.regions_mut().for_each(place);
            self.whole.push(round);
        }
    }
}

impl Round {
    fn regions_mut(&mut self) -> impl Iterator<Item = &mut Region> {
        let transfers = self.transfers.iter_mut().map(|transfer| match transfer {
            Transfer::Send { region, .. } | Transfer::Receive { region, .. } => region,
        });
        let actions = self.actions.iter_mut().flat_map(|action| match action {
            LocalAction::Reduce { into, left, right } => vec![into, left, right],
            LocalAction::Copy { into, from } => vec![into, from],
        });
        transfers.chain(actions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_operands_of_one_host_go_in_blocks() {
        let (one, two) = (Hosts::one(4), Hosts::new(&[0, 0, 1, 1]));
        let block = 4 * SLICE_LEN;
        let by_direct = |hosts, len| block_len(Algorithm::Direct, hosts, len);
        assert_eq!(by_direct(&one, 2 * block - 1), 2 * block - 1);
        assert_eq!(by_direct(&one, 2 * block), block);
        assert_eq!(by_direct(&two, 1 << 24), 1 << 24);
        assert_eq!(block_len(Algorithm::Tree, &one, 1 << 24), 1 << 24);
    }

    #[test]
    fn scratch_is_that_of_two_blocks() {
        let make = |len| crate::all_reduce(Algorithm::Direct, ronde_core::GroupRank(1), 4, len);
        let whole = in_blocks(10_000, 1024, make).expect("it can");
        assert_eq!(whole.scratch_len(), 2 * 3 * 256);
        assert_eq!(whole.rounds.len(), 2 * 10);
        assert_eq!(whole.check(), Ok(()));
    }
}
