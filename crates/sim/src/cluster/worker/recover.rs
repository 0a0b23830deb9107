//! The way of a worker into a group: the actions of [`Rejoin`].

use ronde_core::{Generation, Step};
use ronde_protocol::transaction::{
    CatchUp, CatchUpPlan, CommittedStep, SliceExchangeError, StateReport, StateSource,
    TransactionError,
};
use ronde_protocol::{Rejoin, RejoinAnswer, RejoinAsk, RejoinError, WorkerEvent};

use super::entry::SimulatedEntry;
use super::{AfterWeights, LoopWait, SimulatedWorker};
use crate::clock::MS;
use crate::cluster::effect::{Effect, Effects, HostMessage};
use crate::cluster::fact::{Fact, WorkerExit};
use crate::cluster::group::{DataFrame, FramePayload, GatherPart, SimulatedGroup};
use crate::cluster::injected_bug::InjectedBug;
use crate::cluster::model::{PARAMETERS, SimulatedState};

impl SimulatedWorker {
    /// Begins the way into the group.
    pub(super) fn begin_entry(&mut self, rank: usize, fx: &mut Effects<'_>) {
        let rejoin = Rejoin::new(rank, PARAMETERS, self.run.division.is_some());
        self.entry = Some(SimulatedEntry::new(rejoin));
        self.rejoin(RejoinAnswer::Done, fx);
    }

    /// Goes on with the answer to the last question, until another answer needs messages of other members.
    pub(super) fn rejoin(&mut self, mut answer: RejoinAnswer, fx: &mut Effects<'_>) {
        loop {
            let Some(entry) = &mut self.entry else {
                return;
            };
            self.task = LoopWait::Rejoining;
            let (log, slices) = (&mut self.replica.transaction, &mut self.replica.slices);
            let ask = match entry.rejoin.next(log, slices, answer) {
                Ok(ask) => ask,
                Err(error) => return self.cannot_rejoin(&error, fx),
            };
            self.answer(ask, fx);
            if !matches!(self.task, LoopWait::Rejoining) {
                return;
            }
            answer = RejoinAnswer::Done;
        }
    }

    fn cannot_rejoin(&mut self, error: &RejoinError, fx: &mut Effects<'_>) {
        match error {
            RejoinError::Log(TransactionError::StateLost) => {}
            RejoinError::Slices(SliceExchangeError::Lost(lost)) => {
                fx.note(|| format!("worker {}: {lost}", self.id));
            }
            error => {
                self.entry = None;
                return self.contradict(error.to_string(), fx);
            }
        }
        self.entry = None;
        if let Some(group) = &self.group {
            let generation = group.generation();
            self.lose_state(generation, fx);
        }
    }

    /// Executes an action of [`Rejoin`], or begins it: then the loop waits for something else than [`LoopWait::Rejoining`].
    fn answer(&mut self, ask: RejoinAsk, fx: &mut Effects<'_>) {
        match ask {
            RejoinAsk::ExchangeStates => {
                let claims = fx.has(InjectedBug::GradientIsClaimed);
                let member = self.replica.member_state(claims).encode();
                self.exchange(LoopWait::Members, GatherPart::Member(member), fx);
            }
            // No simulated worker is awaited: the coordinator excludes it.
            RejoinAsk::WaitForState => {}
            RejoinAsk::GiveUpState => {
                self.replica.transaction.give_up_state();
                fx.fact(Fact::GivesUp(self.id));
            }
            RejoinAsk::Load(source) => self.load(source, fx),
            RejoinAsk::ExchangeReports => {
                let claims = fx.has(InjectedBug::GradientIsClaimed);
                let holds_gradient = self.replica.holds_gradient() || claims;
                let report = self.replica.transaction.report(holds_gradient);
                self.exchange(LoopWait::Reports, GatherPart::Report(report), fx);
            }
            RejoinAsk::ExchangeSnapshot(bytes) => {
                self.note_plan(fx);
                self.exchange(LoopWait::Snapshot, GatherPart::Snapshot(bytes), fx);
            }
            RejoinAsk::Report { next, is_complete } => self.report(next, is_complete, fx),
            RejoinAsk::Apply(committed) => self.apply_missed(&committed, fx),
            RejoinAsk::Assign => self.assign(fx),
            RejoinAsk::Copy => self.begin_copies(fx),
            RejoinAsk::ExchangeSlices(words) => {
                if self.plan().each.get(self.rank()) == Some(&CatchUp::CopyState) {
                    self.replica.begin_to_copy();
                }
                self.exchange(LoopWait::Slices, GatherPart::Slices(words), fx);
            }
            RejoinAsk::ChooseLayout(reports) => {
                let layout = self.choose_layout(&self.plan(), &reports, fx);
                self.rejoin(RejoinAnswer::Layout(layout), fx);
            }
            RejoinAsk::Move(moves) => self.move_slices(moves, fx),
            RejoinAsk::Healed => {
                self.replica.transaction.healed(0);
                self.healed(fx);
            }
            RejoinAsk::GatherWeights => {
                if self.replica.transaction.next_step() == Step(0) {
                    self.replica.reset_momentum();
                }
                if !self.copies_state() {
                    self.note_state(fx);
                }
                self.gather_weights(AfterWeights::Exchange, fx);
            }
            RejoinAsk::Confirm => self.exchange(LoopWait::Confirming, GatherPart::Confirm, fx),
            RejoinAsk::Keep(_) => {
                self.replica.keep_held();
                self.note_state(fx);
            }
            RejoinAsk::Continue => self.go_on_with_steps(fx),
        }
    }

