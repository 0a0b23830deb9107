//! Driver: rank 0 receives from all ranks, reduces, and sends the result to all. The baseline.
//!
//! Two rounds. Rank 0 receives every whole operand and sends `(n - 1) b` bytes; the other ranks send their
//! operands. Simple, but rank 0 is the bottleneck.

use crate::contributions::Contributions;
use crate::schedule::{Region, Round, Schedule};

/// Returns the schedule of `rank` for operands of `len` elements.
#[must_use]
pub fn driver(contributions: &Contributions, rank: usize, len: usize) -> Schedule {
    let count = contributions.count(rank);
    let whole = |slot| Region::new(slot, 0..len);
    let mut schedule = Schedule::new(vec![len; count], whole(0));
    if count == 0 {
        schedule.result = whole(schedule.slots.len());
        schedule.scratch(len);
    }
    let result = schedule.result.clone();
    let (mut gather, mut tell) = (Round::default(), Round::default());
    if rank == 0 {
        let mut places: Vec<usize> = (0..count).collect();
        for peer in 1..contributions.size() {
            for _ in 0..contributions.count(peer) {
                let slot = schedule.scratch(len);
                gather.receive(peer, whole(slot));
                places.push(slot);
            }
            tell.send(peer, result.clone());
        }
        for &(into, from) in &contributions.additions {
            gather.reduce_right(whole(places[into]), whole(places[from]));
        }
        gather.copy(result, whole(places[0]));
    } else {
        for slot in 0..count {
            gather.send(0, whole(slot));
        }
        tell.receive(0, result);
    }
    schedule.push(gather);
    schedule.push(tell);
    schedule
}
