//! A round of parameter servers: the updates that this worker computes, and the threads that serve the others.

use std::thread::{Builder, ScopedJoinHandle};

use ronde_clock::Stopwatch;
use ronde_core::rounds::RoundPlan;
use ronde_core::{Shard, Step};
use ronde_parallel::{
    AbortOnPanic, ParallelError, ParameterServers, RoundClient, RoundRole, RoundTally,
};
use ronde_protocol::transaction::{OpenStep, ShardReport};

use super::feed::{Feed, OwnUpdates};
use crate::error::TrainError;

/// The result of a serving thread.
pub(super) type Served = Result<(), ParallelError>;

/// Computes the updates of a round that this rank gets, and serves the others. Returns the seconds in which it waited for
/// servers, or only served.
///
/// # Errors
/// Data or engine failed, or a rank was lost. The state is that before the round, but the slots stay for the next group.
pub(super) fn compute(
    servers: &mut ParameterServers,
    rounds: &RoundPlan,
    feed: &mut Feed<'_>,
    open: &mut OpenStep,
) -> Result<f64, TrainError> {
    let (round, whole) = (open.step(), Stopwatch::start());
    let failed = |source| TrainError::of_step(round, source);
    let role = servers.begin_round(&feed.round_start(rounds, round));
    let role = role.map_err(failed)?;
    let computes = role.client.is_some();
    let worked = work_and_serve(servers, rounds, (round, &role), feed);
    let ended = servers.end_round(role, worked.is_ok());
    let waited_s = worked?;
    if let Some(tally) = ended.map_err(failed)? {
        open.record(report_of(&tally), &tally.sample_ids);
    }
    let exchange_s = servers.take_exchange_s();
    Ok(match computes {
        true => exchange_s + waited_s,
        false => whole.elapsed_s(),
    })
}

/// Returns the report of a round, by the rank that reports for all.
pub(super) fn report_of(tally: &RoundTally) -> ShardReport {
    ShardReport {
        shard: Shard(0),
        samples: tally.counts.samples,
        targets: tally.counts.targets,
        skipped: tally.skipped,
        loss_sum: tally.loss_sum,
    }
}

/// Runs the threads that serve, and the updates of this worker. Returns the seconds in which it waited for leases.
fn work_and_serve(
    servers: &mut ParameterServers,
    rounds: &RoundPlan,
    (round, role): (Step, &RoundRole),
    feed: &mut Feed<'_>,
) -> Result<f64, TrainError> {
    let group = feed.member.group.clone();
    std::thread::scope(|scope| {
        let _guard = AbortOnPanic(&*group);
        let (mut serving, mut copying) = (Vec::new(), Vec::new());
        let mut started = Ok(());
        if let Some(server) = &role.server {
            for worker in server.workers() {
                let name = format!("ronde-serve-{worker}");
                let thread = Builder::new().name(name);
                match thread.spawn_scoped(scope, move || server.serve(worker)) {
                    Ok(thread) => serving.push(thread),
                    Err(source) => started = Err(TrainError::Thread { source }),
                }
            }
            for slot in server.copied_slots() {
                let thread = Builder::new().name(format!("ronde-copy-{slot}"));
                match thread.spawn_scoped(scope, move || server.serve_copy(slot)) {
                    Ok(thread) => copying.push(thread),
                    Err(source) => started = Err(TrainError::Thread { source }),
                }
            }
        }
        let worked = started.and_then(|()| match &role.client {
            Some(client) => updates(servers, rounds, (round, role, client), feed),
            None => Ok(0.0),
        });
        if let Err(error) = &worked {
            // The threads would wait for messages that are not sent any more.
            group.abort(&error.to_string());
        }
        let served = join(serving);
        let closed = match (&served, &role.server) {
            (Ok(()), Some(server)) => server.close(),
            _ => Ok(()),
        };
        let copied = join(copying);
        let waited_s = worked?;
        let served = served.and(closed).and(copied);
        served.map_err(|source| TrainError::of_step(round, source))?;
        Ok(waited_s)
    })
}

/// Computes updates until the round is complete. Returns the seconds in which it waited for leases.
fn updates(
    servers: &mut ParameterServers,
    rounds: &RoundPlan,
    (round, role, client): (Step, &RoundRole, &RoundClient),
    feed: &mut Feed<'_>,
) -> Result<f64, TrainError> {
    let failed = |source| TrainError::of_step(round, source);
    servers.push_pending(client).map_err(failed)?;
    let mut own = OwnUpdates::new(role.first_update, role.workers);
    let mut waited_s = 0.0;
    loop {
        let watch = Stopwatch::start();
        let Some(update) = client.lease().map_err(failed)? else {
            break;
        };
        waited_s += watch.elapsed_s();
        let (leased, micro_batches, ids) = feed.update(rounds, (round, update), &mut own)?;
        // An update that does not count is leased again.
        let computed = servers.compute(client, &leased, micro_batches, ids);
        computed.map_err(failed)?;
    }
    client.leave().map_err(failed)?;
    Ok(waited_s)
}

/// Waits for threads that serve; returns the first error.
pub(super) fn join(threads: Vec<ScopedJoinHandle<'_, Served>>) -> Served {
    let mut all = Ok(());
    for thread in threads {
        match thread.join() {
            Ok(served) => all = all.and(served),
            // This worker ends, as after its own panic.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    all
}
