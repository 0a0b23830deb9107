//! Operations with a root, by direct exchange: gather, scatter, reduce, and broadcast of long operands.

use crate::schedule::{Region, Round, Schedule};
use crate::slices::slice;

/// Returns a gather: the root receives all elements in rank order. Rank `r` contributes `lens[r]` elements; only the
/// root and `r` need to know this length. The buffers of all other ranks are unchanged.
///
/// One round; every rank except the root sends its elements in one message.
#[must_use]
pub fn gather(rank: usize, root: usize, lens: &[usize]) -> Schedule {
    let mine = Region::new(0, 0..lens[rank]);
    let mut schedule = Schedule::new(vec![lens[rank]], mine.clone());
    let mut round = Round::default();
    if rank != root {
        round.send(root, mine);
        schedule.push(round);
        return schedule;
    }
    let total = lens.iter().sum();
    if total == lens[rank] {
        return schedule;
    }
    let all = schedule.scratch(total);
    schedule.result = Region::new(all, 0..total);
    let mut start = 0;
    for (peer, &len) in lens.iter().enumerate() {
        let place = Region::new(all, start..start + len);
        if peer == rank {
            round.copy(place, mine.clone());
        } else {
            round.receive(peer, place);
        }
        start += len;
    }
    schedule.push(round);
    schedule
}

/// Returns a scatter: rank `r` receives the root's `r`-th `part_len` elements into its buffer.
///
/// One round; the root sends `n - 1` messages of `part_len` elements.
#[must_use]
pub fn scatter(rank: usize, size: usize, root: usize, part_len: usize) -> Schedule {
    let part = |index: usize| Region::new(0, index * part_len..(index + 1) * part_len);
    let mut round = Round::default();
    let mut schedule = if rank == root {
        for peer in (1..size).map(|distance| (rank + distance) % size) {
            round.send(peer, part(peer));
        }
        Schedule::new(vec![size * part_len], part(rank))
    } else {
        round.receive(root, part(0));
        Schedule::new(vec![part_len], part(0))
    };
    schedule.push(round);
    schedule
}

/// Returns a reduction in which the root receives all operands and adds them in rank order; the other ranks have an
/// empty result.
///
/// One round; every other rank sends its operand.
#[must_use]
pub fn reduce_at_root(rank: usize, size: usize, root: usize, len: usize) -> Schedule {
    let whole = |slot| Region::new(slot, 0..len);
    let mut schedule = Schedule::new(vec![len], whole(0));
    let mut round = Round::default();
    if rank == root {
        let places: Vec<Region> = (0..size)
            .map(|peer| {
                if peer == rank {
                    return whole(0);
                }
                let place = whole(schedule.scratch(len));
                round.receive(peer, place.clone());
                place
            })
            .collect();
        for place in &places[1..] {
            round.reduce_right(places[0].clone(), place.clone());
        }
        round.copy(whole(0), places[0].clone());
    } else {
        round.send(root, whole(0));
        schedule.result = Region::new(0, 0..0);
    }
    schedule.push(round);
    schedule
}

/// Returns a reduction in which each rank reduces its slice in rank order and sends it to the root; the other ranks
/// have an empty result.
///
/// Two rounds, at most `n` messages and about `b` bytes per rank.
#[must_use]
pub fn reduce_by_slices(rank: usize, size: usize, root: usize, len: usize) -> Schedule {
    let owned = slice(len, size, rank);
    let mut schedule = Schedule::new(vec![len], Region::new(0, 0..len));
    let (mut hear, mut tell) = (Round::default(), Round::default());
    let mut places = vec![Region::new(0, owned.clone()); size];
    for peer in (1..size).map(|distance| (rank + distance) % size) {
        hear.send(peer, Region::new(0, slice(len, size, peer)));
        places[peer] = Region::new(schedule.scratch(owned.len()), 0..owned.len());
        hear.receive(peer, places[peer].clone());
    }
    for place in &places[1..] {
        hear.reduce_right(places[0].clone(), place.clone());
    }
    hear.copy(Region::new(0, owned.clone()), places[0].clone());
    schedule.push(hear);
    if rank == root {
        for peer in (0..size).filter(|&peer| peer != rank) {
            tell.receive(peer, Region::new(0, slice(len, size, peer)));
        }
    } else {
        tell.send(root, Region::new(0, owned));
        schedule.result = Region::new(0, 0..0);
    }
    schedule.push(tell);
    schedule
}

/// Returns a broadcast in slices: the root sends each rank a slice, and the ranks exchange the slices.
///
/// Two rounds; about `b` bytes from the root and from each other rank together `b (n - 2) / n`.
#[must_use]
pub fn broadcast_by_slices(rank: usize, size: usize, root: usize, len: usize) -> Schedule {
    let part = |index: usize| Region::new(0, slice(len, size, index));
    let mut schedule = Schedule::new(vec![len], Region::new(0, 0..len));
    let (mut scatter, mut gather) = (Round::default(), Round::default());
    if rank == root {
        for peer in (1..size).map(|distance| (rank + distance) % size) {
            scatter.send(peer, part(peer));
            gather.send(peer, part(rank));
        }
    } else {
        scatter.receive(root, part(rank));
        for peer in (1..size).map(|distance| (rank + distance) % size) {
            if peer != root {
                gather.send(peer, part(rank));
            }
            gather.receive(peer, part(peer));
        }
    }
    schedule.push(scatter);
    schedule.push(gather);
    schedule
}
