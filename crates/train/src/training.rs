//! [`Training`]: the step loop. A step is a transaction: compute, reduce, vote, then apply.

use std::sync::Arc;

use ronde_core::event::PhaseTimes;
use ronde_core::session::{Committed, Session, SessionError};
use ronde_core::weight_hash;
use ronde_core::{Collectives, Event, Generation, Rank, Step, Tracker};
use ronde_data::{Batch, Loader, Split, StepBatches};
use ronde_engine::Chain;
use ronde_parallel::{
    Applied, DataParallel, DataParallelConfig, MicroBatch, ModelState, ParallelError, Strategy,
};

use crate::clock::Stopwatch;
use crate::evaluate::{Evaluation, evaluate};
use crate::{Plan, TrainError, divergence};

/// Steps that the loader reads ahead.
const PREFETCH_STEPS: usize = 2;

/// A worker's place in the run: its group, and where events go.
#[derive(Clone)]
pub struct Place {
    /// The connected ranks.
    pub group: Arc<dyn Collectives>,
    /// Version of the membership.
    pub generation: Generation,
    /// This worker.
    pub rank: Rank,
    /// Where events go.
    pub tracker: Arc<dyn Tracker>,
}

/// What a finished training came to. Equal on all ranks but for the times.
#[derive(Debug, Clone)]
pub struct Trained {
    /// The last committed step.
    pub last: Option<Committed>,
    /// Result on the test set, if there is one.
    pub evaluation: Option<Evaluation>,
    /// Where this worker's time went.
    pub times: PhaseTimes,
    /// Samples used, over all epochs.
    pub samples: u64,
    /// Seconds from the first step to the end.
    pub duration_s: f64,
}

/// One rank's part of a run.
pub struct Training {
    place: Place,
    plan: Plan,
    strategy: DataParallel,
    session: Session,
    split: Split,
    times: PhaseTimes,
    samples: u64,
}

impl Training {
    /// Sets a run up. Cost: the optimizer state is allocated here.
    #[must_use]
    pub fn new(place: Place, plan: Plan, chain: Chain, split: Split) -> Self {
        let config = DataParallelConfig {
            optimizer: plan.config.optimizer,
            clip_norm: plan.config.train.clip_norm,
            bucket_bytes_max: plan.config.comm.bucket_bytes_max as usize,
            classes: split.train.classes() as usize,
        };
        let strategy =
            DataParallel::new(chain, place.group.clone(), plan.shards, plan.seeds, config);
        let mut session = Session::new(
            place.group.clone(),
            place.generation,
            plan.batches,
            plan.shards,
        );
        // Compared with the first vote: ranks that start from other weights must not train.
        session.set_digest(weight_hash::hash(strategy.state().values()));
        Self {
            place,
            plan,
            strategy,
            session,
            split,
            times: PhaseTimes::default(),
            samples: 0,
        }
    }

    /// The plan of the run.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The state of the model.
    #[must_use]
    pub fn state(&self) -> &ModelState {
        self.strategy.state()
    }

    /// The strategy: for tests that damage a weight, and for loading a state.
    pub fn strategy_mut(&mut self) -> &mut DataParallel {
        &mut self.strategy
    }

    /// Trains to the end of the plan and evaluates.
    ///
    /// # Errors
    /// The first thing that goes wrong; the group is then told, so that no rank waits for this one.
    pub fn run(&mut self) -> Result<Trained, TrainError> {
        let trained = self.run_steps();
        if let Err(error) = &trained {
            self.strategy.abort();
            self.place.group.abort(&error.to_string());
        }
        trained
    }

    fn run_steps(&mut self) -> Result<Trained, TrainError> {
        self.record_start();
        let mut loader = Loader::start(
            self.split.train.clone(),
            self.plan.batches,
            self.plan.shards,
            self.plan.shards.run(self.place.group.rank()),
            self.session.next_step().0..self.plan.steps,
            PREFETCH_STEPS,
        )?;
        let mut total = Stopwatch::start();
        let mut last = None;
        let mut evaluation = None;
        while self.session.next_step().0 < self.plan.steps {
            let committed = self.step(&mut loader)?;
            if self.evaluates_after(&committed) {
                evaluation = self.evaluate(committed.step)?;
            }
            last = Some(committed);
        }
        self.verify()?;
        let duration_s = total.lap_s();
        if evaluation.is_none() {
            let step = last
                .as_ref()
                .map_or(Step(0), |committed: &Committed| committed.step);
            evaluation = self.evaluate(step)?;
        }
        Ok(Trained {
            last,
            evaluation,
            times: self.times,
            samples: self.samples,
            duration_s,
        })
    }

