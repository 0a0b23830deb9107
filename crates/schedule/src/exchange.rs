//! Reduce-scatter, all-gather and all-to-all by direct exchange, in one round each; all-gather of short contributions of many
//! ranks in more rounds.

use std::ops::Range;

use crate::schedule::{Region, Round, Schedule};

/// The largest number of ranks that send short contributions to all others directly.
const DIRECT_RANKS_MAX: usize = 8;
/// The largest average length of contributions whose number of messages matters more than their forwarding, in elements.
const SHORT_LEN_MAX: usize = 1 << 10;

/// Returns a reduce-scatter: rank `rank` receives the reduction, in rank order, of all ranks' `rank`-th `part_len`
/// elements.
///
/// Input: `size * part_len` elements. One round, `n - 1` messages and `(n - 1) part_len` elements sent.
#[must_use]
pub fn reduce_scatter(rank: usize, size: usize, part_len: usize) -> Schedule {
    let part = |index: usize| Region::new(0, index * part_len..(index + 1) * part_len);
    let mut schedule = Schedule::new(vec![size * part_len], part(rank));
    let mut round = Round::default();
    let mut places = vec![part(rank); size];
    for peer in (1..size).map(|distance| (rank + distance) % size) {
        places[peer] = Region::new(schedule.scratch(part_len), 0..part_len);
        round.send(peer, part(peer));
        round.receive(peer, places[peer].clone());
    }
    for place in &places[1..] {
        round.reduce_right(places[0].clone(), place.clone());
    }
    round.copy(part(rank), places[0].clone());
    schedule.push(round);
    schedule
}

/// Returns an all-gather: every rank receives all elements in rank order; rank `r` contributes `lens[r]`.
///
/// One round, `n - 1` messages and `(n - 1) lens[rank]` elements sent; `log2 n` rounds, each with one or two messages, if there are
/// more than 8 ranks and they have at most 1,024 elements on average. The ranks must know each
/// other's lengths; otherwise they gather them first, one number per rank.
#[must_use]
pub fn all_gather(rank: usize, lens: &[usize]) -> Schedule {
    let size = lens.len();
    let total = lens.iter().sum();
    let place = |index: usize, slot| {
        let start = lens[..index].iter().sum::<usize>();
        Region::new(slot, start..start + lens[index])
    };
    let mine = Region::new(0, 0..lens[rank]);
    let mut schedule = Schedule::new(vec![lens[rank]], mine.clone());
    if total == lens[rank] {
        // The other ranks contribute no elements: the caller's buffer is the result.
        let mut round = Round::default();
        for peer in (1..size).map(|distance| (rank + distance) % size) {
            round.send(peer, mine.clone());
        }
        schedule.push(round);
        return schedule;
    }
    let all = schedule.scratch(total);
    schedule.result = Region::new(all, 0..total);
    if size > DIRECT_RANKS_MAX && total <= SHORT_LEN_MAX * size {
        gather_by_doubling(&mut schedule, rank, lens, (mine, all));
        return schedule;
    }
    let mut round = Round::default();
    for peer in (1..size).map(|distance| (rank + distance) % size) {
        round.send(peer, mine.clone());
        round.receive(peer, place(peer, all));
    }
    round.copy(place(rank, all), mine);
    schedule.push(round);
    schedule
}

/// Adds the rounds of an all-gather in which the number of contributions that a rank has doubles (Bruck): from its own `mine`
/// to all of them in the slot `all`, in rank order. Ranks are counted modulo their number, so the
/// contributions of consecutive ranks are in two parts if they go past the last rank.
fn gather_by_doubling(
    schedule: &mut Schedule,
    rank: usize,
    lens: &[usize],
    (mine, all): (Region, usize),
) {
    let size = lens.len();
    let range = |ranks: Range<usize>| {
        let start = lens[..ranks.start].iter().sum::<usize>();
        Region::new(all, start..start + lens[ranks].iter().sum::<usize>())
    };
    let parts = |first: usize, count: usize| {
        let past_end = (first + count).saturating_sub(size);
        let parts = [range(first..first + count - past_end), range(0..past_end)];
        parts.into_iter().filter(|part| !part.elements.is_empty())
    };
    let mut round = Round::default();
    round.copy(range(rank..rank + 1), mine);
    schedule.push(round);
    let mut have = 1;
    while have < size {
        let count = have.min(size - have);
        let (before, after) = ((rank + size - have) % size, (rank + have) % size);
        let mut round = Round::default();
        parts(rank, count).for_each(|part| round.send(before, part));
        parts(after, count).for_each(|part| round.receive(after, part));
        schedule.push(round);
        have += count;
    }
}

/// Returns an all-to-all: every rank sends `part_len` elements to each other rank and receives as many from each, in
/// rank order.
///
/// One round, `n - 1` messages and `(n - 1) part_len` elements sent.
#[must_use]
pub fn all_to_all(rank: usize, size: usize, part_len: usize) -> Schedule {
    let part = |slot, index: usize| Region::new(slot, index * part_len..(index + 1) * part_len);
    let len = size * part_len;
    let mut schedule = Schedule::new(vec![len], Region::new(0, 0..len));
    let all = schedule.scratch(len);
    let mut round = Round::default();
    for peer in (1..size).map(|distance| (rank + distance) % size) {
        round.send(peer, part(0, peer));
        round.receive(peer, part(all, peer));
        round.copy(part(0, peer), part(all, peer));
    }
    schedule.push(round);
    schedule
}

/// Returns an all-to-all with unequal lengths: rank `rank` sends `send_lens[r]` elements to rank `r` and receives
/// `receive_lens[r]` from it, in rank order. The executor checks lengths when messages arrive, so empty messages are
/// sent too.
///
/// One round, `n - 1` messages.
#[must_use]
pub fn all_to_all_unequal(rank: usize, send_lens: &[usize], receive_lens: &[usize]) -> Schedule {
    let size = send_lens.len();
    let place = |slot, lens: &[usize], index: usize| {
        let start = lens[..index].iter().sum::<usize>();
        Region::new(slot, start..start + lens[index])
    };
    let total: usize = receive_lens.iter().sum();
    let mut schedule = Schedule::new(vec![send_lens.iter().sum()], Region::new(0, 0..0));
    let all = schedule.scratch(total);
    schedule.result = Region::new(all, 0..total);
    let mut round = Round::default();
    for peer in (1..size).map(|distance| (rank + distance) % size) {
        round.send_even_empty(peer, place(0, send_lens, peer));
        round.receive_even_empty(peer, place(all, receive_lens, peer));
    }
    round.copy(place(all, receive_lens, rank), place(0, send_lens, rank));
    schedule.push(round);
    schedule
}
