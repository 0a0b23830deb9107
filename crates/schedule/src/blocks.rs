//! Schedules in blocks: long operands within a host are processed block by block, so that the data stays in the
//! cache of a core while it is received, reduced and forwarded.
//!
//! Without blocks, a rank with an operand of 64 MiB reads every byte from memory when it sends it, again when it
//! reduces into it, and again when it sends the sum; with blocks it does so once. The price is more messages, one
//! per block. The executor starts the next block while one is in flight, so ranks do not wait between blocks. An
//! exact sum has the same bits as without blocks; a plain sum with `ring` or `halving_doubling` may round
//! differently.

use std::ops::Range;

use crate::algorithm::Algorithm;
use crate::error::ScheduleError;
use crate::hosts::Hosts;
use crate::schedule::{LocalAction, Region, Round, Schedule, Transfer};

/// The number of elements of a block per rank, which is a rank's slice in direct exchange. A message costs about as
/// much as copying a quarter of a slice, and the slices of all other ranks stay in the cache.
const SLICE_LEN: usize = 1 << 16;
/// The number of blocks in flight at once; each has its own scratch memory.
pub(crate) const SETS: usize = 2;

/// Returns the number of elements of a block for operands of `len` elements, or `len` if the operand is processed at
/// once: between hosts, where few long messages are best; for fewer than two blocks; and for `tree` and `driver`,
/// whose ranks send whole operands.
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

/// Returns one rank's schedule for operands of `len` elements in blocks of `block` elements (the last one may be
/// shorter): the schedules that `make` returns for the lengths of the blocks, concatenated.
///
/// For every length, `make` must return the same number of slots, inputs as long as an operand, and the result in one
/// whole slot. Later rounds must not use the contents of other scratch slots.
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
    let mut blocks = BlockScheduleBuilder::of(&make(block)?, len);
    for start in (0..len).step_by(block) {
        blocks.add(start, make(block.min(len - start))?);
    }
    Ok(blocks.whole)
}

/// The builder of a schedule in blocks.
struct BlockScheduleBuilder {
    whole: Schedule,
    /// The slots of a block in the whole schedule, by the set of scratch slots that it uses.
    slots: [Vec<usize>; SETS],
    /// The slot of a block that holds its result; in the whole schedule it is as long as an operand.
    result: usize,
    /// The number of blocks added so far.
    count: usize,
}

impl BlockScheduleBuilder {
    /// Creates a schedule without blocks. `first` is one of the longest blocks.
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

    /// Adds the block that begins at element `start`.
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
    fn long_operands_of_one_host_use_blocks() {
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
        let whole = in_blocks(10_000, 1024, make).expect("valid arguments");
        assert_eq!(whole.scratch_len(), 2 * 3 * 256);
        assert_eq!(whole.rounds.len(), 2 * 10);
        assert_eq!(whole.check(), Ok(()));
    }
}
