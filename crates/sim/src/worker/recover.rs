//! The start of a worker in a group: positions, the recovery plan, applying, healing, loading.

use ronde_core::ledger::Ledger;
use ronde_core::{Generation, Step};
use ronde_elastic::{Position, RecoveryAction, RecoveryPlan, WorkerEvent};

use super::{LoopWait, SimulatedWorker};
use crate::clock::MS;
use crate::effect::{Effect, Effects, HostMessage};
use crate::fact::Fact;
use crate::group::{DataFrame, FramePayload, GatherPart};
use crate::injected_bug::InjectedBug;
use crate::model::SimulatedState;

impl SimulatedWorker {
    /// Continues when all positions are known.
    pub(super) fn plan(&mut self, pieces: &[GatherPart], fx: &mut Effects<'_>) {
        let Some(group) = &self.group else {
            return;
        };
        let mut positions: Vec<Position> = pieces
            .iter()
            .filter_map(|piece| match piece {
                GatherPart::Position(position) => Some(*position),
                _ => None,
            })
            .collect();
        let told = positions.clone();
        if fx.has(InjectedBug::SmallestStepWins)
            && let Some(least) = positions.iter().filter_map(|position| position.next).min()
        {
            positions
                .iter_mut()
                .for_each(|position| position.next = Some(least));
        }
        let plan = match RecoveryPlan::new(&positions, group.assignment.start) {
            Ok(plan) => plan,
            Err(error) => return self.fail(error.to_string(), fx),
        };
        let (worker, generation) = (self.id, group.generation());
        fx.fact(Fact::Planned {
            worker,
            generation,
            positions: told,
            next: plan.next,
        });
        let leads = plan.holders().first() == Some(&group.rank);
        let is_wanted = plan
            .actions
            .iter()
            .any(|c| matches!(c, RecoveryAction::Apply | RecoveryAction::Heal));
        let snapshot = (leads && is_wanted).then(|| Box::new(self.replica.snapshot()));
        self.task = LoopWait::Snapshot(plan);
        self.gather(GatherPart::Snapshot(snapshot), fx);
    }

    /// Executes the plan.
    pub(super) fn recover(
        &mut self,
        plan: &RecoveryPlan,
        pieces: Vec<GatherPart>,
        fx: &mut Effects<'_>,
    ) {
        let snapshot = pieces.into_iter().find_map(|piece| match piece {
            GatherPart::Snapshot(snapshot) => snapshot,
            _ => None,
        });
        let Some(group) = &mut self.group else {
            return;
        };
        group.whole = plan
            .actions
            .iter()
            .map(|course| *course != RecoveryAction::Heal)
            .collect();
        let (generation, rank) = (group.generation(), group.rank);
        let holders = plan.holders();
        let mut is_whole = true;
        match (plan.actions[rank], snapshot) {
            (RecoveryAction::Keep, _) => self.send_slices(plan, &holders, fx),
            (RecoveryAction::Apply, Some(snapshot)) => {
                let step = Step(plan.next.0 - 1);
                let votes = snapshot.votes.unwrap_or_default();
                let computed_in = self.computed_in.unwrap_or(generation);
                self.commit(computed_in, step, votes, fx);
            }
            (RecoveryAction::Heal, Some(snapshot)) => {
                self.replica
                    .begin_to_heal(plan.next, &snapshot, holders.len());
                fx.fact(Fact::Heals {
                    worker: self.id,
                    next: plan.next,
                });
                is_whole = false;
            }
            (RecoveryAction::Load, _) => self.load(plan.next, fx),
            _ => return self.fail("no member has sent the last votes".to_owned(), fx),
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
            self.replica.state = Some(SimulatedState::initial());
            self.healed(fx);
        }
    }

    pub(super) fn send_slices(
        &mut self,
        plan: &RecoveryPlan,
        holders: &[usize],
        fx: &mut Effects<'_>,
    ) {
        let Some(group) = &self.group else {
            return;
        };
        let index = holders
            .iter()
            .position(|holder| *holder == group.rank)
            .unwrap_or_default();
        for (rank, course) in plan.actions.iter().enumerate() {
            if *course == RecoveryAction::Heal {
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

    pub(super) fn load(&mut self, next: Step, fx: &mut Effects<'_>) {
        let (state, ledger) = fx.disk.read(next).unwrap_or_else(|| {
            let batches = self.run.batches;
            (
                SimulatedState::initial(),
                Ledger::new(batches.samples(), batches.samples_per_epoch()),
            )
        });
        let hash = state.hash();
        self.replica.load(next, state, ledger);
        fx.fact(Fact::Holds {
            worker: self.id,
            next,
            hash,
        });
    }

    pub(super) fn take_slice(&mut self, index: usize, values: Vec<f32>, fx: &mut Effects<'_>) {
        match self.replica.take_slice(index, values) {
            Ok(true) => self.healed(fx),
            Ok(false) => {}
            Err(problem) => fx.fact(Fact::Contradiction(problem)),
        }
    }

    pub(super) fn healed(&mut self, fx: &mut Effects<'_>) {
        if let (Some(state), Some(next)) = (&self.replica.state, self.replica.next) {
            let hash = state.hash();
            fx.fact(Fact::Holds {
                worker: self.id,
                next,
                hash,
            });
        }
        self.event_in_generation(|generation| WorkerEvent::Healed { generation }, fx);
    }
}
