//! [`StateTransfer`]: copies the state from the members that have it to those that need it. Each holder sends a part.
//!
//! Training does not wait for it: a large state is sent in rounds, one per step. A receiver stores the gradients of
//! the steps committed meanwhile and applies them when the state is complete.

use std::collections::VecDeque;
use std::ops::Range;

use ronde_core::event::PhaseTimes;
use ronde_core::session::{CatchUpPlan, CommittedStep};
use ronde_core::shards::even_range;
use ronde_core::{Buffer, CollectiveError, DType, Group, GroupRank, Tag, Work};
use ronde_parallel::ReducedGradient;

/// The tag of the messages of a transfer.
const TAG: Tag = Tag(0x6865_616c);
/// The approximate size of one round between two ranks; larger if there would be too many rounds.
const ROUND_BYTES: usize = 16 << 20;
const ROUNDS_MAX: usize = 8;
/// The number of steps after the last round until all members wait, because stored gradients need memory.
const STEPS_SPARE: usize = 8;

/// A state transfer in progress, on a sender or a receiver.
#[derive(Default)]
pub(crate) struct StateTransfer {
    /// The messages that this rank still has to send, by round.
    unsent: VecDeque<Vec<(GroupRank, Buffer)>>,
    sends: Vec<Box<dyn Work>>,
    /// The index of a vector of the replica, the range of its elements, and the message that contains them.
    receives: Vec<(usize, Range<usize>, Box<dyn Work>)>,
    /// Steps that are committed but not applied on this rank.
    deferred: Vec<(CommittedStep, ReducedGradient, PhaseTimes)>,
    /// The number of steps until all members wait for the end of the transfer.
    steps_left: usize,
}

impl StateTransfer {
    /// Starts this rank's part of the transfers of `catch_up`. All members call it with the same plan.
    pub(crate) fn start(
        catch_up: &CatchUpPlan,
        group: &dyn Group,
        state: &[&[f32]],
    ) -> Result<Self, CollectiveError> {
        let (whole, transfer) = catch_up.holders_and_receivers();
        let (me, parts) = (group.rank().index(), whole.len() as u64);
        let values: usize = state.iter().map(|run| run.len()).sum();
        let part_bytes = size_of::<f32>() * values / whole.len().max(1);
        let rounds = part_bytes.div_ceil(ROUND_BYTES).clamp(1, ROUNDS_MAX);
        let mut this = Self {
            steps_left: rounds + STEPS_SPARE,
            ..Self::default()
        };
        for round in 0..rounds {
            let mut sends = Vec::new();
            for (run, values) in state.iter().enumerate() {
                for (part, &from) in whole.iter().enumerate() {
                    let part = even_range(values.len() as u64, parts, part as u64);
                    let slice = even_range(part.end - part.start, rounds as u64, round as u64);
                    let range =
                        (part.start + slice.start) as usize..(part.start + slice.end) as usize;
                    if from == me {
                        let buffer = || Buffer::copy_of(&values[range.clone()]);
                        sends.extend(transfer.iter().map(|&to| (GroupRank(to as u32), buffer())));
                    } else if transfer.contains(&me) {
                        let buffer = Buffer::host(DType::F32, range.len());
                        let work = group.receive(GroupRank(from as u32), TAG, buffer)?;
                        this.receives.push((run, range, work));
                    }
                }
            }
            this.unsent.push_back(sends);
        }
        this.send_round(group)?;
        Ok(this)
    }

    fn send_round(&mut self, group: &dyn Group) -> Result<(), CollectiveError> {
        for (to, buffer) in self.unsent.pop_front().into_iter().flatten() {
            self.sends.push(group.send(to, TAG, buffer)?);
        }
        Ok(())
    }

    /// Advances the transfer once per step: completes finished sends and starts the next round.
    pub(crate) fn advance(&mut self, group: &dyn Group) -> Result<(), CollectiveError> {
        self.steps_left = self.steps_left.saturating_sub(1);
        let sends = std::mem::take(&mut self.sends);
        let (done, left): (Vec<_>, Vec<_>) = sends.into_iter().partition(|w| w.is_finished());
        self.sends = left;
        for work in done {
            work.wait()?;
        }
        self.send_round(group)
    }

    /// Returns whether all members must now wait for the end of the transfer. Equal on all members.
    pub(crate) fn is_overdue(&self) -> bool {
        self.steps_left == 0
    }

    /// Returns whether this rank has received its whole state; false if it receives none.
    pub(crate) fn is_received(&self) -> bool {
        !self.receives.is_empty() && self.receives.iter().all(|(.., work)| work.is_finished())
    }

    /// Stores a step that cannot be applied yet.
    pub(crate) fn defer(
        &mut self,
        committed: CommittedStep,
        reduced: ReducedGradient,
        times: PhaseTimes,
    ) {
        self.deferred.push((committed, reduced, times));
    }

    /// Takes the stored steps, in order, to apply them now that the state is complete.
    pub(crate) fn take_deferred(&mut self) -> Vec<(CommittedStep, ReducedGradient, PhaseTimes)> {
        std::mem::take(&mut self.deferred)
    }

    /// Starts all remaining rounds.
    pub(crate) fn send_all(&mut self, group: &dyn Group) -> Result<(), CollectiveError> {
        while !self.unsent.is_empty() {
            self.send_round(group)?;
        }
        Ok(())
    }

    /// Returns whether this rank receives a state.
    pub(crate) fn receives(&self) -> bool {
        !self.receives.is_empty()
    }

    /// Waits for the state and copies it into `state`; returns false if this rank receives none.
    pub(crate) fn receive(&mut self, state: &mut [&mut [f32]]) -> Result<bool, CollectiveError> {
        if self.receives.is_empty() {
            return Ok(false);
        }
        for (run, range, work) in std::mem::take(&mut self.receives) {
            let buffer = work.wait()?;
            if let Some(values) = state.get_mut(run) {
                values[range].copy_from_slice(buffer.as_slice());
            }
        }
        Ok(true)
    }

    /// Waits until all started sends are complete.
    pub(crate) fn wait_sent(&mut self) -> Result<(), CollectiveError> {
        for work in std::mem::take(&mut self.sends) {
            work.wait()?;
        }
        Ok(())
    }
}
