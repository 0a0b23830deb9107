//! [`RoundPlan`]: rounds of local training, in which replicas of the model make local steps between two exchanges.
//!
//! The samples of a round are those of one global batch, so a round is one transaction. Each replica has a contiguous share of
//! them, and divides it evenly among the steps that it makes. All of this depends only on the plan, never on the workers that
//! compute the replicas.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::batch::BatchPlan;
use crate::rank::{Shard, Step};
use crate::shards::{even_range, even_sizes};

/// The division of training into rounds, replicas and their inner steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundPlan {
    /// The samples of each round.
    rounds: BatchPlan,
    inner_batch: u64,
    inner_steps: u64,
    replicas: u32,
    parts: u32,
}

/// One inner step of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InnerStep {
    /// The round, which is a step of the run.
    pub round: Step,
    /// The replica, which is a shard of the round.
    pub replica: Shard,
    /// The number of the inner step within the round, from 0.
    pub index: u64,
}

impl RoundPlan {
    /// Creates a plan from that of the rounds. Inner steps have `inner_batch` samples over all replicas, and those of a replica
    /// are divided into `parts` micro-batches. `None` if a number is zero, or a round has no whole number of inner steps.
    #[must_use]
    pub fn new(
        rounds: BatchPlan,
        (inner_batch, inner_steps): (u64, u64),
        replicas: u32,
        parts: u32,
    ) -> Option<Self> {
        let are_positive = inner_steps > 0 && replicas > 0 && parts > 0;
        let fits = inner_batch.checked_mul(inner_steps) == Some(rounds.global_batch_size());
        (are_positive && fits).then_some(Self {
            rounds,
            inner_batch,
            inner_steps,
            replicas,
            parts,
        })
    }

    /// Returns the number of replicas.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        self.replicas
    }

    /// Returns the number of micro-batches of an inner step of a replica.
    #[must_use]
    pub fn parts(&self) -> u32 {
        self.parts
    }

    /// Returns the most inner steps of a round.
    #[must_use]
    pub fn inner_steps_max(&self) -> u64 {
        self.inner_steps
    }

    /// Returns the most samples of a micro-batch.
    #[must_use]
    pub fn part_samples_max(&self) -> u64 {
        let of_replica = self.inner_batch.div_ceil(self.replicas.into());
        of_replica.div_ceil(self.parts.into())
    }

    /// Returns the numbers of samples that a replica has in the inner steps of `rounds` rounds, without those of its empty steps.
    #[must_use]
    pub fn inner_step_sizes(&self, rounds: u64) -> BTreeSet<u64> {
        let mut sizes = BTreeSet::new();
        for samples in self.rounds.batch_sizes(rounds) {
            let steps = samples.div_ceil(self.inner_batch).max(1);
            let of_replica = even_sizes(&[samples].into(), self.replicas.into());
            sizes.extend(even_sizes(&of_replica, steps));
        }
        sizes
    }

    /// Returns the numbers of samples of the micro-batches in `rounds` rounds, without those of empty ones.
    #[must_use]
    pub fn part_sizes(&self, rounds: u64) -> BTreeSet<u64> {
        even_sizes(&self.inner_step_sizes(rounds), self.parts.into())
    }

    /// Returns the number of inner steps of each replica in a round: fewer in the last round of an epoch, if it is smaller.
    #[must_use]
    pub fn inner_steps(&self, round: Step) -> u64 {
        let samples = self.rounds.batch(round).samples();
        samples.div_ceil(self.inner_batch).max(1)
    }

    /// Returns the number of inner steps of each replica in all earlier rounds.
    #[must_use]
    pub fn steps_before(&self, round: Step) -> u64 {
        let per_epoch = self.rounds.steps_per_epoch();
        let (epochs, within) = (round.0 / per_epoch, round.0 % per_epoch);
        let last = Step(per_epoch - 1);
        let of_epoch = last.0 * self.inner_steps + self.inner_steps(last);
        // All rounds of an epoch before its last one are complete.
        epochs * of_epoch + within * self.inner_steps
    }

    /// Returns the smallest number of rounds with at least `steps` inner steps of each replica.
    #[must_use]
    pub fn rounds_of(&self, steps: u64) -> u64 {
        let per_epoch = self.rounds.steps_per_epoch();
        let of_epoch = self.steps_before(Step(per_epoch));
        let (epochs, rest) = (steps / of_epoch, steps % of_epoch);
        let rounds = rest.div_ceil(self.inner_steps);
        epochs * per_epoch + rounds
    }

    /// Returns the positions of a micro-batch in the order of its epoch; may be empty.
    #[must_use]
    pub fn positions(&self, step: InnerStep, part: u32) -> Range<u64> {
        let all = self.rounds.batch(step.round).positions;
        let share = |whole: Range<u64>, parts: u64, part: u64| {
            let range = even_range(whole.end - whole.start, parts, part);
            whole.start + range.start..whole.start + range.end
        };
        let of_replica = share(all, self.replicas.into(), step.replica.0.into());
        let of_step = share(of_replica, self.inner_steps(step.round), step.index);
        share(of_step, self.parts.into(), part.into())
    }

    /// Returns the number of an inner step among all that a replica makes.
    #[must_use]
    pub fn number(&self, step: InnerStep) -> u64 {
        self.steps_before(step.round) + step.index
    }

    /// Returns a step number that no other inner step of any replica has, for random numbers.
    #[must_use]
    pub fn unique(&self, step: InnerStep) -> Step {
        Step(self.number(step) * u64::from(self.replicas) + u64::from(step.replica.0))
    }

    /// Returns the inner steps of the replicas `run` in some rounds: round by round, one replica after the other.
    #[must_use]
    pub fn walk(&self, rounds: Range<u64>, run: Range<u32>) -> InnerSteps {
        InnerSteps {
            plan: *self,
            rounds,
            replica: run.start,
            run,
            index: 0,
            first: 0,
            stride: 1,
        }
    }

    /// Returns every `stride`-th inner step of the first replica in a round, from number `first` on.
    #[must_use]
    pub fn walk_every(&self, round: Step, first: u64, stride: u64) -> InnerSteps {
        let is_empty = first >= self.inner_steps(round);
        let end = if is_empty { round.0 } else { round.0 + 1 };
        InnerSteps {
            plan: *self,
            rounds: round.0..end,
            replica: 0,
            run: 0..1,
            index: first,
            first,
            stride: stride.max(1),
        }
    }
}

