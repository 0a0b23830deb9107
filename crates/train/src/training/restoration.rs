//! [`CopyRestoration`]: second copies of slices that members receive after training has continued, some at each step boundary.
//!
//! After a loss, members only wait for the slices that they need. Missing second copies follow in exchanges of the same kind, each
//! over before the next step starts, so a step always finds the same slices complete on all members.
//!
//! A copy that is sent during a step would need the gradient of that step for a state that has not arrived yet. A copy counts when
//! it is complete; until then it is in no report after a further loss. While a worker joins, or the weights are divided
//! (`parallel.zero = 3`), training waits for all copies: the members would give up copies that the new one does not have yet.

use std::collections::VecDeque;

use ronde_clock::Stopwatch;
use ronde_core::Event;
use ronde_parallel::VectorKind;
use ronde_protocol::Rejoin;
use ronde_protocol::holdings::{HeldRanges, Move};
use ronde_protocol::transaction::{CatchUp, CatchUpPlan, SliceExchange};

use super::Training;
use super::entry_facts::EntryFacts;
use crate::error::TrainError;

/// The approximate number of bytes that a rank receives at one step boundary.
const STAGE_BYTES: usize = 128 << 20;

/// The second copies that are still missing.
#[derive(Debug, Default)]
pub(super) struct CopyRestoration {
    /// The layouts after the next step boundaries, by rank.
    later: VecDeque<Vec<HeldRanges>>,
    /// The number of exchanges at step boundaries in this generation.
    exchanges: u64,
    /// The number of elements that they have moved, and their seconds.
    elements: usize,
    seconds: f64,
}

impl CopyRestoration {
    /// Counts the moves of an exchange.
    pub(super) fn moved(&mut self, moves: &[Move]) {
        if self.exchanges > 0 {
            self.elements += moves.iter().map(|of| of.elements.len()).sum::<usize>();
        }
    }
}

impl Training {
    /// Returns the elements that each member has after the next exchange. In a new generation without new members, second copies
    /// that are missing are left for later step boundaries.
    pub(super) fn next_layout(
        &mut self,
        catch_up: &CatchUpPlan,
        reports: &[u64],
    ) -> Vec<HeldRanges> {
        let wanted = self.policy.state().layout();
        // With a new member, others give up copies that it does not have yet: no loss has to be made good in a hurry.
        let has_joined = catch_up.each.contains(&CatchUp::CopyState);
        if self.movement.restoration.exchanges > 0 || has_joined || !self.restores_later() {
            return wanted;
        }
        let needed = self.policy.state().needed();
        let most = STAGE_BYTES / (4 * self.moved_vectors().max(1));
        let stages = SliceExchange::stages(catch_up, reports, (&needed, &wanted), most);
        let mut stages = VecDeque::from(stages.unwrap_or_default());
        if let Some(first) = stages.pop_front() {
            self.limit_copies(first);
            self.movement.restoration.later = stages;
        }
        self.policy.state().layout()
    }

    /// Lets each member have second copies of these elements only, until an exchange follows.
    fn limit_copies(&mut self, elements: Vec<HeldRanges>) {
        let mut edit = self.policy.edit();
        edit.limit_copies(elements);
        edit.reload();
    }

    /// Returns whether members continue before they have all second copies: if every member has all weights and only the states
    /// of the optimizer are divided.
    fn restores_later(&self) -> bool {
        self.keeps_all_weights() && !self.plan.config.has_distributed_vectors()
    }

    /// Returns the number of values that move with each element, apart from its weight.
    fn moved_vectors(&self) -> usize {
        let vectors = self.vectors();
        let flat = vectors
            .iter()
            .filter(|vector| vector.kind == VectorKind::Flat);
        flat.count().saturating_sub(1)
    }

    /// Moves some of the missing second copies after a step. All members call it together.
    pub(super) fn restore_copies(&mut self) -> Result<(), TrainError> {
        let next = self.session.next_step();
        if self.is_complete() {
            return Ok(());
        }
        let Some(copies) = self.movement.restoration.later.pop_front() else {
            return Ok(());
        };
        let begun = Stopwatch::start();
        self.movement.restoration.exchanges += 1;
        self.limit_copies(copies);
        let each = vec![CatchUp::UpToDate; self.member.group.size()];
        let rank = self.member.group.rank().index();
        let rejoin = Rejoin::of_slices(rank, CatchUpPlan { next, each });
        self.enter(rejoin, EntryFacts::default())?;
        self.movement.restoration.seconds += begun.elapsed_s();
        if self.movement.restoration.later.is_empty() && self.member.rank.0 == 0 {
            self.report_restored();
        }
        Ok(())
    }

    fn report_restored(&self) {
        let CopyRestoration {
            exchanges,
            elements,
            seconds,
            ..
        } = self.movement.restoration;
        let mib = (4 * elements * self.moved_vectors()) as f64 / f64::from(1 << 20);
        let message = format!(
            "each slice is on 2 workers again: {mib:.1} MiB in {seconds:.2} s, after {exchanges} steps"
        );
        let rank = None;
        self.member.tracker.record(Event::Notice { rank, message });
    }
}
