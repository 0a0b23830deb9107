//! One step of a [`Training`]: compute, reduce, vote, apply and record.

use ronde_clock::Stopwatch;
use ronde_core::event::{PhaseTimes, SampleUnit};
use ronde_core::spans::SpanKind;
use ronde_core::{Event, Rank, Step};
use ronde_data::Loader;
use ronde_parallel::{CommittedUpdate, ReducedGradient};
use ronde_protocol::transaction::{CommittedStep, TransactionError};

use super::Training;
use super::pending::{AppliedStep, Pending, UnrecordedStep};
use super::run_reports::ReportedStep;
use crate::callback::StepReport;
use crate::config::RoundSamples;
use crate::divergence;
use crate::error::TrainError;
use crate::step_timing::StepTiming;
use crate::sync_policy::Feed;

impl Training {
    /// Runs one step, from its batches to the updated weights.
    ///
    /// # Errors
    /// Data, engine, reduction or vote failed. The state changes only after the vote.
    pub fn step(&mut self, loader: &mut Loader) -> Result<CommittedStep, TrainError> {
        let spans = self.reports.recorder.spans.clone();
        let whole = spans.begin();
        let mut watch = Stopwatch::start();
        let mut times = PhaseTimes::default();
        let mut open = self.session.begin_step();
        let step = open.step();
        let failed = |source| TrainError::of_step(step, source);

        self.policy.method().model().take_times();
        let mut reduced_before_s = self.under_way_s();
        let mut feed = Feed {
            member: &self.member,
            plan: &self.plan,
            progress: self.decisions.progress(),
            recorder: &self.reports.recorder,
            data: &mut self.data,
            loader,
            times: &mut times,
        };
        let exchange_s = self.policy.compute(&mut feed, &mut open)?;
        if self.plan.samples != RoundSamples::OfShards {
            // Threads that answer other workers wait for requests during the whole round.
            reduced_before_s = self.under_way_s();
        }
        let called = self.member.group.called_at_ns();
        let arrived_s = called.map(|called| self.reports.aligned_s(called));
        times.compute_s = watch.lap_s() - times.wait_data_s - exchange_s;
        let computed = self.policy.method().model().take_times();
        (times.forward_s, times.backward_s) = (computed.forward_s, computed.backward_s);
        open.set_busy(times.wait_data_s + times.compute_s - computed.waited_s);
        self.heal_if_received()?;
        let waiting = Stopwatch::start();
        let reduced = self.reduce(step)?;
        times.waited_s = waiting.elapsed_s();
        times.reducing_s = self.under_way_s() - reduced_before_s;
        let (number, targets) = (self.session.updates() + 1, open.counts().targets);
        let sums = self.policy.method().vote(number, &reduced, targets);
        self.session.attach_sums(sums.map_err(failed)?);
        let advanced = self.movement.transfer.advance(&*self.member.group);
        advanced.map_err(TrainError::Heal)?;
        self.finish_copy()?;
        self.prepare_vote();
        let span = spans.begin();
        let committed = match self.member.commit(&mut self.session, open) {
            Err(error @ TransactionError::Diverged { .. }) => return Err(self.diagnose(error)),
            Err(error) => {
                // Other members may have received all votes; then this gradient is final.
                self.pending = Pending::InDoubt(step, reduced);
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

    /// Waits for the gradient of a step.
    fn reduce(&mut self, step: Step) -> Result<ReducedGradient, TrainError> {
        let span = self.reports.begin_span();
        let reduced = self.policy.method().reduce();
        self.reports.end_span(span, SpanKind::Reduce, step);
        match reduced {
            Ok(reduced) => Ok(reduced),
            Err(error) => {
                let learning_rate = self.learning_rate(step)?;
                Err(TrainError::of_gradient(step, learning_rate, error))
            }
        }
    }

    /// Returns the summed duration of the operations of all groups of this rank, in seconds.
    fn under_way_s(&self) -> f64 {
        let part = self.policy.part_group();
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
            self.pending = Pending::Unrecorded(Box::new(UnrecordedStep {
                committed: committed.clone(),
                applied,
                timing,
            }));
            self.gather_weights(committed.step)?;
            self.finish_applied();
        } else {
            self.movement
                .transfer
                .defer(committed.clone(), reduced, timing);
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
        let span = self.reports.begin_span();
        let updating = Stopwatch::start();
        let step = committed.step;
        let learning_rate = self.learning_rate(step)?;
        let samples = self.session.samples();
        self.data.check_skipped(&self.plan, (step, samples))?;
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
        let update = self.policy.method().apply(&update, reduced);
        let update = update.map_err(|error| TrainError::of_gradient(step, learning_rate, error))?;
        self.copies
            .update_average(step, self.policy.state().held_weights());
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
        let gathered = self.policy.edit().gather(first, compared);
        gathered.map_err(|source| TrainError::of_step(step, source))
    }

    /// Records the step that was applied last, after its weights have been gathered, unless that is done.
    pub(super) fn finish_applied(&mut self) {
        if let Some(step) = self.pending.take_unrecorded() {
            self.finish_step(&step.committed, step.applied, step.timing);
        }
    }

    /// Loads the weights of a step that was applied before a new generation, and records it, unless there is none.
    pub(super) fn finish_unfinished(&mut self) {
        if matches!(self.pending, Pending::Unrecorded(_)) {
            self.policy.edit().reload();
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
        self.reports.end_span(span, SpanKind::Optimizer, step);
        times.compute_s += updating.elapsed_s();
        let part = self.policy.part_group();
        let of_part = part.map_or(0, |group| group.bytes_sent());
        let reported = ReportedStep {
            committed,
            update,
            learning_rate,
            timing: StepTiming { times, arrived_s },
            bytes_sent: self.member.group.bytes_sent() + of_part,
            events: self.policy.events(committed),
        };
        self.reports.push_step(reported, &self.member);
        let report = StepReport {
            step,
            epoch: committed.epoch,
            loss: committed.loss,
            samples: committed.samples,
            learning_rate,
            gradient_norm: update.gradient_norm,
        };
        self.decisions.after_step(&report);
    }

    /// Returns the learning rate of a step of the run.
    fn learning_rate(&self, step: Step) -> Result<f64, TrainError> {
        let step = self.plan.rate_step(step);
        self.decisions.progress().learning_rate(&self.plan, step)
    }

    /// Returns the number of skipped records for the summary.
    pub(super) fn skipped_records(&self) -> u64 {
        let last = self.reports.last().map(|last| last.step);
        self.data
            .skipped_records(&self.plan, last, self.session.samples())
    }

    /// Returns the hash of the weights that are compared after a step.
    pub(super) fn digest(&self, step: Step) -> u64 {
        self.policy.state().digest(Some(step))
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
        match divergence::diagnose(&*self.member.group, self.policy.state().model(), step) {
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
        let predicted = self.policy.describe_stages();
        for message in [
            self.assignment.describe(),
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
            logical_shards: self.assignment.layout().shards().shards(),
            parameters: self.policy.state().model().parameters() as u64,
            steps: self.plan.steps,
            epochs: self.plan.epochs,
            samples: self.plan.batches.samples(),
            unit: match *self.data.split.train.description().shape {
                [1 | 3, _, _] => SampleUnit::Image,
                _ => SampleUnit::Sample,
            },
        });
    }
}
