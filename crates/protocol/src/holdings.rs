//! [`HeldRanges`]: the ranges of a flat state that each rank holds, and the [`moves`] from one division to another.
//!
//! A rank may hold the whole state or parts of it. One function decides which rank sends which elements to which other
//! one, whatever the reason: a rank has died, has joined, or the number of ranks has changed. It is pure and equal on
//! all ranks. Second copies may follow later: [`restoration`] returns the divisions in between.

use std::fmt;
use std::ops::Range;

use ronde_core::shards::even_range;

/// Elements that are held by several ranks are sent in parts that begin at multiples of this many elements.
const GRAIN: usize = 64;

/// Ranges of a flat state that one rank holds: in order, not empty, and neither overlapping nor adjacent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldRanges {
    ranges: Vec<Range<usize>>,
    /// The number of held elements before each range.
    before: Vec<usize>,
}

impl HeldRanges {
    /// Collects ranges in any order; empty ones are left out, and adjacent or overlapping ones are joined.
    #[must_use]
    pub fn new(ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut given: Vec<Range<usize>> = ranges.into_iter().filter(|r| !r.is_empty()).collect();
        given.sort_by_key(|range| range.start);
        let mut ranges: Vec<Range<usize>> = Vec::with_capacity(given.len());
        for range in given {
            match ranges.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => ranges.push(range),
            }
        }
        let mut sum = 0;
        let before = ranges.iter().map(|range| {
            sum += range.len();
            sum - range.len()
        });
        let before = before.collect();
        Self { ranges, before }
    }

    /// Returns the ranges.
    #[must_use]
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Returns the number of held elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Returns whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the positions of elements among the held ones, if all of them are held.
    #[must_use]
    pub fn locate(&self, elements: &Range<usize>) -> Option<Range<usize>> {
        let index = self
            .ranges
            .partition_point(|range| range.end <= elements.start);
        let range = self.ranges.get(index)?;
        let is_held = range.start <= elements.start && elements.end <= range.end;
        let start = self.before[index] + elements.start.checked_sub(range.start)?;
        is_held.then(|| start..start + elements.len())
    }

    /// Returns the held parts of a range of elements, in order.
    pub fn within(&self, elements: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<'_> {
        let elements = elements.clone();
        let first = self
            .ranges
            .partition_point(|range| range.end <= elements.start);
        let rest = self.ranges[first..].iter();
        rest.take_while({
            let end = elements.end;
            move |range| range.start < end
        })
        .map(move |range| range.start.max(elements.start)..range.end.min(elements.end))
    }

    /// Returns the elements that another rank's ranges have too.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        Self::new(other.ranges.iter().flat_map(|range| self.within(range)))
    }

    /// Returns the elements that are not among those of `other`.
    fn without(&self, other: &Self) -> Vec<Range<usize>> {
        let mut left = Vec::new();
        for range in &self.ranges {
            let mut start = range.start;
            for held in other.within(range) {
                left.push(start..held.start);
                start = held.end;
            }
            left.push(start..range.end);
        }
        left.retain(|range| !range.is_empty());
        left
    }

    /// Encodes the ranges for other ranks: 16 bytes per range.
    #[must_use]
    pub fn encode(&self) -> Vec<u64> {
        let words = self
            .ranges
            .iter()
            .flat_map(|range| [range.start as u64, range.end as u64]);
        words.collect()
    }

    /// Decodes the ranges of another rank; `None` for an odd number of words or a range that ends before it starts.
    #[must_use]
    pub fn decode(words: &[u64]) -> Option<Self> {
        let (pairs, rest) = words.as_chunks::<2>();
        let is_valid = rest.is_empty() && pairs.iter().all(|[start, end]| start <= end);
        is_valid.then(|| {
            Self::new(
                pairs
                    .iter()
                    .map(|&[start, end]| start as usize..end as usize),
            )
        })
    }
}

