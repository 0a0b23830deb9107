//! A round of decentralised training: the updates that this worker computes, and the threads that answer the others.

use std::thread::Builder;

use ronde_clock::Stopwatch;
use ronde_core::Step;
use ronde_core::rounds::RoundPlan;
use ronde_parallel::{AbortOnPanic, Gossip, GossipPeer};
use ronde_protocol::transaction::OpenStep;

use super::feed::{Feed, OwnUpdates};
use super::served::{join, report_of};
use crate::error::TrainError;

/// Computes the updates of a round that this rank gets, and answers the other ranks. Returns the seconds in which it waited for them.
///
/// # Errors
/// Data or engine failed, or a rank was lost. The state is that before the round, but the replica stays for the next group.
pub(super) fn compute(
    gossip: &mut Gossip,
    rounds: &RoundPlan,
    feed: &mut Feed<'_>,
    open: &mut OpenStep,
) -> Result<f64, TrainError> {
    let round = open.step();
    let peer = gossip.begin_round(&feed.round_start(rounds, round));
    let peer = peer.map_err(|source| feed.diverged(round, source))?;
    let worked = work_and_answer(gossip, rounds, (round, &peer), feed);
    let watch = Stopwatch::start();
    let ended = gossip.end_round(peer, worked.is_ok());
    let waited_s = worked?;
    if let Some(tally) = ended.map_err(|source| feed.diverged(round, source))? {
        if let Some(all) = tally.all {
            open.record(report_of(&all), &[]);
        }
        open.record_samples(&tally.sample_ids);
    }
    Ok(gossip.take_exchange_s() + waited_s + watch.elapsed_s())
}

/// Runs the threads that answer the other ranks, and the updates of this worker. Returns the seconds in which it waited for others.
fn work_and_answer(
    gossip: &mut Gossip,
    rounds: &RoundPlan,
    (round, peer): (Step, &GossipPeer),
    feed: &mut Feed<'_>,
) -> Result<f64, TrainError> {
    let group = feed.member.group.clone();
    std::thread::scope(|scope| {
        let _guard = AbortOnPanic(&*group);
        let (mut answering, mut started) = (Vec::new(), Ok(()));
        for other in peer.others() {
            let thread = Builder::new().name(format!("ronde-gossip-{other}"));
            match thread.spawn_scoped(scope, move || peer.serve(other)) {
                Ok(thread) => answering.push(thread),
                Err(source) => started = Err(TrainError::Thread { source }),
            }
        }
        let worked = started.and_then(|()| updates(gossip, rounds, (round, peer), feed));
        if let Err(error) = &worked {
            // The threads would wait for messages that are not sent any more.
            group.abort(&error.to_string());
        }
        let watch = Stopwatch::start();
        let answered = join(answering);
        let waited_s = worked?;
        answered.map_err(|source| TrainError::of_step(round, source))?;
        Ok(waited_s + watch.elapsed_s())
    })
}

/// Computes updates until none is left. Returns the seconds in which it waited for an answer.
fn updates(
    gossip: &mut Gossip,
    rounds: &RoundPlan,
    (round, peer): (Step, &GossipPeer),
    feed: &mut Feed<'_>,
) -> Result<f64, TrainError> {
    let group = &feed.member.group;
    let mut own = OwnUpdates::new(group.rank().0.into(), group.size() as u64);
    let mut waited_s = 0.0;
    loop {
        let watch = Stopwatch::start();
        let claimed = peer.claim();
        let Some(update) = claimed.map_err(|source| feed.diverged(round, source))? else {
            break;
        };
        waited_s += watch.elapsed_s();
        let (claimed, micro_batches, ids) = feed.update(rounds, (round, update), &mut own)?;
        let computed = gossip.compute(peer, &claimed, micro_batches, ids);
        computed.map_err(|source| feed.diverged(round, source))?;
    }
    let left = peer.leave();
    left.map_err(|source| feed.diverged(round, source))?;
    Ok(waited_s)
}
