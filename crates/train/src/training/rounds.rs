//! A round of local training: the inner steps of this rank's replicas between two exchanges.

use ronde_core::event::PhaseTimes;
use ronde_core::rounds::{InnerStep, RoundPlan};
use ronde_core::{Event, Step};
use ronde_data::{Dataset, Loader};
use ronde_engine::Chain;
use ronde_parallel::{
    InnerLosses, LocalStep, ModelState, ParallelError, ReplicaRounds, fragments_max,
};
use ronde_protocol::transaction::{CommittedStep, OpenStep, ShardReport};

use super::Training;
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::plan::Plan;

/// The samples of a replica in a round.
#[derive(Debug, Default)]
struct ReplicaTally {
    report: Option<ShardReport>,
    sample_ids: Vec<u64>,
}

/// Returns an error if a model has too few layers for the fragments of local SGD.
pub(super) fn check_fragments(config: &RunConfig, chain: &Chain) -> Result<(), TrainError> {
    let streaming = config.sync.rounds().and_then(|rounds| rounds.streaming);
    let fragments = streaming.map_or(1, |streaming| streaming.fragments);
    let most = fragments_max(&ModelState::outline(chain));
    if fragments <= 1 || fragments as usize <= most {
        return Ok(());
    }
    Err(TrainError::Impossible {
        problem: format!(
            "{fragments} fragments cannot divide a model of {most} layers with weights"
        ),
        hint: format!("set `sync.fragments` to {most} or less"),
    })
}

/// Checks the fragments of a run before any worker starts.
///
/// # Errors
/// The model has too few layers for them, or does not accept the samples.
pub fn check_planned_fragments(plan: &Plan, train: &dyn Dataset) -> Result<(), TrainError> {
    if plan.config.sync.rounds().is_none() {
        return Ok(());
    }
    check_fragments(&plan.config, &plan.chain(train)?)
}

impl Training {
    /// Computes the replicas of this rank in a round, and starts the sum of their contributions. Adds the times of the phases to
    /// `times`.
    ///
    /// # Errors
    /// Data or engine failed, or the group has failed meanwhile. The state is that before the round.
    pub(super) fn compute_round(
        &mut self,
        rounds: &RoundPlan,
        loader: &mut Loader,
        open: &mut OpenStep,
        times: &mut PhaseTimes,
    ) -> Result<(), TrainError> {
        let round = open.step();
        self.replicas(round, |replicas| replicas.begin_round(round))?;
        for replica in open.run() {
            let mut tally = ReplicaTally::default();
            for step in rounds.walk(round.0..round.0 + 1, replica..replica + 1) {
                self.inner_step(rounds, step, loader, (&mut tally, &mut *times))?;
                self.check_group(round)?;
            }
            if let Some(mut report) = tally.report {
                report.skipped = tally.sample_ids.len() as u64 - report.samples;
                open.record(report, &tally.sample_ids);
            }
            self.replicas(round, |replicas| replicas.finish_replica())?;
        }
        self.replicas(round, |replicas| replicas.finish_round())
    }

    /// Computes one inner step.
    fn inner_step(
        &mut self,
        rounds: &RoundPlan,
        step: InnerStep,
        loader: &mut Loader,
        (tally, times): (&mut ReplicaTally, &mut PhaseTimes),
    ) -> Result<(), TrainError> {
        let local = self.local_step(rounds, step)?;
        let of = (local.random, step.round);
        let (ids, micro_batches) = self.load_step(loader, of, times)?;
        let reports = self.replicas(step.round, |replicas| {
            replicas.inner_step(&local, micro_batches)
        })?;
        tally.sample_ids.extend(ids.into_iter().flatten());
        let total = tally
            .report
            .get_or_insert_with(|| ShardReport::empty(step.replica));
        reports.iter().for_each(|report| total.add(report));
        Ok(())
    }

    /// Describes an inner step of a round.
    pub(super) fn local_step(
        &self,
        rounds: &RoundPlan,
        step: InnerStep,
    ) -> Result<LocalStep, TrainError> {
        let number = rounds.number(step);
        Ok(LocalStep {
            replica: step.replica,
            index: step.index,
            number,
            random: rounds.unique(step),
            learning_rate: self.learning_rate(Step(number))?,
        })
    }

    /// Calls a function of the strategy, whose transaction is a round.
    fn replicas<T>(
        &mut self,
        round: Step,
        call: impl FnOnce(&mut dyn ReplicaRounds) -> Result<T, ParallelError>,
    ) -> Result<T, TrainError> {
        let called = match self.strategy.replica_rounds() {
            Some(replicas) => call(replicas),
            None => Err(ParallelError::OutOfOrder {
                problem: "the strategy of this run has no rounds".to_owned(),
            }),
        };
        called.map_err(|source| TrainError::Step {
            step: round,
            source: Box::new(source),
        })
    }

    /// Returns the error of the group, if it has failed while this rank computes: the remaining members wait for this rank in the
    /// next generation, and the round begins again there.
    fn check_group(&self, round: Step) -> Result<(), TrainError> {
        let Some(source) = self.member.group.failure() else {
            return Ok(());
        };
        let action = "continue the round".to_owned();
        Err(TrainError::Step {
            step: round,
            source: Box::new(ParallelError::Exchange { action, source }),
        })
    }

    /// Adds the losses of the inner steps of a committed round to the events.
    pub(super) fn record_inner_losses(&mut self, committed: &CommittedStep) {
        let Some(rounds) = &self.plan.rounds else {
            return;
        };
        let votes = committed.sums.iter().map(Vec::as_slice);
        let Some(losses) = InnerLosses::decode(votes) else {
            return;
        };
        self.history.push(Event::InnerLosses {
            step: committed.step,
            first: rounds.steps_before(committed.step),
            losses: losses.means(),
        });
    }

    /// Returns the step whose learning rate belongs to a step of the run: the first inner step of a round.
    pub(super) fn rate_step(&self, step: Step) -> Step {
        match &self.plan.rounds {
            Some(rounds) => Step(rounds.steps_before(step)),
            None => step,
        }
    }
}