/// Returns the rank that holds a second copy of the slice of each rank: on another host for as many ranks as possible.
/// Every rank holds the copy of one other slice. `hosts` has the host of each rank. On one host, it is the next rank.
#[must_use]
pub fn second_holders(hosts: &[usize]) -> Vec<usize> {
    let mut ranks: Vec<usize> = (0..hosts.len()).collect();
    ranks.sort_by_key(|&rank| hosts[rank]);
    let of_host = ranks.chunk_by(|&a, &b| hosts[a] == hosts[b]);
    let largest = of_host.map(<[usize]>::len).max().unwrap_or_default();
    // Ranks of one host are neighbours in the circle of all ranks, so a step of this size leaves every host, if it can.
    let step = if largest == ranks.len() { 1 } else { largest };
    let mut holders = vec![0; ranks.len()];
    for (index, &rank) in ranks.iter().enumerate() {
        holders[rank] = ranks[(index + step) % ranks.len()];
    }
    holders
}

/// Elements that one rank sends to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The rank that has the elements.
    pub from: usize,
    /// The rank that needs them.
    pub to: usize,
    /// The elements of the flat state.
    pub elements: Range<usize>,
}

/// Elements that some rank needs and none holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uncovered {
    /// The first such elements.
    pub elements: Range<usize>,
}

impl fmt::Display for Uncovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.elements;
        write!(
            f,
            "no rank holds the elements {start} to {end} of the state"
        )
    }
}

/// Returns the moves after which every rank holds its elements, by receiving rank and elements. Both lists are by rank.
/// Elements with several holders are divided evenly among them. Nothing is sent to a rank that has it.
///
/// # Errors
/// [`Uncovered`] when a rank needs elements that no rank holds.
pub fn moves(have: &[HeldRanges], wanted: &[HeldRanges]) -> Result<Vec<Move>, Uncovered> {
    // Between two neighbouring borders, a rank holds all elements or none.
    let all = have.iter().chain(wanted).flat_map(HeldRanges::ranges);
    let mut borders: Vec<usize> = all.flat_map(|range| [range.start, range.end]).collect();
    borders.sort_unstable();
    borders.dedup();
    let mut moves = Vec::new();
    for (to, needed) in wanted.iter().enumerate() {
        let begun = moves.len();
        for pair in borders.windows(2) {
            let elements = pair[0]..pair[1];
            let has = |held: &HeldRanges| held.locate(&elements).is_some();
            if !has(needed) || have.get(to).is_some_and(has) {
                continue;
            }
            let holders: Vec<usize> = (0..have.len()).filter(|&rank| has(&have[rank])).collect();
            if holders.is_empty() {
                return Err(Uncovered { elements });
            }
            divide(&mut moves, begun, &holders, to, &elements);
        }
    }
    Ok(moves)
}

/// Adds the moves of elements that several ranks hold, which send a part each. `begun` is the number of moves to
/// earlier ranks.
fn divide(
    moves: &mut Vec<Move>,
    begun: usize,
    holders: &[usize],
    to: usize,
    elements: &Range<usize>,
) {
    let grains = elements.len().div_ceil(GRAIN) as u64;
    for (part, &from) in holders.iter().enumerate() {
        let part = even_range(grains, holders.len() as u64, part as u64);
        let at = |grain: u64| (elements.start + grain as usize * GRAIN).min(elements.end);
        let elements = at(part.start)..at(part.end);
        match moves[begun..].last_mut() {
            _ if elements.is_empty() => {}
            Some(last) if last.from == from && last.elements.end == elements.start => {
                last.elements.end = elements.end;
            }
            _ => moves.push(Move { from, to, elements }),
        }
    }
}

