//! [`Training`]: the step loop. A step is a transaction: compute, reduce, vote, then apply.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ronde_clock::Stopwatch;
use ronde_core::event::PhaseTimes;
use ronde_core::spans::SpanKind;
use ronde_core::step_layout::StepLayout;
use ronde_core::{CollectivesExt, Event, Group, Rank, Recovery, Step};
use ronde_data::{Loader, Split};
use ronde_engine::{Chain, ComputeEngine, ProductMethod};
use ronde_parallel::{
    HeldVector, HeldVectorMut, ModelState, StateEdit, StateView, VectorKind, ZeroLevel,
};
use ronde_protocol::GenerationPurpose;
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::transaction::{CommittedStep, SliceExchange};

use self::assignment::RankAssignment;
use self::decisions::Decisions;
use self::initial::InitialState;
use self::pending::Pending;
use self::restoration::CopyRestoration;
use self::run_reports::RunReports;
use self::run_saving::RunSaving;
use self::state_copies::StateCopies;
use self::whole_model::WholeModel;
use crate::batch_norms::BatchNorms;
use crate::callback::Callback;
use crate::checkpoints::{Resume, RunCheckpoints};
use crate::config::TrainSection;
use crate::core_pinning::CorePinning;
use crate::error::TrainError;
use crate::evaluate::Evaluation;
use crate::export;
use crate::job_group::JobGroup;
use crate::model_copies::ModelCopies;
use crate::model_parts::ModelParts;
use crate::plan::Plan;
use crate::progress::BestModel;
use crate::recording::{RecordingThread, WorkerRecorder};
use crate::session::Session;
use crate::state_transfer::StateTransfer;
use crate::sync_policy::SyncPolicy;
use crate::training_data::TrainingData;

mod assignment;
mod balancing;
mod beginning;
mod buckets;
mod decisions;
mod entry_facts;
mod evaluation;
mod generations;
mod histograms;
mod initial;
mod last_save;
mod measuring;
mod pending;
mod rehearsal;
mod restoration;
mod run_reports;
mod run_saving;
mod saving;
mod slices;
mod state_copies;
mod step;
pub(crate) mod whole_model;

pub use measuring::{LayerTimes, PartTimes, WorkerTimes};
pub use rehearsal::rehearsed_step_s;

/// A function that rank 0 calls with the trained model before any worker exits.
pub type PublishModel<'a> = dyn FnMut(&Training, &TrainingResult) -> Result<(), TrainError> + 'a;

/// The regular end of a generation.
enum GenerationEnd {
    /// The run is complete.
    RunComplete(Box<TrainingResult>),
    /// A newer generation has begun.
    NextGeneration,
}

/// The result of a finished training. Equal on all ranks except for the times.
#[derive(Debug, Clone)]
pub struct TrainingResult {
    /// The last committed step.
    pub last: Option<CommittedStep>,
    /// The result of the model on the test set, if there is one.
    pub evaluation: Option<Evaluation>,
    /// The evaluation that chose the model, if `train.keep_best` is set; `None`: the model is that of the last step.
    pub best: Option<BestModel>,
    /// The time that this worker spent in each phase.
    pub times: PhaseTimes,
    /// The number of samples used, over all epochs.
    pub samples: u64,
    /// The number of bad records that were skipped when the data was opened, and of samples skipped while training.
    pub skipped: u64,
    /// The seconds from the first step to the end.
    pub duration_s: f64,
}

impl TrainingResult {
    /// Returns the number of steps on which the model of a run of `steps` was trained: fewer if `train.keep_best` has
    /// chosen an earlier one.
    #[must_use]
    pub fn model_steps(&self, steps: u64) -> u64 {
        let best = self.best.as_ref();
        best.map_or(steps, |best| best.step.next().0)
    }

    /// Returns the event of a run that is complete after a number of steps.
    #[must_use]
    pub fn finished(&self, steps: u64) -> Event {
        Event::RunFinished {
            steps,
            samples: self.samples,
            skipped: self.skipped,
            duration_s: self.duration_s,
        }
    }
}

