//! Taking the state over from those that have it: every one of them sends a part, all at once.
//!
//! Nobody waits for it: a large state goes out in rounds, one a step, while all go on; who takes it over keeps
//! the gradients of the steps that are committed meanwhile, and applies them when the state has come.

use std::collections::VecDeque;
use std::ops::Range;

use ronde_core::event::PhaseTimes;
use ronde_core::session::{CatchUpPlan, CommittedStep};
use ronde_core::shards::even_range;
use ronde_core::{Buffer, CollectiveError, DType, Group, GroupRank, Tag, Work};
use ronde_parallel::Reduced;

/// Names the messages of a transfer.
const TAG: Tag = Tag(0x6865_616c);
/// What one rank sends another goes out in rounds of about so many bytes, more where there would be too many.
const ROUND_BYTES: usize = 16 << 20;
const ROUNDS_MAX: usize = 8;
/// After so many steps more, all wait: gradients that are kept need memory.
const STEPS_SPARE: usize = 8;

/// A transfer that is under way: what this rank sends, or what it gets.
#[derive(Default)]
pub(crate) struct Healing {
    /// What this rank still has to send, by round.
    unsent: VecDeque<Vec<(GroupRank, Buffer)>>,
    sends: Vec<Box<dyn Work>>,
    /// Which run of the replica, which elements of it, and the message that brings them.
    receives: Vec<(usize, Range<usize>, Box<dyn Work>)>,
    /// Steps that are committed and not applied here.
    missed: Vec<(CommittedStep, Reduced, PhaseTimes)>,
    /// Steps until all wait for the end of the transfer.
    steps_left: usize,
}

impl Healing {
    /// Starts this rank's part of what `catch_up` ask for. All members call it with the same catch_up.
    pub(crate) fn start(
        catch_up: &CatchUpPlan,
        group: &dyn Group,
        state: &[&[f32]],
    ) -> Result<Self, CollectiveError> {
        let (whole, healing) = catch_up.holders_and_receivers();
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
                    let piece = even_range(part.end - part.start, rounds as u64, round as u64);
                    let range =
                        (part.start + piece.start) as usize..(part.start + piece.end) as usize;
                    if from == me {
                        let buffer = || Buffer::copy_of(&values[range.clone()]);
                        sends.extend(healing.iter().map(|&to| (GroupRank(to as u32), buffer())));
                    } else if healing.contains(&me) {
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

    /// Once a step: what is sent is done with, and the next round goes out.
    pub(crate) fn go_on(&mut self, group: &dyn Group) -> Result<(), CollectiveError> {
        self.steps_left = self.steps_left.saturating_sub(1);
        let sends = std::mem::take(&mut self.sends);
        let (done, left): (Vec<_>, Vec<_>) = sends.into_iter().partition(|w| w.is_finished());
        self.sends = left;
        for work in done {
            work.wait()?;
        }
        self.send_round(group)
    }

    /// Whether it is time that all wait for the end. Equal on all members.
    pub(crate) fn is_overdue(&self) -> bool {
        self.steps_left == 0
    }

    /// Whether all that this rank gets has come; false when it gets nothing.
    pub(crate) fn has_come(&self) -> bool {
        !self.receives.is_empty() && self.receives.iter().all(|(.., work)| work.is_finished())
    }

    /// Keeps a step that cannot be applied yet.
    pub(crate) fn miss(&mut self, committed: CommittedStep, reduced: Reduced, times: PhaseTimes) {
        self.missed.push((committed, reduced, times));
    }

    /// The steps to be applied now that the state is complete, in order.
    pub(crate) fn missed(&mut self) -> Vec<(CommittedStep, Reduced, PhaseTimes)> {
        std::mem::take(&mut self.missed)
    }

    /// Sends all rounds that are left.
    pub(crate) fn send_all(&mut self, group: &dyn Group) -> Result<(), CollectiveError> {
        while !self.unsent.is_empty() {
            self.send_round(group)?;
        }
        Ok(())
    }

    /// Whether this rank gets anything.
    pub(crate) fn receives(&self) -> bool {
        !self.receives.is_empty()
    }

    /// Waits for what this rank gets and puts it into its state; false when it gets nothing.
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

    /// Waits until everything that this rank sends is on its way.
    pub(crate) fn sent(&mut self) -> Result<(), CollectiveError> {
        for work in std::mem::take(&mut self.sends) {
            work.wait()?;
        }
        Ok(())
    }
}
