//! One step of a [`Training`]: compute, reduce, vote, apply and record.

use ronde_clock::Stopwatch;
use ronde_core::event::{PhaseTimes, SampleUnit};
use ronde_core::spans::{SpanKind, SpanStart};
use ronde_core::{Event, Rank, SkippedUpdate, Step};
use ronde_data::{Batch, Loader, StepBatches};
use ronde_parallel::{CommittedUpdate, MicroBatch, ParallelError, ReducedGradient, UpdateReport};
use ronde_protocol::transaction::{CommittedStep, OpenStep, TransactionError};

use super::{SKIPPED_REPORTED_MAX, Training};
use crate::callback::{Actions, StepReport};
use crate::divergence;
use crate::error::TrainError;
use crate::job_group::JobGroup;
use crate::micro_batch::micro_batch;
use crate::model_copies::held_weights;
use crate::predicted_stages::PredictedStages;
use crate::process_memory::ProcessMemory;

/// An update whose weights are not up to date on all ranks yet.
pub(super) struct AppliedStep {
    update: UpdateReport,
    learning_rate: f64,
    updating: Stopwatch,
    /// The begin of the optimizer, for a recording.
    span: SpanStart,
}

/// The measured times of a step.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepTiming {
    times: PhaseTimes,
    /// When this worker arrived at the last gradient reduction, on the clock of rank 0.
    arrived_s: Option<f64>,
}

impl Training {
    /// Runs one step, from its batches to the updated weights.
    ///
    /// # Errors
    /// Data, engine, reduction or vote failed. The state changes only after the vote.
    pub fn step(&mut self, loader: &mut Loader) -> Result<CommittedStep, TrainError> {
        let spans = self.recorder.spans.clone();
        let whole = spans.begin();
        let mut watch = Stopwatch::start();
        let mut times = PhaseTimes::default();
        let mut open = self.session.begin_step();
        let step = open.step();
        let failed = |source| TrainError::Step {
            step,
            source: Box::new(source),
        };

        self.strategy.take_times();
        let mut reduced_before_s = self.under_way_s();
        let exchange_s = self.compute(loader, &mut open, &mut times)?;
        if self.plan.config.sync.has_one_report() {
            // Threads that answer other workers wait for requests during the whole round.
            reduced_before_s = self.under_way_s();
        }
        let called = self.member.group.called_at_ns();
        let arrived_s = called.map(|called| self.alignment.seconds(called));
        times.compute_s = watch.lap_s() - times.wait_data_s - exchange_s;
        let computed = self.strategy.take_times();
        (times.forward_s, times.backward_s) = (computed.forward_s, computed.backward_s);
        open.set_busy(times.wait_data_s + times.compute_s - computed.waited_s);
        self.heal_if_received()?;
        let waiting = Stopwatch::start();
        let span = spans.begin();
        let reduced = self.strategy.reduce();
        let reduced = match reduced {
            Ok(reduced) => reduced,
            Err(error) => {
                let learning_rate = self.learning_rate(self.rate_step(step))?;
                return Err(step_failed(step, learning_rate, error));
            }
        };
        spans.end(span, SpanKind::Reduce, step.0);
        times.waited_s = waiting.elapsed_s();
        times.reducing_s = self.under_way_s() - reduced_before_s;
        let (number, targets) = (self.session.updates() + 1, open.counts().targets);
        let sums = self.strategy.vote_sums(number, &reduced, targets);
        self.session.attach_sums(sums.map_err(failed)?);
        let advanced = self.transfer.advance(&*self.member.group);
        advanced.map_err(TrainError::Heal)?;
        self.finish_copy()?;
        self.prepare_vote();
        let span = spans.begin();
        let committed = match self.member.commit(&mut self.session, open) {
            Err(error @ TransactionError::Diverged { .. }) => return Err(self.diagnose(error)),
            Err(error) => {
                // Other members may have received all votes; then this gradient is final.
                self.held = Some((step, reduced));
                return Err(error.into());
            }
            Ok(committed) => committed,
        };
        spans.end(span, SpanKind::Vote, step.0);
        times.communicate_s = watch.lap_s() + exchange_s;
        let timing = StepTiming { times, arrived_s };
        self.apply_or_defer(&committed, reduced, timing)?;
        spans.end(whole, SpanKind::Step, step.0);
        // Stored gradients have the current bucket sizes, so they must not change.
        if !committed.requests.heals {
            self.step_took(times.compute_s + times.communicate_s)?;
        }
        Ok(committed)
    }