/// One rank's part of a run.
pub struct Training {
    member: JobGroup,
    plan: Plan,
    assignment: RankAssignment,
    policy: SyncPolicy,
    session: Session,
    data: TrainingData,
    reports: RunReports,
    pending: Pending,
    /// The step whose weights [`StateView::gathered`] means; `None`: they are of no step.
    gathered: Option<Step>,
    movement: StateMovement,
    initial: InitialState,
    /// The copies of the state in the memory of this worker.
    state_copies: StateCopies,
    /// The elements of the state that this rank has. The strategy may have memory for more of them while they are received.
    slices: SliceExchange,
    /// The cores of this worker's threads; `None`: the system chooses.
    cores: Option<CorePinning>,
    saving: RunSaving,
    decisions: Decisions,
    copies: ModelCopies,
    whole: WholeModel,
}

/// The parts of the state that members send to each other in one generation, besides those for which all of them wait.
#[derive(Default)]
struct StateMovement {
    /// The copies for members that join.
    transfer: StateTransfer,
    /// The second copies that follow after a loss.
    restoration: CopyRestoration,
}

/// Creates the session of a member, which compares the initial weights: ranks with different ones must not train.
fn new_session(
    member: &JobGroup,
    plan: &Plan,
    (mesh, policy): (&StepLayout, &SyncPolicy),
) -> Session {
    let (group, generation) = (member.group.clone(), member.generation);
    let mut session = Session::new(group, generation, plan.batches, mesh.reports());
    session.set_digest(policy.state().digest(None));
    session
}

impl Training {
    /// Creates the training of a run. Cost: allocates the optimizer state.
    ///
    /// # Errors
    /// When a layer has only f32 and the run file has another precision.
    pub fn new(
        member: JobGroup,
        plan: Plan,
        chain: Chain,
        split: Split,
    ) -> Result<Self, TrainError> {
        let loss_scaling = plan.loss_scaling();
        let reports = RunReports::default();
        let mut chain = plan.prepare(chain).map_err(TrainError::Model)?;
        let batch_norms = BatchNorms::checked(&chain, &plan)?;
        let parts = ModelParts::of(&plan, &mut chain, &*split.train)?;
        let assignment = RankAssignment::even(parts, plan.shards.shards(), member.group.size())?;
        let policy = SyncPolicy::new(
            &plan,
            (member.group.clone(), assignment.layout().clone()),
            (chain, &*split.train),
            (loss_scaling, &reports.recorder),
        )?;
        let session = new_session(&member, &plan, (assignment.layout(), &policy));
        let state = policy.state();
        let copies = ModelCopies::new(&plan.config.train, state.held_weights());
        let slices = SliceExchange::new(state.held());
        let layout = slices::checkpoint_layout(&plan, &state, loss_scaling);
        Ok(Self {
            member,
            assignment,
            policy,
            session,
            data: TrainingData::new(split, batch_norms, &plan.config.loader),
            plan,
            reports,
            pending: Pending::Nothing,
            gathered: None,
            movement: StateMovement::default(),
            initial: InitialState::default(),
            state_copies: StateCopies::default(),
            slices,
            cores: None,
            saving: RunSaving::without_checkpoints(layout),
            decisions: Decisions::default(),
            copies,
            whole: WholeModel::default(),
        })
    }

    /// Adds functions that are called after steps and evaluations and can request actions.
    #[must_use]
    pub fn with_callbacks(mut self, callbacks: Vec<Box<dyn Callback>>) -> Self {
        self.decisions.set_callbacks(callbacks);
        self
    }

    /// Adds checkpoints. Setting `stop` on any rank stops the run after the current step.
    #[must_use]
    pub fn with_checkpoints(
        mut self,
        checkpoints: Option<RunCheckpoints>,
        resume: Resume,
        stop: Arc<AtomicBool>,
    ) -> Self {
        self.saving = self.saving.with(checkpoints, resume, stop);
        if let Some(checkpoints) = self.saving.checkpoints_mut() {
            checkpoints.record_spans(self.reports.recorder.background.clone());
        }
        self
    }

