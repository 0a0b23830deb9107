//! Ring: every rank sends only to the next one; slices travel around twice, first reduced, then complete.
//!
//! `2 (n - 1)` rounds and messages and about `2 b (n - 1) / n` bytes per rank, the least possible. The
//! order of additions differs between slices, so a ring cannot keep the order of a tree. Source:
//! Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

use crate::schedule::{Region, Round, Schedule};
use crate::slices::slice;

/// Returns the schedule of `rank` of `size` for `len` elements.
#[must_use]
pub fn ring(rank: usize, size: usize, len: usize) -> Schedule {
    let part = |index: usize| Region::new(0, slice(len, size, index % size));
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut schedule = Schedule::new(vec![len], Region::new(0, 0..len));
    let longest = (0..size).map(|index| part(index).len()).max().unwrap_or(0);
    if size == 1 {
        return schedule;
    }
    let scratch = schedule.scratch(longest);
    for step in 0..size - 1 {
        let mine = part(rank + 2 * size - step - 1);
        let arriving = Region::new(scratch, 0..mine.len());
        let mut round = Round::default();
        round.send(next, part(rank + size - step));
        round.receive(before, arriving.clone());
        round.reduce_left(arriving, mine);
        schedule.push(round);
    }
    for step in 0..size - 1 {
        let mut round = Round::default();
        round.send(next, part(rank + 1 + size - step));
        round.receive(before, part(rank + size - step));
        schedule.push(round);
    }
    schedule
}