    /// Computes this rank's part of a step. Returns the seconds in which it waited for other ranks; adds the times of the phases to
    /// `times`.
    fn compute(
        &mut self,
        loader: &mut Loader,
        open: &mut OpenStep,
        times: &mut PhaseTimes,
    ) -> Result<f64, TrainError> {
        let sync = &self.plan.config.sync;
        match self.plan.rounds {
            Some(rounds) if sync.stages().is_some() => {
                self.compute_stages(&rounds, loader, open, times)
            }
            Some(rounds) if sync.servers().is_some() => self.compute_served(&rounds, open, times),
            Some(rounds) if sync.gossip_steps().is_some() => {
                self.compute_gossip(&rounds, open, times)
            }
            Some(rounds) => {
                self.compute_round(&rounds, loader, open, times)?;
                Ok(0.0)
            }
            None => {
                self.compute_shards(loader, open, times)?;
                Ok(0.0)
            }
        }
    }

    /// Loads the shards of this rank, computes their gradients and starts the reductions. Adds the wait for data to `times`.
    fn compute_shards(
        &mut self,
        loader: &mut Loader,
        open: &mut OpenStep,
        times: &mut PhaseTimes,
    ) -> Result<(), TrainError> {
        let step = open.step();
        let (sample_ids, micro_batches) = self.load_step(loader, (step, step), times)?;
        let computed = self.strategy.backward(step, micro_batches);
        let reports = computed.map_err(|source| TrainError::Step {
            step,
            source: Box::new(source),
        })?;
        for (mut report, sample_ids) in reports.into_iter().zip(sample_ids) {
            report.skipped = sample_ids.len() as u64 - report.samples;
            open.record(report, &sample_ids);
        }
        Ok(())
    }

    /// Returns the samples of the next step of the loader by micro-batch, with their numbers in the data set. `random` is the step of
    /// their random numbers, `step` that of the run. Adds the wait for data to `times`.
    pub(super) fn load_step(
        &mut self,
        loader: &mut Loader,
        (random, step): (Step, Step),
        times: &mut PhaseTimes,
    ) -> Result<(Vec<Vec<u64>>, Vec<MicroBatch>), TrainError> {
        let (spans, span) = (self.recorder.spans.clone(), self.recorder.spans.begin());
        let mut watch = Stopwatch::start();
        let batches = next_batches(loader, random)?.batches.into_iter();
        spans.end(span, SpanKind::Data, step.0);
        times.wait_data_s += watch.lap_s();
        self.micro_batches(batches)
    }

    /// Returns the numbers of samples and the micro-batches of loaded batches, and reports their bad records.
    ///
    /// # Errors
    /// Too few samples are left.
    pub(super) fn micro_batches(
        &mut self,
        batches: impl IntoIterator<Item = Batch>,
    ) -> Result<(Vec<Vec<u64>>, Vec<MicroBatch>), TrainError> {
        let batches = batches.into_iter();
        let (sample_ids, micro_batches): (Vec<_>, Vec<_>) = batches
            .inspect(|batch| self.report_skipped(batch))
            .map(micro_batch)
            .unzip();
        self.batch_norms.check_loaded(&micro_batches)?;
        Ok((sample_ids, micro_batches))
    }

    /// Returns the summed duration of the operations of all groups of this rank, in seconds.
    fn under_way_s(&self) -> f64 {
        let part = self.strategy.part_group();
        self.member.group.under_way_s() + part.map_or(0.0, |group| group.under_way_s())
    }