    /// One step, from its batches to the changed weights.
    ///
    /// # Errors
    /// Data, engine, reduction or vote failed. Before the vote nothing has changed.
    pub fn step(&mut self, loader: &mut Loader) -> Result<Committed, TrainError> {
        let mut watch = Stopwatch::start();
        let mut times = PhaseTimes::default();
        let mut open = self.session.begin_step();
        let step = open.step();
        let failed = |source| TrainError::Step {
            step,
            source: Box::new(source),
        };

        let batches = next_batches(loader, step)?;
        times.wait_data_s = watch.lap_s();
        for batch in batches.batches {
            let (sample_ids, micro_batch) = split_ids(batch);
            let report = self.strategy.backward(step, micro_batch).map_err(failed)?;
            open.record(report, &sample_ids);
        }
        times.compute_s = watch.lap_s();
        let reduced = self.strategy.reduce().map_err(failed)?;
        let committed = match self.session.commit(open) {
            Err(error @ SessionError::Diverged { .. }) => return Err(self.diagnose(error)),
            other => other?,
        };
        times.communicate_s = watch.lap_s();
        let learning_rate = self.plan.learning_rate(step.0);
        if !committed.loss.is_finite() {
            return Err(TrainError::NotFinite {
                step,
                what: "the loss".to_owned(),
                learning_rate,
            });
        }
        let applied = self
            .strategy
            .apply(step, reduced, committed.samples, learning_rate)
            .map_err(|error| match error {
                ParallelError::NotFinite { tensor } => {
                    let what = format!("the gradient of {tensor}");
                    TrainError::NotFinite {
                        step,
                        what,
                        learning_rate,
                    }
                }
                source => failed(source),
            })?;
        self.session.set_digest(
            self.plan
                .hashing
                .digest(step, self.strategy.state().values()),
        );
        times.compute_s += watch.lap_s();
        self.times.add(&times);
        self.samples += committed.samples;
        self.record_step(&committed, applied, learning_rate, times);
        Ok(committed)
    }

    /// Compares the weights of all ranks after the last step.
    fn verify(&mut self) -> Result<(), TrainError> {
        match self.session.verify() {
            Err(error @ SessionError::Diverged { .. }) => Err(self.diagnose(error)),
            other => Ok(other?),
        }
    }

    fn diagnose(&self, error: SessionError) -> TrainError {
        let SessionError::Diverged { step, .. } = error else {
            return error.into();
        };
        match divergence::diagnose(&*self.place.group, self.strategy.state(), step) {
            Ok(report) => TrainError::Diverged { step, report },
            Err(_) => error.into(),
        }
    }

    fn evaluates_after(&self, committed: &Committed) -> bool {
        let every = self.plan.config.train.evaluate_every_epochs;
        let ended = committed.epoch_verdict.is_some();
        ended
            && every.is_some_and(|every| every > 0 && (committed.epoch.0 + 1).is_multiple_of(every))
            || committed.step.0 + 1 == self.plan.steps
    }

    fn evaluate(&mut self, step: Step) -> Result<Option<Evaluation>, TrainError> {
        let Some(test) = self.split.test.clone() else {
            return Ok(None);
        };
        let evaluation = evaluate(&*self.place.group, &mut self.strategy, &*test)?;
        if self.place.rank == Rank(0) {
            self.place.tracker.record(Event::Evaluated {
                step,
                loss: evaluation.loss,
                accuracy: evaluation.accuracy,
                samples: evaluation.samples,
            });
        }
        Ok(Some(evaluation))
    }

    fn record_start(&self) {
        if self.place.rank != Rank(0) {
            return;
        }
        self.place.tracker.record(Event::RunStarted {
            name: self.plan.config.run.name.clone(),
            plan: self.plan.identity.hex(),
            world_size: self.place.group.size() as u32,
            logical_shards: self.plan.shards.shards(),
            parameters: self.strategy.state().parameters() as u64,
            steps: self.plan.steps,
            epochs: self.plan.epochs,
            samples: self.plan.batches.samples(),
        });
    }

    fn record_step(
        &self,
        committed: &Committed,
        applied: Applied,
        learning_rate: f64,
        times: PhaseTimes,
    ) {
        let Place {
            rank,
            group,
            tracker,
            ..
        } = &self.place;
        let bytes_sent = group.bytes_sent();
        tracker.record(Event::StepTimes {
            rank: *rank,
            step: committed.step,
            times,
            bytes_sent,
        });
        if *rank != Rank(0) {
            return;
        }
        tracker.record(Event::StepCommitted {
            step: committed.step,
            epoch: committed.epoch,
            generation: committed.generation,
            loss: committed.loss,
            samples: committed.samples,
            learning_rate,
            gradient_norm: applied.gradient_norm,
            duration_s: times.total_s(),
        });
        if let Some(verdict) = committed.epoch_verdict {
            tracker.record(Event::EpochFinished {
                epoch: verdict.epoch,
                used_once: verdict.used_once,
                missing: verdict.missing,
                repeated: verdict.repeated,
            });
        }
    }
}

fn next_batches(loader: &mut Loader, step: Step) -> Result<StepBatches, TrainError> {
    loader
        .next()?
        .filter(|batches| batches.step == step)
        .ok_or_else(|| TrainError::Impossible {
            problem: format!("the loader has no batches for step {step}"),
            hint: "this is a bug of ronde; please report it with the run file".to_owned(),
        })
}

/// A shard's sample ids, which travel beside its samples until their backward is done.
fn split_ids(batch: Batch) -> (Vec<u64>, MicroBatch) {
    let Batch {
        shard,
        sample_ids,
        shape,
        features,
        labels,
    } = batch;
    (
        sample_ids,
        MicroBatch {
            shard,
            shape,
            features,
            labels,
        },
    )
}
