//! [`SliceExchange`]: the elements of a divided state that a rank has, and how they move in a new generation. Without I/O.

use std::fmt;

use ronde_core::Step;

use crate::holdings::{HeldRanges, Move, Uncovered, moves, restoration};
use crate::transaction::{CatchUp, CatchUpPlan};

/// The elements of a divided state that one rank has, over all generations of a run.
///
/// In a new generation, after the plan: [`SliceExchange::begin`]; all ranks exchange [`SliceExchange::report`], and
/// [`SliceExchange::plan`] returns the moves. The caller holds [`SliceExchange::stored`] and executes its moves; then it calls
/// [`SliceExchange::received`]. After that, all ranks confirm to each other that they have received theirs, and each calls
/// [`SliceExchange::confirmed`]. A rank therefore has the elements only when it has received all of them, and keeps what it
/// had until every rank has received its part: a loss at any moment leaves all elements with the ranks that had them, or with
/// those that have them now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceExchange {
    held: HeldRanges,
    /// The elements that this rank has when the exchange is over.
    wanted: HeldRanges,
}

/// The reason why slices cannot move to the ranks that need them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SliceExchangeError {
    /// A rank has sent a report that is not one.
    InvalidReport,
    /// No rank has some of the elements.
    Lost(Uncovered),
}

impl fmt::Display for SliceExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidReport => f.write_str("a rank sent an invalid report of its slices"),
            Self::Lost(lost) => lost.fmt(f),
        }
    }
}

impl std::error::Error for SliceExchangeError {}

impl SliceExchange {
    /// Creates the record of a rank that has these elements.
    #[must_use]
    pub fn new(held: HeldRanges) -> Self {
        Self {
            wanted: held.clone(),
            held,
        }
    }

    /// Returns the elements that this rank has.
    #[must_use]
    pub fn held(&self) -> &HeldRanges {
        &self.held
    }

    /// Gives up all elements, because the caller is about to overwrite them.
    pub fn give_up(&mut self) {
        self.held = HeldRanges::default();
    }

    /// Notes that this rank has loaded these elements, and has no others.
    pub fn loaded(&mut self, elements: HeldRanges) {
        *self = Self::new(elements);
    }

    /// Begins the exchange of a new generation: a rank that copies the state has nothing of it.
    pub fn begin(&mut self, action: CatchUp) {
        if action == CatchUp::CopyState {
            self.give_up();
        }
    }

    /// Returns this rank's report, for all members of the generation: 8 bytes, and 16 per range.
    #[must_use]
    pub fn report(&self) -> Vec<u64> {
        let held = self.held.encode();
        let mut words = vec![held.len() as u64];
        words.extend(held);
        words
    }

    /// Returns the layouts of the members of a generation, from the reports of all of them: the first one for
    /// [`SliceExchange::plan`], then one for each exchange at a later step boundary, until every rank has the elements of `wanted`.
    /// See [`restoration`] for `needed` and `most`. `None` if a report is invalid.
    ///
    /// Such an exchange begins with the reports too, and with a plan in which every rank is up to date, so what holds for the
    /// first one after a loss holds for it: a copy that has not arrived completely is in no report.
    #[must_use]
    pub fn stages(
        catch_up: &CatchUpPlan,
        reports: &[u64],
        (needed, wanted): (&[HeldRanges], &[HeldRanges]),
        most: usize,
    ) -> Option<Vec<Vec<HeldRanges>>> {
        let have = decode_all(reports)?;
        Some(match catch_up.next {
            Step(0) => vec![wanted.to_vec()],
            _ => restoration(&have, needed, wanted, most),
        })
    }