    /// Adds the thread that writes recordings of this worker.
    #[must_use]
    pub(crate) fn with_recording(mut self, recording: RecordingThread) -> Self {
        self.reports.record_by(recording);
        self
    }

    /// Pins the computing threads, with the calling one as the first, to dedicated cores.
    #[must_use]
    pub(crate) fn with_cores(mut self, cores: Option<CorePinning>) -> Self {
        self.cores = cores;
        self
    }

    /// Computes the model by the engine of a run file on several threads, with the calling one as the first. With the default engine, the
    /// trained bits do not depend on the threads.
    ///
    /// # Errors
    /// When the system starts no more threads, or the engine's library cannot be used.
    pub fn with_engine(mut self, train: &TrainSection, threads: u32) -> Result<Self, TrainError> {
        let (engine, method) = (train.engine, train.products);
        let is_default = engine == ComputeEngine::default() && method == ProductMethod::default();
        if threads > 1 || !is_default {
            // Threads inherit the cores of the thread that starts them.
            if let Some(cores) = &self.cores {
                cores.pin_compute_thread();
            }
            let device = engine.device(threads as usize, method);
            if let Some(cores) = &self.cores {
                cores.unpin();
            }
            let device = device.map_err(TrainError::Engine)?;
            self.policy.method().model().set_device(&device);
        }
        Ok(self)
    }

    /// Sets the number of cores on which this worker may fetch and decode samples.
    #[must_use]
    pub(crate) fn with_free_cores(mut self, cores: usize) -> Self {
        self.data.free_cores = cores.max(1);
        self
    }

    /// Returns the recorder of this worker's spans.
    pub(crate) fn recorder(&self) -> Arc<WorkerRecorder> {
        self.reports.recorder.clone()
    }

