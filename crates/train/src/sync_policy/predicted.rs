//! A round of stages that update with predicted gradients: the batches of the round, in order.

use ronde_core::rounds::RoundPlan;
use ronde_parallel::SyntheticGradients;
use ronde_protocol::transaction::OpenStep;

use super::feed::Feed;
use crate::error::TrainError;

/// Trains the stages of this rank on the batches of a round. Returns the seconds in which it waited for other ranks.
///
/// # Errors
/// Data or engine failed, or a rank was lost. The state is that before the round.
pub(super) fn compute(
    stages: &mut SyntheticGradients,
    rounds: &RoundPlan,
    feed: &mut Feed<'_>,
    open: &mut OpenStep,
) -> Result<f64, TrainError> {
    let round = open.step();
    let begun = stages.begin_round(rounds.inner_steps(round));
    begun.map_err(|source| feed.diverged(round, source))?;
    let mut sample_ids = Vec::new();
    for step in rounds.walk(round.0..round.0 + 1, 0..1) {
        let local = feed.local_step(rounds, step)?;
        let (ids, micro_batches) = feed.load((local.random, round))?;
        sample_ids.extend(ids.into_iter().flatten());
        let trained = stages.train_stages(&local, micro_batches);
        trained.map_err(|source| feed.diverged(round, source))?;
    }
    let ended = stages.end_round();
    if let Some(mut report) = ended.map_err(|source| feed.diverged(round, source))? {
        report.skipped = sample_ids.len() as u64 - report.samples;
        open.record(report, &sample_ids);
    }
    Ok(stages.take_exchange_s())
}
