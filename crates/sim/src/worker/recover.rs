//! The start of a worker in a group: holders, reports, the plan, applying, healing, loading.

use ronde_core::{Generation, Step};
use ronde_protocol::WorkerEvent;
use ronde_protocol::transaction::{
    CatchUp, CatchUpPlan, MemberState, StateReport, StateSource, TransactionError,
};

use super::{LoopWait, SimulatedWorker};
use crate::clock::MS;
use crate::effect::{Effect, Effects, HostMessage};
use crate::fact::{Fact, WorkerExit};
use crate::group::{DataFrame, FramePayload, GatherPart};
use crate::injected_bug::InjectedBug;
use crate::model::{PARAMETERS, SimulatedState};

impl SimulatedWorker {
    /// Decides from which state the members continue, and loads the newest checkpoint if they have none: the first rank, from
    /// which the others copy it, or every rank its slices.
    pub(super) fn find_state(&mut self, members: Vec<u64>, fx: &mut Effects<'_>) {
        let Some(members) = MemberState::decode_all(&members) else {
            return self.contradict("a report of a member is invalid".to_owned(), fx);
        };
        let source = StateSource::of(&members, PARAMETERS);
        if source.is_before(self.replica.transaction.next_step()) {
            self.replica.transaction.give_up_state();
            fx.fact(Fact::GivesUp(self.id));
        }
        let loads = !matches!(source, StateSource::Members(_));
        if loads && self.run.division.is_some() {
            self.replica.slices.give_up();
            fx.fact(Fact::GivesUp(self.id));
            return self.load_before(Step(u64::MAX), fx);
        }
        let is_first = self.group.as_ref().is_some_and(|group| group.rank == 0);
        if loads && is_first {
            if let Some((_, stored)) = fx.disk.newest_before(Step(u64::MAX)) {
                self.replica.load(stored.state.clone(), &stored.cursor);
            }
            self.note_state(fx);
        }
        self.report(fx);
    }

    /// Reports the state of this worker to all members.
    pub(super) fn report(&mut self, fx: &mut Effects<'_>) {
        let holds_gradient =
            self.replica.holds_gradient() || fx.has(InjectedBug::GradientIsClaimed);
        let report = self.replica.transaction.report(holds_gradient);
        self.task = LoopWait::Reports;
        self.gather(GatherPart::Report(report), fx);
    }

    /// Continues when the reports of all members are known.
    pub(super) fn plan(&mut self, reports: &[u8], fx: &mut Effects<'_>) {
        let Some(group) = &self.group else {
            return;
        };
        let (worker, generation) = (self.id, group.generation());
        let told = StateReport::decode_all(reports, group.size()).unwrap_or_default();
        let mut plan = self.replica.transaction.plan(reports);
        if fx.has(InjectedBug::SmallestStepWins)
            && let Some(least) = told.iter().map(|report| report.next).min()
        {
            let mut reports = told.clone();
            reports.iter_mut().for_each(|report| report.next = least);
            plan = CatchUpPlan::new(&reports).ok_or(TransactionError::StateLost);
        }
        let plan = match plan {
            Ok(plan) => plan,
            Err(TransactionError::StateLost) => return self.lose_state(generation, fx),
            Err(error) => return self.contradict(error.to_string(), fx),
        };
        fx.fact(Fact::Planned {
            worker,
            generation,
            reports: told,
            next: plan.next,
        });
        if !plan.needs_snapshot() {
            return self.recover(&plan, &[], fx);
        }
        let snapshot = self.replica.transaction.snapshot(&plan);
        self.task = LoopWait::Snapshot(plan);
        self.gather(GatherPart::Snapshot(snapshot), fx);
    }

    /// Exits, because no member has some slices of the state, and no checkpoint contains them.
    pub(super) fn lose_state(&mut self, generation: Generation, fx: &mut Effects<'_>) {
        fx.fact(Fact::SliceLost {
            worker: self.id,
            generation,
        });
        self.exit(WorkerExit::StateLost, fx);
    }

    /// Executes the plan.
    pub(super) fn recover(&mut self, plan: &CatchUpPlan, snapshot: &[u8], fx: &mut Effects<'_>) {
        let Some(group) = &mut self.group else {
            return;
        };
        let copies = |action: &CatchUp| *action == CatchUp::CopyState;
        let is_whole = !copies(&plan.each[group.rank]);
        let computes = |action| self.run.division.is_some() || !copies(action);
        group.whole = plan.each.iter().map(computes).collect();
        let generation = group.generation();
        let (holders, _) = plan.holders_and_receivers();
        match self.replica.catch_up(plan, snapshot) {
            Ok(Some(committed)) => self.note_committed(&committed, fx),
            Ok(None) => {}
            Err(error) => return self.contradict(error.to_string(), fx),
        }
        if !is_whole {
            fx.fact(Fact::Heals {
                worker: self.id,
                next: plan.next,
            });
        }
        let is_divided = self.run.division.is_some();
        match is_whole {
            _ if is_divided => self.task = LoopWait::Slices(plan.clone()),
            true => self.send_slices(plan, &holders, fx),
            false => self.replica.begin_to_heal(holders.len()),
        }
        let mut next = plan.next;
        if fx.has(InjectedBug::LostStepIsSkipped) && generation > Generation(1) {
            next = next.next();
        }
        let caught_up = WorkerEvent::CaughtUp {
            generation,
            next,
            is_whole,
        };
        self.event(caught_up, fx);
        match is_divided {
            true => self.begin_exchange(plan, fx),
            false => self.take_early_slices(is_whole, fx),
        }
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
