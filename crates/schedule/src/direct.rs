//! Direct exchange: each rank owns a slice, receives it from all ranks, reduces it in a fixed order, and sends the
//! result to all.
//!
//! Two rounds, `2 (n - 1)` messages per operand and about `2 b (n - 1) / n` bytes per rank with one operand per
//! rank. Because one rank receives all operands of a slice, it can add them in any order: this is the general
//! algorithm of the exact sum.

use std::ops::Range;

use crate::contributions::Contributions;
use crate::schedule::{Region, Round, Schedule};
use crate::slices::slice;

/// Returns the schedule of `rank` for operands of `len` elements.
#[must_use]
pub fn direct(contributions: &Contributions, rank: usize, len: usize) -> Schedule {
    let size = contributions.size();
    let slices: Vec<Range<usize>> = (0..size).map(|owner| slice(len, size, owner)).collect();
    let mut schedule = direct_scatter(contributions, rank, &slices);
    let result = schedule.result.slot;
    schedule.result.elements = 0..len;

    let mut gather = Round::default();
    for peer in (1..size).map(|distance| (rank + distance) % size) {
        gather.send(peer, Region::new(result, slices[rank].clone()));
        gather.receive(peer, Region::new(result, slices[peer].clone()));
    }
    schedule.push(gather);
    schedule
}

/// Returns the first round of [`direct`] alone: rank `r` receives the sum of the elements `slices[r]`, which is its
/// result. The slices are consecutive and cover the operands.
#[must_use]
pub fn direct_scatter(
    contributions: &Contributions,
    rank: usize,
    slices: &[Range<usize>],
) -> Schedule {
    let size = contributions.size();
    let count = contributions.count(rank);
    let owned = slices[rank].clone();
    let len = slices[size - 1].end;
    let mut schedule = Schedule::new(vec![len; count], Region::new(0, owned.clone()));
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
    for peer in (1..size).map(|distance| (rank + distance) % size) {
        for operand in 0..count {
            scatter.send(peer, Region::new(operand, slices[peer].clone()));
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
    scatter.copy(Region::new(result, owned), places[0].clone());
    schedule.push(scatter);
    schedule
}