/// The inner steps of a range of replicas, in the order in which a worker computes them.
#[derive(Debug, Clone)]
pub struct InnerSteps {
    plan: RoundPlan,
    rounds: Range<u64>,
    run: Range<u32>,
    replica: u32,
    index: u64,
    /// The first inner step of each replica in a round, and the distance to the next one.
    first: u64,
    stride: u64,
}

impl InnerSteps {
    /// Returns the number of inner steps that are left.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        if self.run.is_empty() || self.rounds.is_empty() {
            return 0;
        }
        if (self.first, self.stride) != (0, 1) {
            return self.clone().count() as u64;
        }
        let before = |round| self.plan.steps_before(Step(round));
        let whole = before(self.rounds.end) - before(self.rounds.start);
        let of_round = self.plan.inner_steps(Step(self.rounds.start));
        let done = u64::from(self.replica - self.run.start) * of_round + self.index;
        whole * self.run.len() as u64 - done
    }
}

impl Iterator for InnerSteps {
    type Item = InnerStep;

    fn next(&mut self) -> Option<InnerStep> {
        if self.run.is_empty() || self.rounds.is_empty() {
            return None;
        }
        let round = Step(self.rounds.start);
        let step = InnerStep {
            round,
            replica: Shard(self.replica),
            index: self.index,
        };
        self.index = self.index.saturating_add(self.stride);
        if self.index >= self.plan.inner_steps(round) {
            (self.index, self.replica) = (self.first, self.replica + 1);
        }
        if self.replica == self.run.end {
            self.replica = self.run.start;
            self.rounds.start += 1;
        }
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns plans of all kinds: with and without a smaller last round, and with empty micro-batches.
    fn plans() -> Vec<RoundPlan> {
        let mut plans = Vec::new();
        for samples in [1, 7, 16, 23, 40] {
            for (batch, steps) in [(1, 1), (4, 2), (3, 5), (8, 3)] {
                for (replicas, parts) in [(1, 1), (2, 2), (3, 1)] {
                    let rounds = BatchPlan::new(samples, batch * steps, false, true, 5).unwrap();
                    plans.push(RoundPlan::new(rounds, (batch, steps), replicas, parts).unwrap());
                }
            }
        }
        plans
    }

    #[test]
    fn every_sample_of_an_epoch_is_in_one_micro_batch() {
        for plan in plans() {
            let per_epoch = plan.rounds.steps_per_epoch();
            let steps = plan.walk(per_epoch..2 * per_epoch, 0..plan.replicas);
            let mut used: Vec<u64> = steps
                .flat_map(|step| (0..plan.parts).flat_map(move |part| plan.positions(step, part)))
                .collect();
            assert!(used.len() as u64 == plan.rounds.samples(), "{plan:?}");
            used.sort_unstable();
            used.dedup();
            assert_eq!(used.len() as u64, plan.rounds.samples(), "{plan:?}");
        }
    }

    #[test]
    fn sizes_are_those_of_the_micro_batches_that_are_not_empty() {
        for plan in plans() {
            for rounds in 1..=plan.rounds.steps_per_epoch() {
                let (mut steps, mut parts) = (BTreeSet::new(), BTreeSet::new());
                for step in plan.walk(0..rounds, 0..plan.replicas) {
                    let sizes = (0..plan.parts).map(|part| {
                        let positions = plan.positions(step, part);
                        positions.end - positions.start
                    });
                    let sizes: Vec<u64> = sizes.collect();
                    steps.insert(sizes.iter().sum());
                    parts.extend(sizes);
                }
                let without_empty = |sizes: BTreeSet<u64>| -> BTreeSet<u64> {
                    sizes.into_iter().filter(|size| *size > 0).collect()
                };
                assert_eq!(
                    plan.inner_step_sizes(rounds),
                    without_empty(steps),
                    "{plan:?}"
                );
                assert_eq!(plan.part_sizes(rounds), without_empty(parts), "{plan:?}");
            }
        }
    }

    #[test]
    fn a_round_has_the_samples_of_its_shards() {
        for plan in plans() {
            for round in 0..2 * plan.rounds.steps_per_epoch() {
                let batch = plan.rounds.batch(Step(round));
                for replica in 0..plan.replicas {
                    let planned =
                        even_range(batch.samples(), plan.replicas.into(), u64::from(replica));
                    let steps = plan.walk(round..round + 1, replica..replica + 1);
                    let used = steps
                        .flat_map(|step| {
                            (0..plan.parts).flat_map(move |part| plan.positions(step, part))
                        })
                        .count();
                    assert_eq!(used as u64, planned.end - planned.start);
                }
            }
        }
    }

    #[test]
    fn numbers_count_the_steps_of_a_replica_and_unique_steps_differ() {
        for plan in plans() {
            let rounds = 3 * plan.rounds.steps_per_epoch();
            let of_one = plan.walk(0..rounds, 0..1).map(|step| plan.number(step));
            let total = plan.steps_before(Step(rounds));
            assert!(of_one.eq(0..total), "{plan:?}");
            let all = plan.walk(0..rounds, 0..plan.replicas);
            let unique: BTreeSet<Step> = all.clone().map(|step| plan.unique(step)).collect();
            assert_eq!(unique.len(), all.count());
            for steps in 1..=total {
                let found = plan.rounds_of(steps);
                assert!(plan.steps_before(Step(found)) >= steps);
                assert!(
                    plan.steps_before(Step(found - 1)) < steps,
                    "{plan:?} {steps}"
                );
            }
        }
    }

    #[test]
    fn the_remaining_steps_are_counted() {
        for plan in plans() {
            let mut steps = plan.walk(1..5, 0..plan.replicas);
            let mut left = steps.clone().count() as u64;
            assert_eq!(steps.remaining(), left);
            while steps.next().is_some() {
                left -= 1;
                assert_eq!(steps.remaining(), left);
            }
            assert_eq!(plan.walk(0..3, 0..0).remaining(), 0);
            assert_eq!(plan.walk(0..3, 0..0).next(), None);
        }
    }

    #[test]
    fn workers_that_take_every_nth_step_take_all_of_a_round() {
        for plan in plans().into_iter().filter(|plan| plan.replicas == 1) {
            for round in 0..2 * plan.rounds.steps_per_epoch() {
                for stride in 1..5 {
                    let walk = |first| plan.walk_every(Step(round), first, stride);
                    let mut all: Vec<InnerStep> = (0..stride).flat_map(walk).collect();
                    all.sort_by_key(|step| step.index);
                    assert!(all.into_iter().eq(plan.walk(round..round + 1, 0..1)));
                    for first in 0..stride {
                        assert_eq!(walk(first).remaining(), walk(first).count() as u64);
                    }
                }
            }
        }
    }

    #[test]
    fn rounds_without_a_whole_number_of_steps_are_refused() {
        let rounds = BatchPlan::new(40, 8, false, true, 5).unwrap();
        for (batch, steps, replicas, parts) in [
            (3, 3, 1, 1),
            (8, 0, 1, 1),
            (0, 8, 1, 1),
            (4, 2, 0, 1),
            (4, 2, 1, 0),
        ] {
            assert!(RoundPlan::new(rounds, (batch, steps), replicas, parts).is_none());
        }
        assert!(RoundPlan::new(rounds, (u64::MAX, 2), 1, 1).is_none());
    }
}
