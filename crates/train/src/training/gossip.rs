//! A round of decentralised training: the updates that this worker computes, and the threads that answer the others.

use std::thread::Builder;

use ronde_clock::Stopwatch;
use ronde_core::event::PhaseTimes;
use ronde_core::rounds::{InnerStep, RoundPlan};
use ronde_core::spans::SpanKind;
use ronde_core::{Event, Shard, Step};
use ronde_parallel::{
    AbortOnPanic, GossipPeer, GossipRounds, ParallelError, RoundStart, ServedUpdate,
};
use ronde_protocol::transaction::{CommittedStep, OpenStep, ShardReport};

use super::Training;
use super::served::join;
use crate::error::TrainError;

impl Training {
    /// Computes the updates of a round that this rank gets, and answers the other ranks. Returns the seconds in which it waited for them;
    /// adds the waits for data to `times`.
    ///
    /// # Errors
    /// Data or engine failed, or a rank was lost. The state is that before the round, but the replica stays for the next group.
    pub(super) fn compute_gossip(
        &mut self,
        rounds: &RoundPlan,
        open: &mut OpenStep,
        times: &mut PhaseTimes,
    ) -> Result<f64, TrainError> {
        let round = open.step();
        let start = RoundStart {
            step: round,
            updates: u32::try_from(rounds.inner_steps(round)).unwrap_or(u32::MAX),
            first: rounds.steps_before(round),
            attempt: self.member.generation.0,
        };
        let peer = self.gossip(round, |gossip| gossip.begin_round(&start))?;
        let worked = self.work_and_answer(rounds, round, &peer, times);
        let mut watch = Stopwatch::start();
        let ended = self.gossip(round, |gossip| gossip.end_round(peer, worked.is_ok()));
        let waited_s = worked?;
        if let Some(tally) = ended? {
            if let Some(all) = tally.all {
                let report = ShardReport {
                    shard: Shard(0),
                    samples: all.counts.samples,
                    targets: all.counts.targets,
                    skipped: all.skipped,
                    loss_sum: all.loss_sum,
                };
                open.record(report, &[]);
            }
            open.record_samples(&tally.sample_ids);
        }
        let exchange_s = self.gossip(round, |gossip| Ok(gossip.take_exchange_s()))?;
        Ok(exchange_s + waited_s + watch.lap_s())
    }

    /// Runs the threads that answer the other ranks, and the updates of this worker. Returns the seconds in which it waited for others.
    fn work_and_answer(
        &mut self,
        rounds: &RoundPlan,
        round: Step,
        peer: &GossipPeer,
        times: &mut PhaseTimes,
    ) -> Result<f64, TrainError> {
        let group = self.member.group.clone();
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
            let worked = started.and_then(|()| self.replica_updates(rounds, round, peer, times));
            if let Err(error) = &worked {
                // The threads would wait for messages that are not sent any more.
                group.abort(&error.to_string());
            }
            let mut watch = Stopwatch::start();
            let answered = join(answering);
            let waited_s = worked?;
            answered.map_err(|source| TrainError::Step {
                step: round,
                source: Box::new(source),
            })?;
            Ok(waited_s + watch.lap_s())
        })
    }

    /// Computes updates until none is left. Returns the seconds in which it waited for an answer.
    fn replica_updates(
        &mut self,
        rounds: &RoundPlan,
        round: Step,
        peer: &GossipPeer,
        times: &mut PhaseTimes,
    ) -> Result<f64, TrainError> {
        let group = &self.member.group;
        let every = (u64::from(group.rank().0), group.size() as u64);
        let mut own = None;
        let mut waited_s = 0.0;
        loop {
            let mut watch = Stopwatch::start();
            let Some(update) = self.gossip(round, |_| peer.claim())? else {
                break;
            };
            waited_s += watch.lap_s();
            let (spans, span) = (self.recorder.spans.clone(), self.recorder.spans.begin());
            let step = InnerStep {
                round,
                replica: Shard(0),
                index: update.into(),
            };
            let batches = self.update_batches(rounds, step, every, &mut own)?;
            spans.end(span, SpanKind::Data, round.0);
            let (ids, micro_batches) = self.micro_batches(batches)?;
            times.wait_data_s += watch.lap_s();
            let claimed = ServedUpdate {
                update,
                random: rounds.unique(step),
                learning_rate: self.learning_rate(Step(rounds.number(step)))?,
            };
            let ids = ids.into_iter().flatten().collect();
            self.gossip(round, |gossip| {
                gossip.compute(peer, &claimed, micro_batches, ids)
            })?;
        }
        self.gossip(round, |_| peer.leave())?;
        Ok(waited_s)
    }

    /// Calls a function of the strategy, whose transaction is a round of replicas that average in pairs.
    fn gossip<T>(
        &mut self,
        round: Step,
        call: impl FnOnce(&mut dyn GossipRounds) -> Result<T, ParallelError>,
    ) -> Result<T, TrainError> {
        let called = match self.strategy.gossip_rounds() {
            Some(gossip) => call(gossip),
            None => Err(ParallelError::OutOfOrder {
                problem: "the strategy of this run has no rounds of pairs".to_owned(),
            }),
        };
        called.map_err(|source| self.round_failed(round, source))
    }

    /// Returns the error of a round whose strategy has failed.
    fn round_failed(&self, round: Step, source: ParallelError) -> TrainError {
        match self.learning_rate(self.rate_step(round)) {
            Ok(learning_rate) => super::step::step_failed(round, learning_rate, source),
            Err(error) => error,
        }
    }

    /// Adds the exchanges of a committed round to the events.
    pub(super) fn record_exchanges(&mut self, committed: &CommittedStep) {
        let Some(gossip) = self.strategy.gossip_rounds() else {
            return;
        };
        let summary = gossip.summary().clone();
        self.history.push(Event::ReplicasAveraged {
            step: committed.step,
            distance: summary.distance,
            exchanges: summary.exchanges,
            missed: summary.missed,
            exchanged_bytes: summary.exchanged_bytes,
            updates: summary.updates,
        });
    }
}
