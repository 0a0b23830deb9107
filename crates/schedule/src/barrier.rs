//! Barrier by dissemination: after round `k`, a rank has received a message, directly or indirectly, from
//! `2^(k + 1)` ranks.
//!
//! `log2(n)` rounds, rounded up; one element per message. Source: Hensgen, Finkel and Manber, "Two
//! algorithms for barrier synchronization", 1988.

use crate::schedule::{Region, Round, Schedule};

/// Returns the schedule of a barrier: no rank finishes before all have started. The caller has no operand; messages
/// are tokens of one byte.
#[must_use]
pub fn barrier(rank: usize, size: usize) -> Schedule {
    let mut schedule = Schedule::new(Vec::new(), Region::new(0, 0..0));
    let (out, back) = (schedule.scratch(1), schedule.scratch(1));
    let mut distance = 1;
    while distance < size {
        let mut round = Round::default();
        round.send((rank + distance) % size, Region::new(out, 0..1));
        round.receive((rank + size - distance) % size, Region::new(back, 0..1));
        schedule.push(round);
        distance *= 2;
    }
    schedule
}