    /// Returns the moves after which every rank has the elements that `layout` gives it, by rank, from the reports of all
    /// members, one after the other by rank. Before the first step there are none, because every rank has the initial state.
    ///
    /// # Errors
    /// A report is invalid, or no member has some of the elements. A rank that was copying a state whose holders are lost, in a
    /// group without a state, has no initial state either and cannot continue. This rank's elements are then unchanged.
    pub fn plan(
        &mut self,
        catch_up: &CatchUpPlan,
        reports: &[u64],
        layout: &[HeldRanges],
        rank: usize,
    ) -> Result<Vec<Move>, SliceExchangeError> {
        let have = decode_all(reports).filter(|have| have.len() == layout.len());
        let have = have.ok_or(SliceExchangeError::InvalidReport)?;
        let moves = match catch_up.next {
            Step(0) if catch_up.each.get(rank) == Some(&CatchUp::CopyState) => {
                let elements = 0..layout.iter().map(end).max().unwrap_or_default();
                return Err(SliceExchangeError::Lost(Uncovered { elements }));
            }
            Step(0) => Vec::new(),
            _ => moves(&have, layout).map_err(SliceExchangeError::Lost)?,
        };
        self.wanted = layout.get(rank).cloned().unwrap_or_default();
        Ok(moves)
    }

    /// Returns the elements that this rank stores during the exchange: those that it has and those that it receives.
    #[must_use]
    pub fn stored(&self) -> HeldRanges {
        let all = self.held.ranges().iter().chain(self.wanted.ranges());
        HeldRanges::new(all.cloned())
    }

    /// Notes that this rank has received everything that the moves bring it.
    pub fn received(&mut self) {
        self.held = self.stored();
    }

    /// Notes that every rank has received its elements. Returns those that this rank keeps; it gives up the others.
    pub fn confirmed(&mut self) -> &HeldRanges {
        self.held.clone_from(&self.wanted);
        &self.held
    }
}

/// Returns the end of the last range.
fn end(held: &HeldRanges) -> usize {
    held.ranges().last().map_or(0, |range| range.end)
}

