//! Direct exchange: each rank owns a slice, receives it from all ranks, reduces it in a fixed order, and sends the
//! result to all.
//!
//! Two rounds, `2 (n - 1)` messages per operand and about `2 b (n - 1) / n` bytes per rank with one operand per
//! rank. Because one rank receives all operands of a slice, it can add them in any order: this is the general
//! algorithm of the exact sum.

use crate::contributions::Contributions;
use crate::schedule::{Region, Round, Schedule};
use crate::slices::slice;

/// Returns the schedule of `rank` for operands of `len` elements.
#[must_use]
pub fn direct(contributions: &Contributions, rank: usize, len: usize) -> Schedule {
    let size = contributions.size();
    let count = contributions.count(rank);
    let owned = slice(len, size, rank);
    let peers = || (1..size).map(|distance| (rank + distance) % size);
    let mut schedule = Schedule::new(vec![len; count], Region::new(0, 0..len));
    if count == 0 {
        schedule.result.slot = schedule.scratch(len);
    }
    let result = schedule.result.slot;

    let mut scatter = Round::default();
    let mut places = Vec::new();
    for peer in 0..size {
        for operand in 0..contributions.count(peer) {
            places.push(if peer == rank {
                Region::new(operand, owned.clone())
            } else {
                Region::new(schedule.scratch(owned.len()), 0..owned.len())
            });
        }
    }
    for peer in peers() {
        for operand in 0..count {
            scatter.send(peer, Region::new(operand, slice(len, size, peer)));
        }
        let from = contributions.starts[peer]..contributions.starts[peer + 1];
        for place in &places[from] {
            scatter.receive(peer, place.clone());
        }
    }
    // If an operand is already at the location of the result, the sum is formed there, which saves a copy.
    let nearness = |place: &Region| (place.slot == result, place.slot < count);
    for &(into, from) in &contributions.additions {
        let (left, right) = (places[into].clone(), places[from].clone());
        if nearness(&right) > nearness(&left) {
            places[into] = right.clone();
            scatter.reduce_left(left, right);
        } else {
            scatter.reduce_right(left, right);
        }
    }
    scatter.copy(Region::new(result, owned.clone()), places[0].clone());
    schedule.push(scatter);

    let mut gather = Round::default();
    for peer in peers() {
        gather.send(peer, Region::new(result, owned.clone()));
        gather.receive(peer, Region::new(result, slice(len, size, peer)));
    }
    schedule.push(gather);
    schedule
}
