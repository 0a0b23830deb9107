//! Broadcast along a binomial tree.
//!
//! `log2(n)` rounds, rounded up; each rank receives the whole operand once and sends it at most `log2(n)` times.

use crate::schedule::{Region, Round, Schedule};

/// Returns the schedule in which every rank receives the `len` elements of `root`.
#[must_use]
pub fn broadcast(rank: usize, size: usize, root: usize, len: usize) -> Schedule {
    let whole = Region::new(0, 0..len);
    let place = (rank + size - root) % size;
    let at = |place: usize| (place + root) % size;
    let mut schedule = Schedule::new(vec![len], whole.clone());
    let mut distance = size.next_power_of_two() / 2;
    while distance > 0 {
        let mut round = Round::default();
        if place.is_multiple_of(2 * distance) && place + distance < size {
            round.send(at(place + distance), whole.clone());
        } else if place % (2 * distance) == distance {
            round.receive(at(place - distance), whole.clone());
        }
        schedule.push(round);
        distance /= 2;
    }
    schedule
}