/// Decodes the reports of all members, one after the other by rank.
fn decode_all(mut words: &[u64]) -> Option<Vec<HeldRanges>> {
    let mut all = Vec::new();
    while let Some((len, rest)) = words.split_first() {
        let (held, rest) = rest.split_at_checked(usize::try_from(*len).ok()?)?;
        all.push(HeldRanges::decode(held)?);
        words = rest;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(range: std::ops::Range<usize>) -> HeldRanges {
        HeldRanges::new([range])
    }

    fn plan(next: u64, each: &[CatchUp]) -> CatchUpPlan {
        CatchUpPlan {
            next: Step(next),
            each: each.to_vec(),
        }
    }

    /// Begins an exchange among ranks that have `have`; returns them and all reports.
    fn begun(have: &[HeldRanges], catch_up: &CatchUpPlan) -> (Vec<SliceExchange>, Vec<u64>) {
        let mut ranks: Vec<SliceExchange> = have.iter().cloned().map(SliceExchange::new).collect();
        for (rank, action) in ranks.iter_mut().zip(&catch_up.each) {
            rank.begin(*action);
        }
        let reports = ranks.iter().flat_map(SliceExchange::report).collect();
        (ranks, reports)
    }

    #[test]
    fn a_rank_has_both_parts_from_the_receipt_to_the_confirmation() {
        let catch_up = plan(7, &[CatchUp::UpToDate, CatchUp::CopyState]);
        // The second rank has elements of an older step.
        let (mut ranks, reports) = begun(&[held(0..10), held(3..9)], &catch_up);
        let layout = [held(0..5), held(5..10)];
        let expected = [Move {
            from: 0,
            to: 1,
            elements: 5..10,
        }];
        for (me, rank) in ranks.iter_mut().enumerate() {
            let moves = rank.plan(&catch_up, &reports, &layout, me).unwrap();
            assert_eq!(moves, expected);
        }
        assert_eq!(ranks[0].held(), &held(0..10));
        assert!(ranks[1].held().is_empty(), "nothing has been received");
        assert_eq!(ranks[1].stored(), held(5..10));
        ranks.iter_mut().for_each(SliceExchange::received);
        assert_eq!(ranks[0].held(), &held(0..10), "not confirmed yet");
        assert_eq!(ranks[1].held(), &held(5..10));
        assert_eq!(ranks[0].confirmed(), &held(0..5));
        assert_eq!(ranks[1].confirmed(), &held(5..10));
    }

    #[test]
    fn a_copy_that_has_not_arrived_is_not_reported() {
        let catch_up = plan(7, &[CatchUp::UpToDate, CatchUp::UpToDate]);
        let (mut ranks, reports) = begun(&[held(0..6), held(4..10)], &catch_up);
        let (needed, wanted) = ([held(0..5), held(5..10)], [held(0..10), held(0..10)]);
        let stages = SliceExchange::stages(&catch_up, &reports, (&needed, &wanted), 9).unwrap();
        assert_eq!(stages, [vec![held(0..6), held(4..10)], wanted.to_vec()]);
        for layout in stages {
            let reports: Vec<u64> = ranks.iter().flat_map(SliceExchange::report).collect();
            for (me, rank) in ranks.iter_mut().enumerate() {
                rank.plan(&catch_up, &reports, &layout, me).unwrap();
            }
            let under_way: Vec<u64> = ranks.iter().flat_map(SliceExchange::report).collect();
            assert_eq!(under_way, reports);
            for rank in &mut ranks {
                rank.received();
                rank.confirmed();
            }
        }
        assert!(ranks.iter().all(|rank| rank.held() == &held(0..10)));
        assert_eq!(
            SliceExchange::stages(&catch_up, &[2], (&needed, &wanted), 9),
            None
        );
        let fresh = plan(0, &[CatchUp::UpToDate, CatchUp::UpToDate]);
        let stages = SliceExchange::stages(&fresh, &reports, (&needed, &wanted), 9);
        assert_eq!(stages, Some(vec![wanted.to_vec()]));
    }

    #[test]
    fn lost_elements_and_invalid_reports_change_nothing() {
        let catch_up = plan(7, &[CatchUp::UpToDate, CatchUp::UpToDate]);
        let (mut ranks, reports) = begun(&[held(0..4), held(5..10)], &catch_up);
        let layout = [held(0..5), held(5..10)];
        let before = ranks[0].clone();
        let lost = ranks[0].plan(&catch_up, &reports, &layout, 0).unwrap_err();
        assert_eq!(lost, SliceExchangeError::Lost(Uncovered { elements: 4..5 }));
        for invalid in [&reports[1..], &reports[..4], &[u64::MAX], &[2, 5, 3], &[]] {
            let error = ranks[0].plan(&catch_up, invalid, &layout, 0).unwrap_err();
            assert_eq!(error, SliceExchangeError::InvalidReport, "{invalid:?}");
        }
        assert_eq!(ranks[0], before);
    }

    #[test]
    fn before_the_first_step_nothing_moves() {
        let catch_up = plan(0, &[CatchUp::UpToDate, CatchUp::UpToDate]);
        let (mut ranks, reports) = begun(&[held(0..5), held(0..5)], &catch_up);
        let layout = [held(0..5), held(5..10)];
        assert_eq!(ranks[1].plan(&catch_up, &reports, &layout, 1), Ok(vec![]));
        ranks[1].received();
        assert_eq!(ranks[1].confirmed(), &held(5..10));
    }

    #[test]
    fn a_rank_without_the_state_that_it_was_copying_does_not_begin_with_what_it_received() {
        let catch_up = plan(0, &[CatchUp::UpToDate, CatchUp::CopyState]);
        let (mut ranks, reports) = begun(&[held(0..10), held(0..10)], &catch_up);
        let layout = [held(0..5), held(5..10)];
        assert_eq!(ranks[0].plan(&catch_up, &reports, &layout, 0), Ok(vec![]));
        let error = ranks[1].plan(&catch_up, &reports, &layout, 1).unwrap_err();
        let elements = 0..10;
        assert_eq!(error, SliceExchangeError::Lost(Uncovered { elements }));
    }
}