    /// Applies the gradient of a final step, or stores it until this rank has the whole state.
    fn apply_or_defer(
        &mut self,
        committed: &CommittedStep,
        reduced: ReducedGradient,
        timing: StepTiming,
    ) -> Result<(), TrainError> {
        if self.session.is_complete() {
            let applied = self.apply(committed, reduced)?;
            self.unfinished = Some((committed.clone(), applied, timing));
            self.gather_weights(committed.step)?;
            self.finish_applied();
        } else {
            self.transfer.defer(committed.clone(), reduced, timing);
        }
        Ok(())
    }

    /// Applies the gradient of a final step to the state that this rank holds. No other rank takes part, so it also works
    /// after the group has failed; [`Training::gather_weights`] and [`Training::finish_step`] must follow.
    pub(super) fn apply(
        &mut self,
        committed: &CommittedStep,
        reduced: ReducedGradient,
    ) -> Result<AppliedStep, TrainError> {
        let span = self.recorder.spans.begin();
        let updating = Stopwatch::start();
        let step = committed.step;
        let learning_rate = self.learning_rate(self.rate_step(step))?;
        self.check_skipped(step)?;
        if !committed.loss.is_finite() && committed.targets > 0 {
            return Err(TrainError::NotFinite {
                step,
                what: format!("the loss ({})", self.plan.objective.loss.name()),
                learning_rate,
            });
        }
        self.keep_best(step);
        self.gathered = Some(step);
        self.record_gradient(step, &reduced, committed.targets);
        let update = CommittedUpdate {
            step,
            number: committed.updates,
            counts: committed.counts(),
            sums: &committed.sums,
            learning_rate,
        };
        let update = self.strategy.apply(&update, reduced);
        let update = update.map_err(|error| step_failed(step, learning_rate, error))?;
        self.copies
            .update_average(step, held_weights(&*self.strategy));
        Ok(AppliedStep {
            update,
            learning_rate,
            updating,
            span,
        })
    }

    /// Brings the weights of this rank up to date with those that other ranks hold. All members call it together.
    pub(super) fn gather_weights(&mut self, step: Step) -> Result<(), TrainError> {
        self.gather_rest(step, 0, Some(step))
    }

    /// Does the same from element `first` on, with the weights that are compared after the step `compared`, or all of them.
    pub(super) fn gather_rest(
        &mut self,
        step: Step,
        first: usize,
        compared: Option<Step>,
    ) -> Result<(), TrainError> {
        let gathered = self.strategy.gather_rest(first, compared);
        gathered.map_err(|source| TrainError::Step {
            step,
            source: Box::new(source),
        })
    }

    /// Records the step that was applied last, after its weights have been gathered, unless that is done.
    pub(super) fn finish_applied(&mut self) {
        if let Some((committed, applied, timing)) = self.unfinished.take() {
            self.finish_step(&committed, applied, timing);
        }
    }

    /// Loads the weights of a step that was applied before a new generation, and records it, unless there is none.
    pub(super) fn finish_unfinished(&mut self) {
        if self.unfinished.is_some() {
            self.strategy.reload();
            self.finish_applied();
        }
    }

    /// Records a step whose weights are up to date. `timing` holds the times of the phases before the update.
    pub(super) fn finish_step(
        &mut self,
        committed: &CommittedStep,
        applied: AppliedStep,
        StepTiming {
            mut times,
            arrived_s,
        }: StepTiming,
    ) {
        let AppliedStep {
            update,
            learning_rate,
            updating,
            span,
        } = applied;
        let step = committed.step;
        times.optimizer_s = updating.elapsed_s();
        self.record_weights(step);
        let digest = self.digest(step);
        self.session.set_digest(digest);
        self.recorder.spans.end(span, SpanKind::Optimizer, step.0);
        times.compute_s += updating.elapsed_s();
        self.times.add(&times);
        self.last = Some(committed.clone());
        let timing = StepTiming { times, arrived_s };
        self.record_step(committed, update, learning_rate, timing);
        let report = StepReport {
            step,
            epoch: committed.epoch,
            loss: committed.loss,
            samples: committed.samples,
            learning_rate,
            gradient_norm: update.gradient_norm,
        };
        // The vote on this step has carried the earlier requests.
        self.progress.actions = Actions::default();
        for callback in &mut self.callbacks {
            callback.after_step(&report, &mut self.progress.actions);
        }
    }