    /// Begins an all-gather, and waits for it.
    fn exchange(&mut self, wait: LoopWait, part: GatherPart, fx: &mut Effects<'_>) {
        self.task = wait;
        self.gather(part, fx);
    }

    /// Returns the plan of the members, once there is one.
    fn plan(&self) -> CatchUpPlan {
        let entry = self.entry.as_ref();
        entry.map_or_else(CatchUpPlan::default, |entry| entry.rejoin.plan().clone())
    }

    fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, |group| group.rank)
    }

    fn copies_state(&self) -> bool {
        self.plan().each.get(self.rank()) == Some(&CatchUp::CopyState)
    }

    /// Loads the newest checkpoint: the first rank, from which the others copy it, or every rank its slices.
    fn load(&mut self, _source: StateSource, fx: &mut Effects<'_>) {
        if self.run.division.is_some() {
            self.replica.slices.give_up();
            fx.fact(Fact::GivesUp(self.id));
            return self.load_before(Step(u64::MAX), fx);
        }
        if self.rank() == 0 {
            if let Some((_, stored)) = fx.disk.newest_before(Step(u64::MAX)) {
                self.replica.load(stored.state.clone(), &stored.cursor);
            }
            self.note_state(fx);
        }
    }

    /// Continues when the reports of all members are known.
    pub(super) fn reported(&mut self, reports: Vec<u8>, fx: &mut Effects<'_>) {
        let (Some(group), Some(entry)) = (&self.group, &mut self.entry) else {
            return;
        };
        entry.reports = StateReport::decode_all(&reports, group.size()).unwrap_or_default();
        let mut changed = entry.reports.clone();
        if fx.has(InjectedBug::SmallestStepWins)
            && let Some(least) = changed.iter().map(|report| report.next).min()
        {
            changed.iter_mut().for_each(|report| report.next = least);
            let reports = changed.iter().flat_map(StateReport::encode).collect();
            return self.rejoin(RejoinAnswer::Bytes(reports), fx);
        }
        self.rejoin(RejoinAnswer::Bytes(reports), fx);
    }

    fn note_plan(&mut self, fx: &mut Effects<'_>) {
        let next = self.plan().next;
        let (Some(group), Some(entry)) = (&self.group, &mut self.entry) else {
            return;
        };
        if !entry.reports.is_empty() {
            fx.fact(Fact::Planned {
                worker: self.id,
                generation: group.generation(),
                reports: std::mem::take(&mut entry.reports),
                next,
            });
        }
    }

    /// Exits, because no member has some slices of the state, and no checkpoint contains them.
    fn lose_state(&mut self, generation: Generation, fx: &mut Effects<'_>) {
        fx.fact(Fact::SliceLost {
            worker: self.id,
            generation,
        });
        self.exit(WorkerExit::StateLost, fx);
    }

    /// Reports the plan. Commands that follow are postponed until the worker continues.
    fn report(&mut self, mut next: Step, is_whole: bool, fx: &mut Effects<'_>) {
        self.note_plan(fx);
        let Some(generation) = self.group.as_ref().map(SimulatedGroup::generation) else {
            return;
        };
        if fx.has(InjectedBug::LostStepIsSkipped) && generation > Generation(1) {
            next = next.next();
        }
        let caught_up = WorkerEvent::CaughtUp {
            generation,
            next,
            is_whole,
        };
        self.event(caught_up, fx);
    }

    fn apply_missed(&mut self, committed: &CommittedStep, fx: &mut Effects<'_>) {
        self.replica.apply_missed(committed);
        self.note_committed(committed, fx);
    }

    fn assign(&mut self, fx: &mut Effects<'_>) {
        self.replica.forget_gradient();
        let (plan, is_divided) = (self.plan(), self.run.division.is_some());
        let computes = |action: &CatchUp| is_divided || *action != CatchUp::CopyState;
        if let Some(group) = &mut self.group {
            group.whole = plan.each.iter().map(computes).collect();
        }
        if self.copies_state() {
            fx.fact(Fact::Heals {
                worker: self.id,
                next: plan.next,
            });
        }
    }

    /// Begins to copy a state that is not divided.
    fn begin_copies(&mut self, fx: &mut Effects<'_>) {
        let plan = self.plan();
        let (holders, _) = plan.holders_and_receivers();
        match self.copies_state() {
            true => self.replica.begin_to_heal(holders.len()),
            false => self.send_slices(&plan, &holders, fx),
        }
    }

    /// Continues with the steps of the generation, or of those that were postponed.
    fn go_on_with_steps(&mut self, fx: &mut Effects<'_>) {
        let is_whole = !self.copies_state();
        self.entry = None;
        if self.run.division.is_none() {
            self.take_early_slices(is_whole, fx);
        }
        self.resume(fx);
    }

    /// Takes the slices that arrived before this rank knew that it has to heal.
    fn take_early_slices(&mut self, is_whole: bool, fx: &mut Effects<'_>) {
        let early = self
            .group
            .as_mut()
            .and_then(|group| group.early_slices.take());
        for (index, values) in early.into_iter().flatten() {
            if !is_whole {
                self.take_slice(index, values, fx);
            }
        }
        if fx.has(InjectedBug::HealIsSkipped) && !is_whole {
            self.replica.complete(SimulatedState::initial());
            self.healed(fx);
        }
    }

    /// Sends this rank's part of the state to the ranks that copy it.
    fn send_slices(&mut self, plan: &CatchUpPlan, holders: &[usize], fx: &mut Effects<'_>) {
        let Some(group) = &self.group else {
            return;
        };
        let index = holders
            .iter()
            .position(|holder| *holder == group.rank)
            .unwrap_or_default();
        for (rank, action) in plan.each.iter().enumerate() {
            if *action == CatchUp::CopyState {
                let part = FramePayload::Slice(index, self.replica.slice(index, holders.len()));
                let member = &group.assignment.members[rank];
                let (to, host) = (member.worker, member.slot.0 as usize);
                let frame = DataFrame {
                    to,
                    from: self.id,
                    generation: group.generation(),
                    part,
                };
                let extra = fx.rng.range(20 * MS, 600 * MS);
                let message = HostMessage::Frame(Box::new(frame));
                fx.done.push(Effect::Send {
                    to: host,
                    message,
                    extra,
                });
            }
        }
    }

    pub(super) fn take_slice(&mut self, index: usize, values: Vec<f32>, fx: &mut Effects<'_>) {
        match self.replica.take_slice(index, values) {
            Ok(true) => self.healed(fx),
            Ok(false) => {}
            Err(problem) => fx.fact(Fact::Contradiction(problem)),
        }
    }

    pub(super) fn healed(&mut self, fx: &mut Effects<'_>) {
        self.note_state(fx);
        self.event_in_generation(|generation| WorkerEvent::Healed { generation }, fx);
    }
}
