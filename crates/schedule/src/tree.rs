//! Binary tree: operands go up to one rank, added on the way, and the result goes down.
//!
//! `log2(n)` rounds up and as many down, rounded up; a rank sends its operand once and the result at
//! most `log2(n)` times, whole. Fewest bytes for small operands on any world size. For an exact sum
//! every addition of the tree over shards is made where its left operand lies, so that any spread of
//! shards keeps its bits.

use crate::broadcast::broadcast;
use crate::contributions::Contributions;
use crate::schedule::{Region, Round, Schedule};

/// The all-reduce of `rank` for operands of `len` elements.
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

/// The reduction to `root` of one operand per rank; the others end with nothing.
#[must_use]
pub fn tree_reduce(rank: usize, size: usize, root: usize, len: usize) -> Schedule {
    let place = (rank + size - root) % size;
    let mut schedule = upwards(&Contributions::neighbours(size), place, len);
    schedule.rename_ranks(|place| (place + root) % size);
    if rank != root {
        schedule.result = Region::new(0, 0..0);
    }
    schedule
}

/// Every addition where its left operand lies; the sum ends in slot 0 of the first operand's owner.
fn upwards(contributions: &Contributions, rank: usize, len: usize) -> Schedule {
    let count = contributions.count(rank);
    let mut schedule = Schedule::new(vec![len; count], Region::new(0, 0..len));
    let whole = |slot| Region::new(slot, 0..len);
    let place = |operand: usize| operand - contributions.starts[rank];
    let receives = contributions.additions.iter().any(|&(into, from)| {
        contributions.owner(into) == rank && contributions.owner(from) != rank
    });
    let arriving = receives.then(|| schedule.scratch(len));
    for &(into, from) in &contributions.additions {
        let (to, sender) = (contributions.owner(into), contributions.owner(from));
        let mut round = Round::default();
        if to == rank && sender == rank {
            round.reduce_right(whole(place(into)), whole(place(from)));
        } else if to == rank {
            let arriving = whole(arriving.unwrap_or_default());
            round.receive(sender, arriving.clone());
            round.reduce_right(whole(place(into)), arriving);
        } else if sender == rank {
            round.send(to, whole(place(from)));
        }
        schedule.push(round);
    }
    schedule
}
