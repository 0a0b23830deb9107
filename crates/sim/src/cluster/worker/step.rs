//! A worker's steps: gradients, reduction, vote, commit.

use ronde_core::{Generation, Step};
use ronde_protocol::WorkerEvent;
use ronde_protocol::transaction::CommittedStep;

use super::{AfterWeights, LoopWait, SimulatedWorker};
use crate::clock::MS;
use crate::cluster::effect::{Alarm, Effect, Effects};
use crate::cluster::fact::Fact;
use crate::cluster::group::GatherPart;
use crate::cluster::injected_bug::InjectedBug;

impl SimulatedWorker {
    pub(super) fn compute(&mut self, generation: Generation, step: Step, fx: &mut Effects<'_>) {
        let next = self.replica.transaction.next_step();
        if next != step {
            return self.contradict(
                format!("step {step} begins, but {next} is the next one"),
                fx,
            );
        }
        fx.fact(Fact::Computes {
            worker: self.id,
            generation,
            step,
        });
        self.task = LoopWait::Computing(step);
        let at = fx.now + fx.rng.range(20 * MS, 140 * MS);
        fx.done
            .push(Effect::Alarm(at, Alarm::Computed(generation, step)));
    }

    pub(super) fn computed(&mut self, step: Step, fx: &mut Effects<'_>) {
        let Some(group) = &self.group else {
            return;
        };
        let (index, of) = group.computing();
        let servers = (self.run.division).map_or(0, |division| division.servers_among(of));
        let of = of - servers;
        let index = index.filter(|index| *index < of);
        let subtrees = self.replica.backward(index, of);
        self.task = LoopWait::Reducing(step);
        self.gather(GatherPart::Subtrees(subtrees), fx);
    }

    pub(super) fn reduced(&mut self, step: Step, pieces: Vec<GatherPart>, fx: &mut Effects<'_>) {
        let subtrees = pieces.into_iter().filter_map(|piece| match piece {
            GatherPart::Subtrees(subtrees) => Some(subtrees),
            _ => None,
        });
        let subtrees: Vec<_> = subtrees.collect();
        let mut gradient = self.replica.reduce(subtrees.clone());
        if fx.has(InjectedBug::SumInOrderOfArrival) {
            let mut sum = vec![0.0; crate::cluster::model::PARAMETERS];
            for (_, values) in subtrees.iter().rev().flatten() {
                sum.iter_mut()
                    .zip(values)
                    .for_each(|(sum, value)| *sum += value);
            }
            gradient = Some(sum);
        }
        let Some(gradient) = gradient else {
            let problem = format!("step {step}: the subtrees do not form the tree");
            return self.contradict(problem, fx);
        };
        match self.run.division {
            None => self.hold(step, gradient, fx),
            Some(_) => self.copy_gradient(step, &gradient, fx),
        }
    }

    /// Keeps the reduced gradient of all elements that this worker holds, and votes.
    pub(super) fn hold(&mut self, step: Step, gradient: Vec<f32>, fx: &mut Effects<'_>) {
        self.task = LoopWait::Nothing;
        self.replica.hold(step, gradient);
        self.event_in_generation(|generation| WorkerEvent::Reduced { generation, step }, fx);
    }

    /// Commits a step with the votes of all ranks.
    pub(super) fn voted(&mut self, step: Step, votes: Vec<u8>, fx: &mut Effects<'_>) {
        let committed = match self.replica.commit(votes) {
            Ok(committed) => committed,
            Err(error) => return self.contradict(error.to_string(), fx),
        };
        self.note_committed(&committed, fx);
        if self.run.division.is_some() {
            self.receive_notes(&committed, fx);
            let ends = committed.newest > committed.generation;
            self.gather_weights(AfterWeights::Step(committed.requests, ends), fx);
        // All members compute again when no member copies the state.
        } else if let Some(group) = &mut self.group
            && !committed.requests.heals
        {
            group.whole.fill(true);
        }
        let voted = |generation| WorkerEvent::Voted {
            generation,
            step,
            newest: committed.newest,
        };
        self.event_in_generation(voted, fx);
    }

    /// Notes a committed step, and the state after it.
    pub(super) fn note_committed(&mut self, committed: &CommittedStep, fx: &mut Effects<'_>) {
        fx.fact(Fact::Committed {
            worker: self.id,
            generation: committed.generation,
            step: committed.step,
            ids: committed.sample_ids.clone(),
            verdict: committed.epoch_verdict,
        });
        self.note_state(fx);
    }

    /// Notes the elements of the state that this worker has, if they are complete.
    pub(super) fn note_state(&mut self, fx: &mut Effects<'_>) {
        if let Some(state) = &self.replica.state {
            let held = self.replica.slices.held().clone();
            fx.fact(Fact::Holds {
                worker: self.id,
                next: self.replica.transaction.next_step(),
                hash: state.hash_of(&held),
                held,
            });
        }
    }

    /// Notes a contradiction, which ends the group.
    pub(super) fn contradict(&mut self, problem: String, fx: &mut Effects<'_>) {
        fx.fact(Fact::Contradiction(problem.clone()));
        self.fail(problem, fx);
    }
}