    /// Returns this worker's rank in the newest generation.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.member.rank
    }

    /// Returns the plan of the run.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the state of the model.
    #[must_use]
    pub fn state(&self) -> &ModelState {
        self.policy.state().model()
    }

    /// Returns the part of each vector that this rank holds of the state of the run: those of the strategy, then the moving
    /// average of the weights and the best model, if the run keeps them.
    #[must_use]
    pub fn vectors(&self) -> Vec<HeldVector<'_>> {
        vectors(&self.policy.state(), &self.copies)
    }

    /// Returns whether the members of this generation have different parts of the weights.
    pub(crate) fn divides_weights(&self) -> bool {
        let gathers = self.plan.config.parallel.zero_level() == ZeroLevel::Weights;
        let layout = self.assignment.layout();
        layout.divides_model() || gathers && layout.replicas() > 1
    }

    /// Returns the layers and the shards that each rank computes.
    #[must_use]
    pub fn mesh(&self) -> &StepLayout {
        self.assignment.layout()
    }

    /// Returns the elements of the state that each rank answers for: see [`StateView::owned`].
    pub(crate) fn owned(&self) -> Vec<HeldRanges> {
        self.policy.state().owned()
    }

    /// Returns the group of this generation.
    pub(crate) fn group(&self) -> &Arc<dyn Group> {
        &self.member.group
    }

    /// Returns the state of the run for changes, for tests that damage a weight.
    pub fn edit(&mut self) -> StateEdit<'_> {
        self.policy.edit()
    }

    /// Trains to the end of the plan and evaluates. See [`Training::run_and_publish`].
    ///
    /// # Errors
    /// As [`Training::run_and_publish`].
    pub fn run(&mut self) -> Result<TrainingResult, TrainError> {
        self.run_and_publish(&mut |_, _| Ok(()))
    }

    /// Trains to the end of the plan, evaluates, and waits while rank 0 publishes. If a peer is lost and this
    /// worker can join another generation, training continues there from the last committed step, with the same
    /// bits.
    ///
    /// # Errors
    /// The first error from which another generation cannot recover. The group is aborted, so that no rank waits
    /// for this one.
    pub fn run_and_publish(
        &mut self,
        publish: &mut PublishModel<'_>,
    ) -> Result<TrainingResult, TrainError> {
        let begun = Stopwatch::start();
        // A worker that joins a running job has to catch up first.
        let mut ready = self.synchronize();
        loop {
            let ended = ready.and_then(|()| match self.member.purpose {
                GenerationPurpose::Train => self.run_generation(publish, &begun),
                GenerationPurpose::Save => {
                    self.save_and_end().map(|()| GenerationEnd::NextGeneration)
                }
            });
            let cause = match ended {
                Ok(GenerationEnd::RunComplete(trained)) => return Ok(*trained),
                Ok(GenerationEnd::NextGeneration) => "the membership changes".to_owned(),
                // The remaining workers continue without this one.
                Err(error @ TrainError::Membership(_)) => return Err(error),
                // All workers have stopped.
                Err(error @ TrainError::Stopped { .. }) => return Err(error),
                Err(error) => {
                    self.abort_step(&error);
                    if !self.member.can_rejoin() || error.recovery() != Recovery::Rejoin {
                        return Err(error);
                    }
                    error.to_string()
                }
            };
            // The host may run other workers in the next generation.
            self.cores = None;
            ready = self.join_next_generation(&cause);
        }
    }

    /// Aborts the step in flight and the group.
    fn abort_step(&mut self, error: &TrainError) {
        self.movement.transfer = StateTransfer::default();
        self.policy.method().abort();
        self.member.group.abort(&error.to_string());
    }

    /// Trains in the current group until the run or the generation ends.
    fn run_generation(
        &mut self,
        publish: &mut PublishModel<'_>,
        begun: &Stopwatch,
    ) -> Result<GenerationEnd, TrainError> {
        // The previous generation ended before this evaluation.
        if self.is_evaluation_due() {
            self.catch_up()?;
        }
        let mut evaluation = self.evaluate_if_due()?;
        let mut loader = self.load()?;
        while !self.is_complete() {
            self.pin_compute_thread();
            let committed = self.step(&mut loader)?;
            if committed.requests.save || committed.requests.stop {
                self.unpin();
            }
            let some_copy_state = committed.requests.heals && !self.catch_up_if_due(&committed)?;
            let span = self.reports.begin_span();
            self.copy_if_due(committed.step)?;
            self.save_if_requested(&committed)?;
            if committed.requests.save {
                let step = committed.step;
                self.reports.end_span(span, SpanKind::Checkpoint, step);
            }
            if self.member.ends_after(&committed) {
                return Ok(GenerationEnd::NextGeneration);
            }
            self.restore_copies()?;
            if !some_copy_state && (self.all_compute()? || self.balance_shards(&committed)?) {
                self.unpin();
                loader = self.load()?;
            }
            self.end_epoch_if_due(&committed, &loader)?;
            evaluation = self.evaluate_if_due()?.or(evaluation);
        }
        self.unpin();
        self.save_at_end()?;
        self.verify()?;
        let duration_s = begun.elapsed_s();
        if evaluation.is_none() {
            let next = self.session.next_step().0;
            evaluation = self.evaluate(Step(next.saturating_sub(1)))?;
        }
        let best = self.best_model();
        let trained = TrainingResult {
            last: self.reports.last().cloned(),
            evaluation: best
                .as_ref()
                .map(|best| best.evaluation.clone())
                .or(evaluation),
            best,
            times: self.reports.times,
            samples: self.session.samples(),
            skipped: self.skipped_records(),
            duration_s,
        };
        Ok(match self.publish_chosen(publish, &trained)? {
            true => GenerationEnd::RunComplete(Box::new(trained)),
            false => GenerationEnd::NextGeneration,
        })
    }

    /// Reports the data of an epoch after its last step, and aligns the clocks, because those of different hosts drift apart.
    fn end_epoch_if_due(
        &mut self,
        committed: &CommittedStep,
        loader: &Loader,
    ) -> Result<(), TrainError> {
        if committed.epoch_verdict.is_some() || self.is_complete() {
            self.data.report_waiting(loader, &self.member);
            self.data.report_traffic(committed.epoch, &self.member);
        }
        if committed.epoch_verdict.is_some() && !self.is_complete() {
            self.align_clocks()?;
        }
        Ok(())
    }

    /// Publishes the model that the run has chosen. It stays the trained one, unless another generation needs the state of the
    /// last step. Returns false if a member needs this worker in a later generation.
    fn publish_chosen(
        &mut self,
        publish: &mut PublishModel<'_>,
        trained: &TrainingResult,
    ) -> Result<bool, TrainError> {
        let last = Step(self.session.next_step().0.saturating_sub(1));
        self.gathered = None;
        let gathered = match self.swap_chosen_model() {
            true => self.gather_weights(last),
            false => Ok(()),
        };
        let left = gathered.and_then(|()| self.publish_and_leave(publish, trained));
        if !matches!(left, Ok(true)) {
            self.drop_whole_model();
        }
        if !matches!(left, Ok(true)) && self.swap_chosen_model() {
            self.policy.edit().reload();
            let left = left?;
            self.gather_weights(last)?;
            return Ok(left);
        }
        left
    }

    /// Publishes the model on rank 0. Returns false if a member needs this worker in a later generation.
    fn publish_and_leave(
        &mut self,
        publish: &mut PublishModel<'_>,
        trained: &TrainingResult,
    ) -> Result<bool, TrainError> {
        self.gather_whole_model()?;
        if self.member.rank == Rank(0) {
            publish(self, trained)?;
            export::release_ranks(self)?;
        } else {
            export::serve_tensors(self)?;
        }
        self.reports.flush();
        self.member.group.barrier().map_err(TrainError::Farewell)?;
        Ok(self.member.finish())
    }

    /// Returns whether this rank or the job is to stop.
    pub(crate) fn is_asked_to_stop(&self) -> bool {
        self.saving.stops() || self.member.is_stopping()
    }

    /// Moves this thread to its dedicated core, if it has one.
    fn pin_compute_thread(&self) {
        if let Some(cores) = &self.cores {
            cores.pin_compute_thread();
        }
    }

    /// Moves this thread to the shared cores, where threads that it starts will run.
    fn unpin(&self) {
        if let Some(cores) = &self.cores {
            cores.unpin();
        }
    }

    /// Starts the loader of this rank's shards, from the next step.
    fn load(&self) -> Result<Loader, TrainError> {
        let position = (self.assignment.layout(), self.member.group.rank());
        let next = self.session.next_step();
        self.data
            .load(&self.plan, position, next, &self.reports.recorder)
    }

    /// Measures the offset of this host's clock. All members call it together.
    fn align_clocks(&mut self) -> Result<(), TrainError> {
        let aligned = self.reports.align_clock(&*self.member.group);
        aligned.map_err(TrainError::ClockAlignment)
    }

    /// Returns the number of committed steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.session.next_step().0
    }

    /// Waits for the state transfer if the next operation needs a complete state on all members. Returns whether
    /// it has waited.
    fn catch_up_if_due(&mut self, committed: &CommittedStep) -> Result<bool, TrainError> {
        let is_due = committed.requests.save
            || committed.requests.stop
            || self.is_evaluation_due()
            || self.movement.transfer.is_overdue();
        if is_due {
            self.catch_up()?;
        }
        Ok(is_due)
    }
}

/// Returns the part of each vector that this rank holds of the state of a run: those of the strategy, and the copies of the
/// model.
fn vectors<'a>(state: &StateView<'a>, copies: &'a ModelCopies) -> Vec<HeldVector<'a>> {
    let mut vectors = state.vectors();
    vectors.extend(copies.vectors().map(|values| HeldVector {
        kind: VectorKind::Flat,
        held: Cow::Borrowed(state.held_of_model()),
        values,
    }));
    vectors
}

/// Returns the same vectors, mutable.
fn vectors_mut<'a>(
    edit: &'a mut StateEdit<'_>,
    copies: &'a mut ModelCopies,
) -> Vec<HeldVectorMut<'a>> {
    let held = edit.held_of_model().clone();
    let mut vectors = edit.vectors_mut();
    vectors.extend(copies.vectors_mut().map(|values| HeldVectorMut {
        held: Cow::Owned(held.clone()),
        values,
    }));
    vectors
}