    /// Returns the learning rate of a step.
    pub(super) fn learning_rate(&self, step: Step) -> Result<f64, TrainError> {
        let rate = self.plan.learning_rate.at(step);
        let rate = self.progress.reduced(rate, &self.plan.config.train);
        if rate.is_finite() && rate >= 0.0 {
            return Ok(rate);
        }
        Err(TrainError::LearningRate {
            step,
            name: self.plan.learning_rate.name().to_owned(),
            rate,
        })
    }

    /// Returns the number of samples that were skipped up to a committed step, on all ranks and in all epochs.
    fn skipped_samples(&self, step: Step) -> u64 {
        self.planned_samples(step)
            .saturating_sub(self.session.samples())
    }

    /// Returns the number of skipped records for the summary.
    pub(super) fn skipped_records(&self) -> u64 {
        let last = self.last.as_ref();
        let samples = last.map_or(0, |last| self.skipped_samples(last.step));
        self.split.train.description().bad_records.skipped + samples
    }

    /// Returns the number of samples up to a step, including skipped ones.
    fn planned_samples(&self, step: Step) -> u64 {
        let batch = self.plan.batches.batch(step);
        batch.epoch.0 * self.plan.batches.samples_per_epoch() + batch.positions.end
    }

    /// Returns an error if more samples were skipped than the data set allows. All ranks get the same result, because it
    /// depends only on committed steps.
    fn check_skipped(&self, step: Step) -> Result<(), TrainError> {
        let policy = self.split.train.description().bad_records;
        let Some(limit) = policy.skip_limit else {
            return Ok(());
        };
        let skipped = self.skipped_samples(step);
        // At least an epoch, so that a bad record in the first steps does not end the run.
        let of = self
            .planned_samples(step)
            .max(self.plan.batches.samples_per_epoch());
        if skipped as f64 <= limit * of as f64 {
            return Ok(());
        }
        Err(TrainError::TooManySkipped {
            step,
            skipped,
            of,
            limit,
        })
    }

    /// Reports bad records, each once, because they occur again in every epoch.
    pub(super) fn report_skipped(&mut self, batch: &Batch) {
        for bad in &batch.skipped {
            let position = (bad.file.clone(), bad.offset, bad.record);
            let is_full = self.skipped.len() >= SKIPPED_REPORTED_MAX;
            if is_full || !self.skipped.insert(position) {
                continue;
            }
            let rest = if self.skipped.len() == SKIPPED_REPORTED_MAX {
                "; further bad records are not listed"
            } else {
                ""
            };
            self.member.tracker.record(Event::Notice {
                rank: Some(self.member.rank),
                message: format!("skipped: {bad}{rest}"),
            });
        }
    }

    /// Returns the hash of the weights that are compared after a step.
    pub(super) fn digest(&self, step: Step) -> u64 {
        self.strategy.digest(Some(step))
    }

    /// Compares the weights of all ranks after the last step.
    pub(super) fn verify(&mut self) -> Result<(), TrainError> {
        match self.session.verify() {
            Err(error @ TransactionError::Diverged { .. }) => Err(self.diagnose(error)),
            other => Ok(other?),
        }
    }

    fn diagnose(&self, error: TransactionError) -> TrainError {
        let TransactionError::Diverged { step, .. } = error else {
            return error.into();
        };
        match divergence::diagnose(&*self.member.group, self.strategy.state(), step) {
            Ok(report) => TrainError::Diverged { step, report },
            Err(_) => error.into(),
        }
    }

