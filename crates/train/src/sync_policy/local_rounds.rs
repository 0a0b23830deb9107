//! A round of local training: the inner steps of this rank's replicas between two exchanges.

use ronde_core::Step;
use ronde_core::rounds::{InnerStep, RoundPlan};
use ronde_data::Dataset;
use ronde_engine::Chain;
use ronde_parallel::{LocalRounds, ModelState, ParallelError, fragments_max};
use ronde_protocol::transaction::{OpenStep, ShardReport};

use super::feed::Feed;
use crate::config::{RunConfig, SyncMethod, SyncSection};
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
    let SyncMethod::LocalRounds(settings) = config.sync.method() else {
        return Ok(());
    };
    let streaming = settings.streaming;
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
    if !matches!(plan.config.sync, SyncSection::LocalSgd { .. }) {
        return Ok(());
    }
    check_fragments(&plan.config, &plan.chain(train)?)
}

/// Computes the replicas of this rank in a round, and starts the sum of their contributions.
///
/// # Errors
/// Data or engine failed, or the group has failed meanwhile. The state is that before the round.
pub(super) fn compute(
    replicas: &mut LocalRounds,
    rounds: &RoundPlan,
    feed: &mut Feed<'_>,
    open: &mut OpenStep,
) -> Result<(), TrainError> {
    let round = open.step();
    let failed = |source| TrainError::of_step(round, source);
    replicas.begin_round(round).map_err(failed)?;
    for replica in open.run() {
        let mut tally = ReplicaTally::default();
        for step in rounds.walk(round.0..round.0 + 1, replica..replica + 1) {
            inner_step(replicas, rounds, step, feed, &mut tally)?;
            check_group(feed, round)?;
        }
        if let Some(mut report) = tally.report {
            report.skipped = tally.sample_ids.len() as u64 - report.samples;
            open.record(report, &tally.sample_ids);
        }
        replicas.finish_replica().map_err(failed)?;
    }
    replicas.finish_round().map_err(failed)
}

/// Computes one inner step.
fn inner_step(
    replicas: &mut LocalRounds,
    rounds: &RoundPlan,
    step: InnerStep,
    feed: &mut Feed<'_>,
    tally: &mut ReplicaTally,
) -> Result<(), TrainError> {
    let local = feed.local_step(rounds, step)?;
    let (ids, micro_batches) = feed.load((local.random, step.round))?;
    let reports = replicas.inner_step(&local, micro_batches);
    let reports = reports.map_err(|source| TrainError::of_step(step.round, source))?;
    tally.sample_ids.extend(ids.into_iter().flatten());
    let total = tally
        .report
        .get_or_insert_with(|| ShardReport::empty(step.replica));
    reports.iter().for_each(|report| total.add(report));
    Ok(())
}

/// Returns the error of the group, if it has failed while this rank computes: the remaining members wait for this rank in the
/// next generation, and the round starts again there.
fn check_group(feed: &Feed<'_>, round: Step) -> Result<(), TrainError> {
    let Some(source) = feed.member.group.failure() else {
        return Ok(());
    };
    let action = "continue the round".to_owned();
    Err(TrainError::of_step(
        round,
        ParallelError::Exchange { action, source },
    ))
}
