//! A round of parameter servers: the updates that this worker computes, and the threads that serve the others.

use std::sync::Arc;
use std::thread::{Builder, ScopedJoinHandle};

use ronde_clock::Stopwatch;
use ronde_core::event::PhaseTimes;
use ronde_core::rounds::{InnerStep, RoundPlan};
use ronde_core::spans::SpanKind;
use ronde_core::{Event, Shard, Step};
use ronde_data::{Batch, Loader};
use ronde_parallel::{
    AbortOnPanic, ParallelError, RoundClient, RoundRole, RoundStart, ServedRounds, ServedUpdate,
};
use ronde_protocol::transaction::{CommittedStep, OpenStep, ShardReport};

use super::Training;
use super::step::next_batches;
use crate::error::TrainError;

/// The loader of the updates that a worker computes if no worker helps another one.
pub(super) struct OwnUpdates {
    loader: Loader,
    /// The number of the update that it returns next.
    next: u64,
}

/// The result of a serving thread.
pub(super) type Served = Result<(), ParallelError>;

impl Training {
    /// Computes the updates of a round that this rank gets, and serves those of others. Returns the seconds in which it waited for
    /// servers, or only served; adds the waits for data to `times`.
    ///
    /// # Errors
    /// Data or engine failed, or a rank was lost. The state is that before the round, but the slots stay for the next group.
    pub(super) fn compute_served(
        &mut self,
        rounds: &RoundPlan,
        open: &mut OpenStep,
        times: &mut PhaseTimes,
    ) -> Result<f64, TrainError> {
        let (round, whole) = (open.step(), Stopwatch::start());
        let start = RoundStart {
            step: round,
            updates: u32::try_from(rounds.inner_steps(round)).unwrap_or(u32::MAX),
            first: rounds.steps_before(round),
            attempt: self.member.generation.0,
        };
        let role = self.served(round, |served| served.begin_round(&start))?;
        let computes = role.client.is_some();
        let worked = self.work_and_serve(rounds, round, &role, times);
        let ended = self.served(round, |served| served.end_round(role, worked.is_ok()));
        let waited_s = worked?;
        if let Some(tally) = ended? {
            let report = ShardReport {
                shard: Shard(0),
                samples: tally.counts.samples,
                targets: tally.counts.targets,
                skipped: tally.skipped,
                loss_sum: tally.loss_sum,
            };
            open.record(report, &tally.sample_ids);
        }
        let exchange_s = self.served(round, |served| Ok(served.take_exchange_s()))?;
        Ok(match computes {
            true => exchange_s + waited_s,
            false => whole.elapsed_s(),
        })
    }

    /// Runs the threads that serve, and the updates of this worker. Returns the seconds in which it waited for leases.
    fn work_and_serve(
        &mut self,
        rounds: &RoundPlan,
        round: Step,
        role: &RoundRole,
        times: &mut PhaseTimes,
    ) -> Result<f64, TrainError> {
        let group = self.member.group.clone();
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
                Some(client) => self.updates(rounds, round, (role, client), times),
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
            served.map_err(|source| TrainError::Step {
                step: round,
                source: Box::new(source),
            })?;
            Ok(waited_s)
        })
    }

    /// Computes updates until the round is complete. Returns the seconds in which it waited for leases.
    fn updates(
        &mut self,
        rounds: &RoundPlan,
        round: Step,
        (role, client): (&RoundRole, &RoundClient),
        times: &mut PhaseTimes,
    ) -> Result<f64, TrainError> {
        self.served(round, |served| served.push_pending(client))?;
        let mut own = None;
        let mut waited_s = 0.0;
        loop {
            let mut watch = Stopwatch::start();
            let Some(update) = self.served(round, |_| client.lease())? else {
                break;
            };
            waited_s += watch.lap_s();
            let (spans, span) = (self.recorder.spans.clone(), self.recorder.spans.begin());
            let step = InnerStep {
                round,
                replica: Shard(0),
                index: update.into(),
            };
            let every = (role.first_update, role.workers);
            let batches = self.update_batches(rounds, step, every, &mut own)?;
            spans.end(span, SpanKind::Data, round.0);
            let (ids, micro_batches) = self.micro_batches(batches)?;
            times.wait_data_s += watch.lap_s();
            let leased = ServedUpdate {
                update,
                random: rounds.unique(step),
                learning_rate: self.learning_rate(Step(rounds.number(step)))?,
            };
            let ids = ids.into_iter().flatten().collect();
            // An update that does not count is leased again.
            self.served(round, |served| {
                served.compute(client, &leased, micro_batches, ids)
            })?;
        }
        self.served(round, |_| client.leave())?;
        Ok(waited_s)
    }

    /// Returns the micro-batches of an update: from the loader of this worker's own ones, which are every `stride`-th from `first` on,
    /// or from one for this update alone.
    pub(super) fn update_batches(
        &self,
        rounds: &RoundPlan,
        step: InnerStep,
        (first, stride): (u64, u64),
        own: &mut Option<OwnUpdates>,
    ) -> Result<Vec<Batch>, TrainError> {
        let start = |first: u64, stride: u64| {
            let steps = rounds.walk_every(step.round, first, stride);
            let train = Arc::clone(&self.split.train);
            let settings = self.loader_settings(&*train);
            let spans = (self.recorder.background.clone(), 0);
            Loader::start_inner(train, self.plan.batches, (*rounds, steps), settings, spans)
        };
        let random = |index: u64| rounds.unique(InnerStep { index, ..step });
        let is_own = step.index % stride == first;
        if !is_own || own.as_ref().is_some_and(|own| own.next > step.index) {
            let mut alone = start(step.index, u64::MAX)?;
            return Ok(next_batches(&mut alone, random(step.index))?.batches);
        }
        let own = match own {
            Some(own) => own,
            None => own.insert(OwnUpdates {
                loader: start(step.index, stride)?,
                next: step.index,
            }),
        };
        loop {
            // Other workers have computed the updates between.
            let index = own.next;
            own.next += stride;
            let batches = next_batches(&mut own.loader, random(index))?.batches;
            if index == step.index {
                return Ok(batches);
            }
        }
    }

    /// Calls a function of the strategy, whose transaction is a round at servers.
    fn served<T>(
        &mut self,
        round: Step,
        call: impl FnOnce(&mut dyn ServedRounds) -> Result<T, ParallelError>,
    ) -> Result<T, TrainError> {
        let called = match self.strategy.served_rounds() {
            Some(served) => call(served),
            None => Err(ParallelError::OutOfOrder {
                problem: "the strategy of this run has no servers".to_owned(),
            }),
        };
        called.map_err(|source| TrainError::Step {
            step: round,
            source: Box::new(source),
        })
    }

    /// Adds the staleness of the gradients of a committed round to the events.
    pub(super) fn record_staleness(&mut self, committed: &CommittedStep) {
        let Some(served) = self.strategy.served_rounds() else {
            return;
        };
        let workers = served.staleness().to_vec();
        self.history.push(Event::Staleness {
            step: committed.step,
            workers,
        });
    }
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