    pub(super) fn record_start(&self) {
        if self.member.rank != Rank(0) {
            return;
        }
        let rounds = self.plan.rounds.as_ref();
        let rounds = rounds.and_then(|rounds| self.plan.config.sync.describe(rounds));
        let compression = self
            .plan
            .config
            .compression
            .describe(self.plan.rounds.is_some());
        let division = self.division();
        let predicted = self.predicted.as_ref().map(PredictedStages::describe);
        for message in [
            self.parts.describe(&self.mesh),
            predicted,
            compression,
            division,
            rounds,
        ] {
            let Some(message) = message else { continue };
            let rank = None;
            self.member.tracker.record(Event::Notice { rank, message });
        }
        self.member.tracker.record(Event::RunStarted {
            name: self.plan.config.run.name.clone(),
            plan: self.plan.identity.hex(),
            world_size: self.member.group.size() as u32,
            logical_shards: self.mesh.shards().shards(),
            parameters: self.strategy.state().parameters() as u64,
            steps: self.plan.steps,
            epochs: self.plan.epochs,
            samples: self.plan.batches.samples(),
            unit: match *self.split.train.description().shape {
                [1 | 3, _, _] => SampleUnit::Image,
                _ => SampleUnit::Sample,
            },
        });
    }

    fn record_step(
        &mut self,
        committed: &CommittedStep,
        applied: UpdateReport,
        learning_rate: f64,
        StepTiming { times, arrived_s }: StepTiming,
    ) {
        let JobGroup {
            rank,
            group,
            tracker,
            ..
        } = &self.member;
        let part = self.strategy.part_group();
        let bytes_sent = group.bytes_sent() + part.map_or(0, |group| group.bytes_sent());
        tracker.record(Event::StepTimes {
            rank: *rank,
            step: committed.step,
            times,
            arrived_s,
            bytes_sent,
        });
        if self.memory_reports.is_due(times.total_s())
            && let Some(memory) = ProcessMemory::read()
        {
            tracker.record(Event::MemoryUsed {
                rank: *rank,
                step: committed.step,
                resident_bytes: memory.resident,
                peak_bytes: memory.peak,
            });
        }
        self.history.push(Event::StepCommitted {
            step: committed.step,
            epoch: committed.epoch,
            generation: committed.generation,
            loss: committed.loss,
            samples: committed.samples,
            targets: committed.targets,
            skipped: committed.skipped,
            learning_rate,
            gradient_norm: applied.gradient_norm,
            skipped_update: match committed.targets {
                0 => Some(SkippedUpdate::NoTargets),
                _ => applied.is_skipped.then_some(SkippedUpdate::Overflow),
            },
            duration_s: times.total_s(),
        });
        self.record_inner_losses(committed);
        self.record_staleness(committed);
        self.record_exchanges(committed);
        self.record_predictions(committed);
        if let Some(verdict) = committed.epoch_verdict {
            self.history.push(Event::EpochFinished {
                epoch: verdict.epoch,
                used_once: verdict.used_once,
                missing: verdict.missing,
                repeated: verdict.repeated,
            });
        }
        self.report_history();
    }

    /// Reports committed steps on rank 0. A new rank 0 also reports those that the previous one may not have reported.
    pub(super) fn report_history(&mut self) {
        if self.member.rank == Rank(0) {
            self.history.report(&*self.member.tracker);
        }
    }
}

/// Returns the error of a step whose strategy has failed.
pub(super) fn step_failed(step: Step, learning_rate: f64, error: ParallelError) -> TrainError {
    match error {
        ParallelError::NotFinite { tensor } => TrainError::NotFinite {
            step,
            what: format!("the gradient of {tensor}"),
            learning_rate,
        },
        source => TrainError::Step {
            step,
            source: Box::new(source),
        },
    }
}

pub(super) fn next_batches(loader: &mut Loader, step: Step) -> Result<StepBatches, TrainError> {
    loader
        .next()?
        .filter(|batches| batches.step == step)
        .ok_or_else(|| TrainError::Impossible {
            problem: format!("the loader has no batches for step {step}"),
            hint: "this is a bug of ronde; please report it with the run file".to_owned(),
        })
}
