//! Halving-doubling: pairs exchange halves, neighbours first; then the slices are doubled back.
//!
//! For `n` a power of two: `2 log2(n)` rounds and messages and about `2 b (n - 1) / n` bytes per rank.
//! Neighbours (distance 1) come first and the lower rank is the left operand, so the partial sums are
//! exactly the nodes of the binary tree over ranks: it keeps the order of a balanced exact sum.
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", 2005, section 4.4 (there with distant ranks first).

use crate::schedule::{Region, Round, Schedule};
use crate::slices::halves;

/// The schedule of `rank` of `size` for `len` elements; `None` unless `size` is a power of two.
#[must_use]
pub fn halving_doubling(rank: usize, size: usize, len: usize) -> Option<Schedule> {
    if !size.is_power_of_two() {
        return None;
    }
    let mut schedule = Schedule::new(vec![len], Region::new(0, 0..len));
    let scratch = schedule.scratch(if size > 1 { len - len / 2 + 64 } else { 0 });
    let mut run = 0..len;
    let mut taken = Vec::new();
    for distance in (0..size.ilog2()).map(|level| 1 << level) {
        let peer = rank ^ distance;
        let (low, high) = halves(run);
        let (mine, theirs) = if rank < peer {
            (low, high)
        } else {
            (high, low)
        };
        let arriving = Region::new(scratch, 0..mine.len());
        let kept = Region::new(0, mine.clone());
        let mut round = Round::default();
        round.send(peer, Region::new(0, theirs.clone()));
        round.receive(peer, arriving.clone());
        if rank < peer {
            round.reduce_right(kept, arriving);
        } else {
            round.reduce_left(arriving, kept);
        }
        schedule.push(round);
        taken.push((peer, mine.clone(), theirs));
        run = mine;
    }
    for (peer, mine, theirs) in taken.into_iter().rev() {
        let mut round = Round::default();
        round.send(peer, Region::new(0, mine));
        round.receive(peer, Region::new(0, theirs));
        schedule.push(round);
    }
    Some(schedule)
}
