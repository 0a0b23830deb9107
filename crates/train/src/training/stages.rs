//! A round of stages that update with predicted gradients: the batches of the round, in order.

use std::sync::Arc;

use ronde_comm::{GroupConfig, ProcessGroup};
use ronde_core::event::PhaseTimes;
use ronde_core::rounds::{InnerStep, RoundPlan};
use ronde_core::shards::ShardPlan;
use ronde_core::step_layout::StepLayout;
use ronde_core::{Event, Group, GroupRank, Step, WorldSize};
use ronde_data::Loader;
use ronde_parallel::{
    ParallelError, StageRounds, Strategy, SynchronousStrategy, SyntheticGradients,
    SyntheticGradientsConfig,
};
use ronde_protocol::transaction::{CommittedStep, OpenStep};

use super::Training;
use super::step::step_failed;
use crate::error::TrainError;
use crate::plan::Plan;
use crate::predicted_stages::PredictedStages;

impl Training {
    /// Trains the stages of this rank on the batches of a round. Returns the seconds in which it waited for other ranks; adds the waits
    /// for data to `times`.
    ///
    /// # Errors
    /// Data or engine failed, or a rank was lost. The state is that before the round.
    pub(super) fn compute_stages(
        &mut self,
        rounds: &RoundPlan,
        loader: &mut Loader,
        open: &mut OpenStep,
        times: &mut PhaseTimes,
    ) -> Result<f64, TrainError> {
        let round = open.step();
        let steps = rounds.inner_steps(round);
        self.stages(round, |stages| stages.begin_round(steps))?;
        let mut sample_ids = Vec::new();
        for step in rounds.walk(round.0..round.0 + 1, 0..1) {
            self.train_stages(rounds, step, loader, (&mut sample_ids, &mut *times))?;
        }
        if let Some(mut report) = self.stages(round, |stages| stages.end_round())? {
            report.skipped = sample_ids.len() as u64 - report.samples;
            open.record(report, &sample_ids);
        }
        self.stages(round, |stages| Ok(stages.take_exchange_s()))
    }

    /// Trains the stages of this rank on one batch.
    fn train_stages(
        &mut self,
        rounds: &RoundPlan,
        step: InnerStep,
        loader: &mut Loader,
        (sample_ids, times): (&mut Vec<u64>, &mut PhaseTimes),
    ) -> Result<(), TrainError> {
        let local = self.local_step(rounds, step)?;
        let of = (local.random, step.round);
        let (ids, micro_batches) = self.load_step(loader, of, times)?;
        sample_ids.extend(ids.into_iter().flatten());
        self.stages(step.round, |stages| {
            stages.train_stages(&local, micro_batches)
        })
    }

    /// Calls a function of the strategy, whose transaction is a round of stages with predicted gradients.
    fn stages<T>(
        &mut self,
        round: Step,
        call: impl FnOnce(&mut dyn StageRounds) -> Result<T, ParallelError>,
    ) -> Result<T, TrainError> {
        let called = match self.strategy.stage_rounds() {
            Some(stages) => call(stages),
            None => Err(ParallelError::OutOfOrder {
                problem: "the strategy of this run has no stages with predicted gradients"
                    .to_owned(),
            }),
        };
        called.map_err(|source| match self.learning_rate(self.rate_step(round)) {
            Ok(learning_rate) => step_failed(round, learning_rate, source),
            Err(error) => error,
        })
    }

    /// Adds the predictions of a committed round to the events.
    pub(super) fn record_predictions(&mut self, committed: &CommittedStep) {
        let Some(stages) = self.strategy.stage_rounds() else {
            return;
        };
        let tallies = stages.tallies().iter();
        let (cosines, errors) = tallies
            .map(|tally| (tally.cosine(), tally.relative_error()))
            .unzip();
        self.history.push(Event::GradientsPredicted {
            step: committed.step,
            cosines,
            errors,
        });
    }
}

/// Creates the strategy of stages that update with predicted gradients.
///
/// # Errors
/// The predictors are too large.
pub(super) fn strategy(
    stages: SynchronousStrategy,
    groups: (Arc<dyn Group>, Arc<dyn Group>),
    mesh: StepLayout,
    settings: SyntheticGradientsConfig,
) -> Result<Box<dyn Strategy>, TrainError> {
    let strategy = SyntheticGradients::new(stages, groups, mesh, settings, ronde_clock::seconds);
    Ok(Box::new(strategy.map_err(TrainError::Model)?))
}

/// Returns the group and the layout in which one replica trains alone, or the stages that update with predicted gradients.
pub(super) fn replica_of(
    rounds: &RoundPlan,
    plan: &Plan,
    (layers, predicted): (usize, Option<&PredictedStages>),
) -> (Arc<dyn Group>, StepLayout) {
    let name = &plan.config.run.name;
    let config = GroupConfig::new("replica", name, GroupRank(0));
    let parts = ShardPlan::new(rounds.parts(), WorldSize::ONE);
    let parts = parts.expect("a plan of rounds has at least one part");
    let stages = predicted.and_then(|predicted| predicted.layout(rounds.parts()));
    let layout = stages.unwrap_or_else(|| StepLayout::data_parallel(parts, layers));
    (Arc::new(ProcessGroup::alone(config)), layout)
}
