//! Halving-doubling: pairs exchange halves, neighbours first; then slices double until all ranks have the result.
//!
//! If `n` is a power of two: `2 log2(n)` rounds and messages and about `2 b (n - 1) / n` bytes per rank.
//! Otherwise the first ranks are folded: the odd ranks of the surplus send their operand to their neighbour, do
//! not take part, and receive the result. This adds two rounds, and `b` bytes for each rank of such a pair.
//! Neighbours (distance 1) exchange first and the lower rank has the left operand. For powers of two, the partial
//! sums are therefore exactly the nodes of the binary tree over ranks, in the order of a balanced exact sum;
//! [`keeps_tree`] returns whether this holds for another distribution of shards.
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", 2005, section 4.4 (there with distant ranks first).

use std::ops::Range;

use ronde_core::GroupRank;
use ronde_core::exact::{self, ExactSum};

use crate::schedule::{Region, Round, Schedule};
use crate::slices::halves;

/// Returns the schedule of `rank` of `size` for `len` elements.
#[must_use]
pub fn halving_doubling(rank: usize, size: usize, len: usize) -> Schedule {
    let surplus = surplus(size);
    let mut schedule = Schedule::new(vec![len], Region::new(0, 0..len));
    let whole = Region::new(0, 0..len);
    if rank >= 2 * surplus {
        halve_and_double(&mut schedule, rank - surplus, size);
        return schedule;
    }
    let (mut fold, mut tell) = (Round::default(), Round::default());
    if rank % 2 == 1 {
        fold.send(rank - 1, whole.clone());
        tell.receive(rank - 1, whole);
        schedule.push(fold);
    } else {
        let arriving = Region::new(schedule.scratch(len), 0..len);
        fold.receive(rank + 1, arriving.clone());
        fold.reduce_right(whole.clone(), arriving);
        tell.send(rank + 1, whole);
        schedule.push(fold);
        halve_and_double(&mut schedule, rank / 2, size);
    }
    schedule.push(tell);
    schedule
}

/// Returns the number of ranks above the largest power of two.
fn surplus(size: usize) -> usize {
    size - (1 << size.ilog2())
}

/// The part among the `1 << levels` that are left after folding; `index` is this one's among them.
fn halve_and_double(schedule: &mut Schedule, index: usize, size: usize) {
    let (surplus, levels) = (surplus(size), size.ilog2());
    let rank_at = |index: usize| {
        if index < surplus {
            2 * index
        } else {
            index + surplus
        }
    };
    let len = schedule.result.len();
    let scratch = schedule.scratch(if levels > 0 { len - len / 2 + 64 } else { 0 });
    let mut run = 0..len;
    let mut taken = Vec::new();
    for distance in (0..levels).map(|level| 1 << level) {
        let other = index ^ distance;
        let peer = rank_at(other);
        let (low, high) = halves(run);
        let (mine, theirs) = if index < other {
            (low, high)
        } else {
            (high, low)
        };
        let arriving = Region::new(scratch, 0..mine.len());
        let kept = Region::new(0, mine.clone());
        let mut round = Round::default();
        round.send(peer, Region::new(0, theirs.clone()));
        round.receive(peer, arriving.clone());
        if index < other {
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
}

/// Returns whether every partial sum is a node of the tree over shards, so that an exact sum keeps its bits.
#[must_use]
pub fn keeps_tree(sum: &ExactSum) -> bool {
    let is_node = |run: &Range<u32>| exact::cover(run.clone(), sum.shards()).len() == 1;
    let mut runs: Vec<Range<u32>> = (0..sum.size())
        .map(|rank| sum.run(GroupRank(rank as u32)))
        .collect();
    let folded = 2 * surplus(runs.len());
    let (pairs, rest) = runs.split_at(folded);
    let merge = |pair: &[Range<u32>]| pair[0].start..pair[pair.len() - 1].end;
    let first: Vec<_> = pairs.chunks(2).map(merge).chain(rest.to_vec()).collect();
    if !runs.iter().chain(&first).all(is_node) {
        return false;
    }
    runs = first;
    while runs.len() > 1 {
        runs = runs.chunks(2).map(merge).collect();
        if !runs.iter().all(is_node) {
            return false;
        }
    }
    true
}
