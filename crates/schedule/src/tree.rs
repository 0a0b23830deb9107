//! Binary tree: operands are sent up to one rank and added on the way; the result is sent down.
//!
//! `log2(n)` rounds up and as many down, rounded up; a rank sends its whole operand once and the whole result at
//! most `log2(n)` times. Fewest messages for short operands on any world size. For an exact sum, the rank that
//! holds the left operand makes each addition of the tree over shards, so that any distribution of shards keeps
//! its bits.

use crate::broadcast::broadcast;
use crate::contributions::Contributions;
use crate::schedule::{Region, Round, Schedule};

/// Returns the all-reduce of `rank` for operands of `len` elements.
#[must_use]
pub fn tree(contributions: &Contributions, rank: usize, len: usize) -> Schedule {
    let mut schedule = upwards(contributions, rank, len);
    if contributions.count(rank) == 0 {
        schedule.result = Region::new(schedule.scratch(len), 0..len);
    }
    let slot = schedule.result.slot;
    let top = contributions.owner(0);
    for mut round in broadcast(rank, contributions.size(), top, len).rounds {
        round.move_to_slot(slot);
        schedule.push(round);
    }
    schedule
}

/// Returns the reduction of one operand per rank to `root`; the other ranks have an empty result.
#[must_use]
pub fn tree_reduce(rank: usize, size: usize, root: usize, len: usize) -> Schedule {
    let position = (rank + size - root) % size;
    let mut schedule = upwards(&Contributions::neighbours(size), position, len);
    schedule.rename_ranks(|position| (position + root) % size);
    if rank != root {
        schedule.result = Region::new(0, 0..0);
    }
    schedule
}

/// Adds the rounds upwards: the rank with the left operand makes each addition, and the sum ends in slot 0 of the
/// first operand's owner.
fn upwards(contributions: &Contributions, rank: usize, len: usize) -> Schedule {
    let count = contributions.count(rank);
    let mut schedule = Schedule::new(vec![len; count], Region::new(0, 0..len));
    let whole = |slot| Region::new(slot, 0..len);
    let position = |operand: usize| operand - contributions.starts[rank];
    let receives = contributions.additions.iter().any(|&(into, from)| {
        contributions.owner(into) == rank && contributions.owner(from) != rank
    });
    let arriving = receives.then(|| schedule.scratch(len));
    for &(into, from) in &contributions.additions {
        let (to, sender) = (contributions.owner(into), contributions.owner(from));
        let mut round = Round::default();
        if to == rank && sender == rank {
            round.reduce_right(whole(position(into)), whole(position(from)));
        } else if to == rank {
            let arriving = whole(arriving.unwrap_or_default());
            round.receive(sender, arriving.clone());
            round.reduce_right(whole(position(into)), arriving);
        } else if sender == rank {
            round.send(to, whole(position(from)));
        }
        schedule.push(round);
    }
    schedule
}
