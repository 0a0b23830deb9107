//! [`Feed`]: the input of a method from the training loop while it computes a transaction.

use std::sync::Arc;

use ronde_clock::Stopwatch;
use ronde_core::event::PhaseTimes;
use ronde_core::rounds::{InnerStep, RoundPlan};
use ronde_core::spans::SpanKind;
use ronde_core::{Shard, Step};
use ronde_data::{Batch, Loader, StepBatches};
use ronde_parallel::{LocalStep, MicroBatch, ParallelError, RoundStart, ServedUpdate};

use crate::error::TrainError;
use crate::job_group::JobGroup;
use crate::plan::Plan;
use crate::progress::RunProgress;
use crate::recording::WorkerRecorder;
use crate::training_data::TrainingData;

/// The micro-batches of a step, with the numbers of their samples in the data set.
pub(super) type LoadedStep = (Vec<Vec<u64>>, Vec<MicroBatch>);

/// The members, the samples and the learning rates of a transaction.
pub(crate) struct Feed<'a> {
    pub(crate) member: &'a JobGroup,
    pub(crate) plan: &'a Plan,
    pub(crate) progress: &'a RunProgress,
    pub(crate) recorder: &'a WorkerRecorder,
    pub(crate) data: &'a mut TrainingData,
    pub(crate) loader: &'a mut Loader,
    /// The times of the phases so far.
    pub(crate) times: &'a mut PhaseTimes,
}

impl Feed<'_> {
    /// Returns the samples of the next step of the loader by micro-batch, with their numbers in the data set. `random` is the step of
    /// their random numbers, `step` is the step of the run. Adds the wait for data to the times.
    pub(super) fn load(&mut self, (random, step): (Step, Step)) -> Result<LoadedStep, TrainError> {
        let (span, watch) = (self.recorder.spans.begin(), Stopwatch::start());
        let batches = next_batches(self.loader, random)?.batches;
        self.recorder.spans.end(span, SpanKind::Data, step.0);
        self.times.wait_data_s += watch.elapsed_s();
        self.data.micro_batches(batches, self.member)
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
            learning_rate: self.progress.learning_rate(self.plan, Step(number))?,
        })
    }

    /// Describes a round whose updates have no fixed order.
    pub(super) fn round_start(&self, rounds: &RoundPlan, round: Step) -> RoundStart {
        RoundStart {
            step: round,
            updates: u32::try_from(rounds.inner_steps(round)).unwrap_or(u32::MAX),
            first: rounds.steps_before(round),
            attempt: self.member.generation.0,
        }
    }

    /// Returns an update of such a round with its samples. Adds the wait for data to the times.
    pub(super) fn update(
        &mut self,
        rounds: &RoundPlan,
        (round, update): (Step, u32),
        own: &mut OwnUpdates,
    ) -> Result<(ServedUpdate, Vec<MicroBatch>, Vec<u64>), TrainError> {
        let (span, watch) = (self.recorder.spans.begin(), Stopwatch::start());
        let step = InnerStep {
            round,
            replica: Shard(0),
            index: update.into(),
        };
        let batches = own.batches(self, rounds, step)?;
        self.recorder.spans.end(span, SpanKind::Data, round.0);
        let (ids, micro_batches) = self.data.micro_batches(batches, self.member)?;
        self.times.wait_data_s += watch.elapsed_s();
        let number = Step(rounds.number(step));
        let update = ServedUpdate {
            update,
            random: rounds.unique(step),
            learning_rate: self.progress.learning_rate(self.plan, number)?,
        };
        Ok((update, micro_batches, ids.into_iter().flatten().collect()))
    }

    /// Returns the error of a round whose strategy has failed; a gradient that is not finite is reported with the learning rate.
    pub(super) fn diverged(&self, round: Step, source: ParallelError) -> TrainError {
        let rate = self
            .progress
            .learning_rate(self.plan, self.plan.rate_step(round));
        match rate {
            Ok(learning_rate) => TrainError::of_gradient(round, learning_rate, source),
            Err(error) => error,
        }
    }
}

/// The updates that a worker computes if no worker helps another one: every `stride`-th one from the first on.
pub(super) struct OwnUpdates {
    loader: Option<Loader>,
    first: u64,
    stride: u64,
    /// The number of the update that the loader returns next.
    next: u64,
}

impl OwnUpdates {
    pub(super) fn new(first: u64, stride: u64) -> Self {
        Self {
            loader: None,
            first,
            stride,
            next: 0,
        }
    }

    /// Returns the micro-batches of an update: from the loader of this worker's own ones, or from one for this update alone.
    fn batches(
        &mut self,
        feed: &Feed<'_>,
        rounds: &RoundPlan,
        step: InnerStep,
    ) -> Result<Vec<Batch>, TrainError> {
        let start = |stride: u64| {
            let steps = rounds.walk_every(step.round, step.index, stride);
            let train = Arc::clone(&feed.data.split.train);
            let settings = feed.data.settings(&*train);
            let spans = (feed.recorder.background.clone(), 0);
            Loader::start_inner(train, feed.plan.batches, (*rounds, steps), settings, spans)
        };
        let random = |index: u64| rounds.unique(InnerStep { index, ..step });
        let is_own = step.index % self.stride == self.first;
        if !is_own || self.loader.is_some() && self.next > step.index {
            let mut alone = start(u64::MAX)?;
            return Ok(next_batches(&mut alone, random(step.index))?.batches);
        }
        let loader = match &mut self.loader {
            Some(loader) => loader,
            None => {
                self.next = step.index;
                self.loader.insert(start(self.stride)?)
            }
        };
        loop {
            // Other workers have computed the updates between.
            let index = self.next;
            self.next += self.stride;
            let batches = next_batches(loader, random(index))?.batches;
            if index == step.index {
                return Ok(batches);
            }
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