/// Returns the divisions through which ranks restore missing second copies, by rank. In the first one, each rank has the elements
/// that it needs to continue, and those of the final division that it has already. From each division to the next one, a rank
/// receives about `most` elements. The needed elements are a part of the final division.
#[must_use]
pub fn restoration(
    have: &[HeldRanges],
    needed: &[HeldRanges],
    wanted: &[HeldRanges],
    most: usize,
) -> Vec<Vec<HeldRanges>> {
    let first = |(rank, (needed, wanted)): (usize, (&HeldRanges, &HeldRanges))| {
        let kept = have.get(rank).map(|have| have.common(wanted));
        let kept = kept.iter().flat_map(HeldRanges::ranges);
        HeldRanges::new(needed.ranges().iter().chain(kept).cloned())
    };
    let first: Vec<HeldRanges> = needed.iter().zip(wanted).enumerate().map(first).collect();
    let each = wanted.iter().zip(&first);
    let missing: Vec<Vec<Range<usize>>> =
        each.map(|(wanted, first)| wanted.without(first)).collect();
    let lens = missing
        .iter()
        .map(|ranges| ranges.iter().map(Range::len).sum::<usize>());
    let (most, longest) = (most.max(1), lens.max().unwrap_or_default());
    let division = |stage: usize| {
        let of_rank = |(first, missing): (&HeldRanges, &Vec<Range<usize>>)| {
            let mut before = 0;
            let has_arrived = |range: &&Range<usize>| {
                let start = before;
                before += range.len();
                start < stage * most
            };
            let arrived = missing.iter().filter(has_arrived);
            HeldRanges::new(first.ranges().iter().chain(arrived).cloned())
        };
        let each = first.iter().zip(&missing);
        each.map(of_rank).collect::<Vec<HeldRanges>>()
    };
    (0..=longest.div_ceil(most)).map(division).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held(ranges: &[Range<usize>]) -> HeldRanges {
        HeldRanges::new(ranges.iter().cloned())
    }

    fn one(range: Range<usize>) -> HeldRanges {
        HeldRanges::new(std::iter::once(range))
    }

    #[test]
    fn ranges_are_joined_and_located() {
        let some = held(&[10..20, 5..7, 20..25, 7..7, 40..50]);
        assert_eq!(some.ranges(), [5..7, 10..25, 40..50]);
        assert_eq!((some.len(), some.is_empty()), (27, false));
        assert_eq!(some.locate(&(12..25)), Some(4..17));
        assert_eq!(some.locate(&(40..41)), Some(17..18));
        for outside in [0..1, 7..8, 24..26, 20..45, 50..51] {
            assert_eq!(some.locate(&outside), None);
        }
        let within: Vec<_> = some.within(&(6..42)).collect();
        assert_eq!(within, [6..7, 10..25, 40..42]);
        assert_eq!(some.within(&(25..40)).count(), 0);
        assert_eq!(HeldRanges::decode(&some.encode()), Some(some));
        assert_eq!(HeldRanges::decode(&[3]), None);
        assert_eq!(HeldRanges::decode(&[3, 2]), None);
    }

    #[test]
    fn a_joining_rank_receives_a_part_from_each_holder() {
        let whole = one(0..256);
        let have = [whole.clone(), HeldRanges::default(), whole.clone()];
        let found = moves(&have, &[whole.clone(), whole.clone(), whole]).unwrap();
        let expected = |from, elements| Move {
            from,
            to: 1,
            elements,
        };
        assert_eq!(found, [expected(0, 0..128), expected(2, 128..256)]);
    }

    #[test]
    fn elements_without_a_holder_are_reported() {
        let have = [one(0..64), one(128..192)];
        let lost = moves(&have, &[one(0..192), HeldRanges::default()]).unwrap_err();
        assert_eq!(lost.elements, 64..128);
        assert!(lost.to_string().contains("64 to 128"));
    }

    /// The even division of a state among ranks, in which each slice is also held by the next `copies - 1` ranks.
    fn layout(len: usize, ranks: usize, copies: usize) -> Vec<HeldRanges> {
        let slice = |owner: usize| {
            let range = even_range(len as u64, ranks as u64, owner as u64);
            range.start as usize..range.end as usize
        };
        let of =
            |rank| (0..copies.min(ranks)).map(move |copy| slice((rank + ranks - copy) % ranks));
        (0..ranks).map(|rank| HeldRanges::new(of(rank))).collect()
    }

    #[test]
    fn second_copies_are_on_other_hosts() {
        assert_eq!(second_holders(&[0, 0, 0]), [1, 2, 0]);
        assert_eq!(second_holders(&[0, 0, 1, 1]), [2, 3, 0, 1]);
        assert_eq!(second_holders(&[0, 1, 0, 1]), [1, 0, 3, 2]);
        assert_eq!(second_holders(&[0, 0, 0, 1]), [3, 0, 1, 2]);
        assert_eq!(second_holders(&[0]), [0]);
        assert!(second_holders(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn each_rank_holds_one_copy_and_as_many_as_possible_are_on_other_hosts(
            hosts in prop::collection::vec(0_usize..4, 2..10),
        ) {
            let holders = second_holders(&hosts);
            let mut each = holders.clone();
            each.sort_unstable();
            prop_assert_eq!(each, (0..hosts.len()).collect::<Vec<_>>());
            prop_assert!((0..hosts.len()).all(|rank| holders[rank] != rank));
            let apart = (0..hosts.len()).filter(|&rank| hosts[rank] != hosts[holders[rank]]);
            let largest = (0..4).map(|host| hosts.iter().filter(|&&of| of == host).count()).max();
            let others = hosts.len() - largest.unwrap_or_default();
            prop_assert_eq!(apart.count(), hosts.len().min(2 * others));
        }

        #[test]
        fn after_the_moves_every_rank_holds_what_it_needs(
            len in 1_usize..2000,
            before in 1_usize..=8,
            after in 1_usize..=8,
            copies in (1_usize..=2, 1_usize..=2),
            lost in prop::collection::vec(any::<bool>(), 8),
        ) {
            let mut have = layout(len, before, copies.0);
            have.resize(before.max(after), HeldRanges::default());
            for (held, lost) in have.iter_mut().zip(&lost) {
                if *lost {
                    *held = HeldRanges::default();
                }
            }
            let mut wanted = layout(len, after, copies.1);
            wanted.resize(have.len(), HeldRanges::default());
            // The value of an element is its position.
            let mut state: Vec<Vec<Option<usize>>> = have
                .iter()
                .map(|held| (0..len).map(|i| held.locate(&(i..i + 1)).map(|_| i)).collect())
                .collect();
            let is_covered = (0..len).all(|i| state.iter().any(|values| values[i].is_some()));
            match moves(&have, &wanted) {
                Err(lost) => {
                    prop_assert!(!is_covered);
                    let first = lost.elements.start;
                    prop_assert!(state.iter().all(|values| values[first].is_none()));
                }
                Ok(moves) => {
                    let sources = state.clone();
                    for Move { from, to, elements } in moves {
                        for element in elements {
                            prop_assert!(sources[to][element].is_none(), "sent without need");
                            prop_assert!(state[to][element].is_none(), "sent twice");
                            prop_assert!(sources[from][element].is_some(), "not held");
                            state[to][element] = sources[from][element];
                        }
                    }
                    for (values, wanted) in state.iter().zip(&wanted) {
                        for range in wanted.ranges() {
                            prop_assert!(range.clone().all(|i| values[i] == Some(i)));
                        }
                    }
                }
            }
        }

        #[test]
        fn copies_are_restored_from_owners_and_nothing_is_given_up(
            len in 1_usize..2000,
            before in 1_usize..=8,
            after in 1_usize..=8,
            lost in prop::collection::vec(any::<bool>(), 8),
            most in 1_usize..500,
        ) {
            let mut have = layout(len, before, 2);
            have.resize(before.max(after), HeldRanges::default());
            for (held, lost) in have.iter_mut().zip(&lost) {
                if *lost {
                    *held = HeldRanges::default();
                }
            }
            have.truncate(after);
            let (needed, wanted) = (layout(len, after, 1), layout(len, after, 2));
            let stages = restoration(&have, &needed, &wanted, most);
            prop_assert_eq!(&stages[stages.len() - 1], &wanted);
            for (rank, first) in stages[0].iter().enumerate() {
                let kept = have[rank].common(&wanted[rank]);
                prop_assert_eq!(&first.common(&needed[rank]), &needed[rank]);
                prop_assert_eq!(&first.common(&kept), &kept);
                prop_assert!(first.len() <= kept.len() + needed[rank].len());
            }
            let longest = wanted.iter().flat_map(HeldRanges::ranges).map(Range::len).max();
            for pair in stages.windows(2) {
                let moves = moves(&pair[0], &pair[1]);
                prop_assert!(moves.is_ok(), "an owner has what is missing");
                for (before, after) in pair[0].iter().zip(&pair[1]) {
                    prop_assert_eq!(&before.common(after), before, "nothing is given up");
                    prop_assert!(after.len() - before.len() <= most + longest.unwrap_or_default());
                }
            }
        }

        #[test]
        fn decoding_any_words_does_not_panic(words in prop::collection::vec(any::<u64>(), 0..20)) {
            if let Some(held) = HeldRanges::decode(&words) {
                let _ = held.locate(&(3..9));
            }
        }
    }
}
