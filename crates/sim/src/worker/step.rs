//! A worker's steps: gradients, reduction, vote, commit.

use ronde_core::{Generation, Step};
use ronde_elastic::WorkerEvent;

use super::{LoopWait, SimulatedWorker};
use crate::clock::MS;
use crate::effect::{Alarm, Effect, Effects};
use crate::fact::Fact;
use crate::group::GatherPart;
use crate::injected_bug::InjectedBug;
use crate::replica::ReplicaVote;

impl SimulatedWorker {
    pub(super) fn compute(&mut self, generation: Generation, step: Step, fx: &mut Effects<'_>) {
        self.replica.gradient = None;
        self.computed_in = Some(generation);
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
        let subtrees = self.replica.backward(step, index, of);
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
            let mut sum = vec![0.0; crate::model::PARAMETERS];
            for (_, values) in subtrees.iter().rev().flatten() {
                sum.iter_mut()
                    .zip(values)
                    .for_each(|(sum, value)| *sum += value);
            }
            gradient = Some(sum);
        }
        let Some(gradient) = gradient else {
            fx.fact(Fact::Contradiction(format!(
                "step {step}: the subtrees do not form the tree"
            )));
            return self.fail("the subtrees do not form the tree".to_owned(), fx);
        };
        self.replica.gradient = Some((step, gradient));
        self.event_in_generation(|generation| WorkerEvent::Reduced { generation, step }, fx);
    }

    pub(super) fn voted(&mut self, step: Step, votes: Vec<ReplicaVote>, fx: &mut Effects<'_>) {
        if let Some(problem) = self.replica.contradiction(step, &votes) {
            fx.fact(Fact::Contradiction(problem.clone()));
            return self.fail(problem, fx);
        }
        let newest = votes
            .iter()
            .map(|vote| vote.newest)
            .max()
            .unwrap_or_default();
        if let Some(group) = &mut self.group {
            group.whole = votes.iter().map(|vote| vote.is_whole).collect();
        }
        self.votes = votes;
        let voted = |generation| WorkerEvent::Voted {
            generation,
            step,
            newest,
        };
        self.event_in_generation(voted, fx);
    }

    pub(super) fn commit(
        &mut self,
        generation: Generation,
        step: Step,
        votes: Vec<ReplicaVote>,
        fx: &mut Effects<'_>,
    ) {
        let (ids, verdict) = self.replica.commit(step, votes);
        fx.fact(Fact::Committed {
            worker: self.id,
            generation,
            step,
            ids,
            verdict,
        });
        if let Some(state) = &self.replica.state {
            let hash = state.hash();
            fx.fact(Fact::Holds {
                worker: self.id,
                next: step.next(),
                hash,
            });
        }
    }
}
