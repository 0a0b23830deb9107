//! The start of a worker in a group: holders, reports, the plan, applying, healing, loading.

use ronde_core::Generation;
use ronde_core::session::{CatchUp, CatchUpPlan, StateReport};
use ronde_elastic::WorkerEvent;

use super::{LoopWait, SimulatedWorker};
use crate::clock::MS;
use crate::effect::{Effect, Effects, HostMessage};
use crate::fact::Fact;
use crate::group::{DataFrame, FramePayload, GatherPart};
use crate::injected_bug::InjectedBug;
use crate::model::SimulatedState;

impl SimulatedWorker {
    /// Loads the newest checkpoint on the first rank if no member holds a state, and reports to all members.
    pub(super) fn find_state(&mut self, pieces: &[GatherPart], fx: &mut Effects<'_>) {
        let is_held = |piece: &GatherPart| matches!(piece, GatherPart::Holds(true));
        let is_first = self.group.as_ref().is_some_and(|group| group.rank == 0);
        if !pieces.iter().any(is_held) && is_first {
            if let Some((_, stored)) = fx.disk.newest() {
                self.replica.load(stored.state.clone(), &stored.cursor);
            }
            self.note_state(fx);
        }
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
        let mut plan = self
            .replica
            .transaction
            .plan(reports)
            .map_err(|error| error.to_string());
        if fx.has(InjectedBug::SmallestStepWins)
            && let Some(least) = told.iter().map(|report| report.next).min()
        {
            let mut reports = told.clone();
            reports.iter_mut().for_each(|report| report.next = least);
            plan = CatchUpPlan::new(&reports).ok_or_else(|| "no state".to_owned());
        }
        let plan = match plan {
            Ok(plan) => plan,
            Err(problem) => return self.fail(problem, fx),
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

    /// Executes the plan.
    pub(super) fn recover(&mut self, plan: &CatchUpPlan, snapshot: &[u8], fx: &mut Effects<'_>) {
        let Some(group) = &mut self.group else {
            return;
        };
        let copies = |action: &CatchUp| *action == CatchUp::CopyState;
        group.whole = plan.each.iter().map(|action| !copies(action)).collect();
        let (generation, is_whole) = (group.generation(), group.whole[group.rank]);
        let (holders, _) = plan.holders_and_receivers();
        match self.replica.catch_up(plan, snapshot) {
            Ok(Some(committed)) => self.note_committed(&committed, fx),
            Ok(None) => {}
            Err(error) => return self.contradict(error.to_string(), fx),
        }
        if is_whole {
            self.send_slices(plan, &holders, fx);
        } else {
            self.replica.begin_to_heal(holders.len());
            fx.fact(Fact::Heals {
                worker: self.id,
                next: plan.next,
            });
        }
        let mut next = plan.next;
        if fx.has(InjectedBug::LostStepIsSkipped) && generation > Generation(1) {
            next = next.next();
        }
        self.event(
            WorkerEvent::CaughtUp {
                generation,
                next,
                is_whole,
            },
            fx,
        );
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

    fn healed(&mut self, fx: &mut Effects<'_>) {
        self.note_state(fx);
        self.event_in_generation(|generation| WorkerEvent::Healed { generation }, fx);
    }
}
