//! Synchronous training: every shard passes through every layer once, on the ranks that the layout names, and gradients are
//! summed exactly over shards before the optimizer step.
//!
//! A step is the program of this rank ([`ronde_schedule::step_program`]). Plain data parallelism is that of one stage, and a
//! pipeline has several. Shards of a rank run one after the other, or all of them through a bucket before the next one
//! ([`ronde_schedule::ShardOrder`]); for layers that need sums over shards see `lock_step`.
//! A shard's gradients are added bucket by bucket along the fixed tree ([`ronde_core::exact`]). During the last shard of the
//! rank, a bucket's reduction over the ranks with the same layers starts as soon as these have finished their backward pass,
//! while earlier layers still compute.
//!
//! A strategy has two parts: the state of the run (`StateSlices`), which survives a generation, and the parts of a group
//! (`Connected`), which are made again when a group or a layout is entered, because buckets are in the memory of a group.

mod borders;
mod config;
mod evaluation;
mod exchanges;
mod gathered;
mod lock_step;
pub(crate) mod mesh;
mod model;
mod parts;
mod passes;
mod program;
mod reducer;
pub(crate) mod replica;
mod run;
mod shard;
mod stage;
pub(crate) mod state_slices;
mod timer;

use std::sync::Arc;

use ronde_core::seed::SeedTree;
use ronde_core::spans::SpanRecorder;
use ronde_core::step_layout::StepLayout;
use ronde_core::weight_hash;
use ronde_core::{BatchCounts, Group, Step};
use ronde_engine::{Activation, Chain, Device, LayerExt};
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::transaction::ShardReport;

pub use self::config::SynchronousConfig;
pub use self::model::evaluate_guarded;
pub use self::timer::{ComputeClock, ComputeTimes};

use self::mesh::{Division, MeshPosition};
use self::model::PlacedModel;
use self::passes::Passes;
use self::program::Program;
use self::reducer::Reducer;
use self::state_slices::StateSlices;
use self::timer::StepTimer;
pub(crate) use self::timer::WaitTimer;
use crate::bucket;
use crate::compression::CompressionState;
use crate::error::ParallelError;
use crate::state_view::{EvaluationPart, MeanGradient, ModelHandle, StateEdit, StateView};
use crate::step_method::{CommittedUpdate, MicroBatch, ReducedGradient, StepMethod, UpdateReport};

/// The parts of a group: the position of the rank, its buckets, and the values under way.
struct Connected {
    mesh: Arc<MeshPosition>,
    reducer: Reducer,
    program: Program,
    /// The elements whose second copy each rank may have, by rank; `None`: all.
    limits: Option<Vec<HeldRanges>>,
}

/// The strategy's state on one rank.
pub struct SynchronousStrategy {
    config: SynchronousConfig,
    model: PlacedModel,
    slices: StateSlices,
    connected: Connected,
    timer: StepTimer,
}

impl SynchronousStrategy {
    /// Creates the strategy for a model. All ranks must have the same model and plan. In a layout with pipelines,
    /// [`StepMethod::enter`] must follow, which connects the ranks.
    #[must_use]
    pub fn new(
        chain: Chain,
        group: Arc<dyn Group>,
        layout: StepLayout,
        seeds: SeedTree,
        config: SynchronousConfig,
    ) -> Self {
        let mesh = Arc::new(MeshPosition::unconnected(group, layout, chain.parts()));
        let mut slices = StateSlices::new(&chain, &config);
        slices.compression = config.compression.map(|compression| {
            let of = (mesh.layout.shards(), mesh.rank());
            CompressionState::new(compression, seeds, &slices.weights, of)
        });
        let mut model = PlacedModel::new(chain, seeds, &config);
        model.place(&mesh, None);
        let mut this = Self {
            connected: Connected {
                reducer: Reducer::new(mesh.clone(), &config, &slices),
                program: Program::new(&mesh, &config, &model),
                limits: None,
                mesh,
            },
            config,
            model,
            slices,
            timer: StepTimer::default(),
        };
        let held = this.division().held_by(this.connected.mesh.rank());
        this.slices.hold(held, 0);
        this.store();
        this.slices.weights.copy_from(&this.model.chain);
        this.load_layers();
        this
    }

    /// Sets the clock that measures the forward and backward passes.
    pub fn set_clock(&mut self, clock: ComputeClock) {
        self.timer.clock = Some(clock);
    }

    /// Sets the recorder of the thread that computes.
    pub fn set_recorder(&mut self, recorder: Arc<SpanRecorder>) {
        self.timer.recorder = Some(recorder);
    }

    /// Computes the layers on another device. No step may be in flight.
    pub fn set_device(&mut self, device: &Arc<dyn Device>) {
        self.model.chain.set_device(device);
    }

    /// Returns the group of the ranks with the same layers as this one, if it is not the group of all ranks.
    #[must_use]
    pub fn part_group(&self) -> Option<&dyn Group> {
        self.connected.mesh.part()
    }

    /// Returns the computing times since the last call.
    pub fn take_times(&mut self) -> ComputeTimes {
        std::mem::take(&mut self.timer.times)
    }

    /// Returns the number of buckets in which gradients are reduced, if their largest size in bytes is this one.
    #[must_use]
    pub fn buckets_of(&self, bucket_bytes_max: usize) -> usize {
        let stages = self.connected.mesh.layout.stages();
        bucket::plan(self.slices.weights.regions(), stages, bucket_bytes_max).len()
    }

    /// Sets the largest bucket shared by several layers, starting with the next step. All ranks call it before the same
    /// step, while no step is in flight and no reduced gradient is pending. The trained bits do not change. Slices of a
    /// divided state follow the buckets, so [`StateEdit::hold`] must follow.
    pub fn set_bucket_bytes(&mut self, bucket_bytes_max: usize) {
        if self.config.bucket_bytes_max != bucket_bytes_max {
            self.config.bucket_bytes_max = bucket_bytes_max;
            let mesh = self.connected.mesh.clone();
            self.connected.limits = None;
            self.connected.reducer = Reducer::new(mesh.clone(), &self.config, &self.slices);
            if let Ok(group) = mesh.same_layers() {
                group.release_free_memory();
            }
        }
    }

    /// Runs forward and backward of this rank's logical shards through its layers, and starts the reductions over ranks. A
    /// rank without shards also calls it. Takes the batches of the shards that the layout lets this rank load, and returns
    /// the reports of those whose loss it computes. [`StepMethod::reduce`] follows.
    ///
    /// # Errors
    /// The batches are of other shards, the engine failed, or a reduction could not be started.
    pub fn backward(
        &mut self,
        step: Step,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<Vec<ShardReport>, ParallelError> {
        let mesh = &self.connected.mesh;
        let run = mesh.layout.loads(mesh.rank());
        let given = micro_batches.iter().map(|batch| batch.shard.0);
        if !given.clone().eq(run.clone()) {
            let given: Vec<u32> = given.collect();
            let problem = format!("expected batches of shards {run:?}, received {given:?}");
            return Err(ParallelError::OutOfOrder { problem });
        }
        let reports = self.passes().run_program(step, micro_batches)?;
        self.connected.program.is_computed = true;
        Ok(reports)
    }

    /// Returns the model with the current state.
    #[must_use]
    pub fn into_chain(mut self) -> Chain {
        self.load_layers();
        self.model.chain
    }

    /// Computes the outputs of a batch: see [`ModelHandle::predict`].
    pub(crate) fn predict(
        &mut self,
        batch: Option<&mut MicroBatch>,
    ) -> Result<Option<Activation>, ParallelError> {
        self.passes().evaluate_stages(batch)
    }

    /// Returns the batches of an evaluation that this rank takes part in.
    pub(crate) fn evaluation_part(&self) -> EvaluationPart {
        let Connected { mesh, program, .. } = &self.connected;
        EvaluationPart {
            batch: self.model.evaluation.batch as u64,
            groups: mesh.layout.replicas() as u64,
            group: mesh.place().map(|place| place.replica as u64),
            loads: mesh.layout.is_at_an_end(mesh.rank()),
            joins_every_round: program.gathers_weights,
        }
    }

    /// Returns the hash of the weights and buffers of this rank's layers: see [`StateView::digest`].
    pub(crate) fn digest(&self, step: Option<Step>) -> u64 {
        if self.connected.program.gathers_weights {
            return self.slices.gathered_digest;
        }
        let state = &self.slices.weights;
        let computed = self.connected.mesh.computed(state.tensors_outline());
        let values = computed.ranges().iter();
        let weights: Vec<&[f32]> = values.filter_map(|range| state.get(range)).collect();
        match step {
            Some(step) => self.config.hashing.digest(step, &weights),
            None => weight_hash::hash_parts(weights.into_iter()),
        }
    }

    /// Returns the part of the state that this rank has.
    pub(crate) fn slices(&self) -> &StateSlices {
        &self.slices
    }

    /// Returns the same part, mutable. Layers release the weights, which would be copied otherwise, because they share them.
    pub(crate) fn slices_mut(&mut self) -> &mut StateSlices {
        self.model.chain.release_state();
        &mut self.slices
    }

    /// Returns how the ranks divide the state.
    pub(crate) fn division(&self) -> Division<'_> {
        let Connected {
            mesh,
            reducer,
            limits,
            ..
        } = &self.connected;
        Division {
            mesh,
            buckets: reducer.buckets(),
            hosts: mesh.all.hosts(),
            config: &self.config,
            limits: limits.as_deref(),
        }
    }

    /// Returns whether this rank reports a part of the gradient: one reports all of it if every rank has all.
    pub(crate) fn reports_gradient(&self) -> bool {
        self.connected.reducer.is_divided() || self.connected.mesh.rank().0 == 0
    }

    /// Lets each rank have second copies of these elements only, by rank.
    pub(crate) fn limit_copies(&mut self, elements: Vec<HeldRanges>) {
        self.connected.limits = Some(elements);
    }

    /// Holds other elements of the flat state from now on.
    pub(crate) fn hold(&mut self, elements: HeldRanges) {
        if *self.slices.held() == elements {
            return;
        }
        // Memory of slices that are given up serves for second copies that follow.
        let all = Division {
            limits: None,
            ..self.division()
        };
        let later = all.held_by(self.connected.mesh.rank()).len();
        self.slices.hold(elements, later);
        self.store();
    }

    /// Writes the initial weights and buffers of the elements that this rank stores.
    pub(crate) fn reset(&mut self) -> Result<(), ParallelError> {
        self.slices.reset(&self.model.chain)
    }

    /// Stores the held elements and, unless they are gathered for each pass, those that this rank computes with.
    fn store(&mut self) {
        let Connected { mesh, program, .. } = &self.connected;
        let computed = match program.gathers_weights {
            true => HeldRanges::default(),
            false => mesh.computed(self.slices.weights.tensors_outline()),
        };
        self.slices.store(&computed);
    }

    /// Loads the weights of this rank's layers into the model, unless they are gathered for each pass, and drops the weights of
    /// the remaining layers.
    pub(crate) fn load_layers(&mut self) {
        let Connected { mesh, program, .. } = &self.connected;
        match program.gathers_weights {
            true => self.model.chain.release_state(),
            false => self.model.load(&self.slices.weights, mesh),
        }
    }

    /// Returns the parts that passes need.
    fn passes(&mut self) -> Passes<'_> {
        Passes {
            config: &self.config,
            mesh: &self.connected.mesh,
            slices: &self.slices,
            model: &mut self.model,
            reducer: &mut self.connected.reducer,
            program: &mut self.connected.program,
            timer: &mut self.timer,
        }
    }

    /// Returns the memory of a gradient that is not used any more to the buckets.
    fn recycle(&mut self, reduced: ReducedGradient) {
        let reducer = &mut self.connected.reducer;
        if !reducer.is_divided() {
            let parts = reduced.parts.into_iter();
            reducer.recycle(parts.map(|part| (part.elements, part.sum)));
        }
    }
}

impl StepMethod for SynchronousStrategy {
    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError> {
        let Connected {
            reducer, program, ..
        } = &mut self.connected;
        if !std::mem::take(&mut program.is_computed) {
            let problem = "the shards of this step were not computed".to_owned();
            return Err(ParallelError::OutOfOrder { problem });
        }
        program.finish_sends()?;
        let compression = self.slices.compression.as_ref();
        let mut reduced = reducer.wait(compression, &mut self.timer)?;
        let is_copied = compression.is_none() && reducer.is_divided();
        if let Some(partners) = self.division().partners().filter(|_| is_copied) {
            self.copy_parts(partners, &mut reduced.parts)?;
        }
        Ok(reduced)
    }

    fn vote(
        &mut self,
        number: u64,
        reduced: &ReducedGradient,
        targets: u64,
    ) -> Result<Vec<u8>, ParallelError> {
        let slices = &self.slices;
        if !self.connected.reducer.is_divided() {
            return Ok(Vec::new());
        }
        let mut sums = slices.gradient_sums(&reduced.parts);
        if slices.has_trust_ratios() {
            // The update that the norms are taken of depends on the number of targets and on clipping.
            let (targets, all) = self.gather_sums(targets, &sums)?;
            let counts = BatchCounts {
                targets,
                ..BatchCounts::default()
            };
            if let Ok(factors) = slices.factors(number, &all, counts, 0.0) {
                slices.add_trust_sums(&reduced.parts, &factors.update, &mut sums);
            }
        }
        Ok(sums.encode())
    }

    fn apply(
        &mut self,
        update: &CommittedUpdate<'_>,
        mut reduced: ReducedGradient,
    ) -> Result<UpdateReport, ParallelError> {
        let voted = self.connected.reducer.is_divided().then_some(update.sums);
        let slices = &mut self.slices;
        let sums = slices.whole_sums(&reduced.parts, voted)?;
        let (number, counts) = (update.number, update.counts);
        // The decision uses only sums over the reduced gradient, which are equal on all ranks.
        let factors = match slices.factors(number, &sums, counts, update.learning_rate) {
            Err(ParallelError::NotFinite { .. }) if slices.scale.skip() => {
                self.recycle(reduced);
                return Ok(UpdateReport::SKIPPED);
            }
            factors => factors?,
        };
        let trust = match voted {
            Some(_) => sums.trust,
            None => slices.whole_trust(&reduced.parts, &factors.update)?,
        };
        let sent = std::mem::take(&mut reduced.sent);
        self.slices_mut()
            .update(&reduced.parts, &factors.update, &trust);
        self.recycle(reduced);
        if counts.targets == 0 {
            // The sent values are not used, so the residuals stay, too.
            return Ok(UpdateReport::WITHOUT_TARGETS);
        }
        self.slices.scale.applied();
        if let Some(compression) = &mut self.slices.compression {
            let free = compression.keep(sent, update.step);
            self.connected.reducer.recycle(free);
        }
        Ok(UpdateReport {
            gradient_norm: factors.gradient_norm,
            clip_factor: factors.clip_factor,
            is_skipped: false,
        })
    }

    fn abort(&mut self) {
        let connected = &mut self.connected;
        connected.mesh.abort_parts();
        connected.program.reset();
        connected.reducer.reset();
        let chain = &mut self.model.chain;
        let layers = chain.layers_mut().iter_mut();
        layers.for_each(|layer| layer.discard_all());
        if connected.program.gathers_weights {
            chain.release_state();
        }
    }

    fn enter(&mut self, group: Arc<dyn Group>, layout: StepLayout) -> Result<(), ParallelError> {
        let before = &mut self.connected;
        if !before.mesh.are_those_of(&group) {
            before.limits = None;
        }
        let mesh = Arc::new(before.mesh.enter(group, layout)?);
        let weights = &self.slices.weights;
        if let Some(compression) = &mut self.slices.compression {
            compression.arrange(weights, mesh.layout.shards());
        }
        self.model.place(&mesh, self.timer.clock);
        self.connected = Connected {
            reducer: Reducer::new(mesh.clone(), &self.config, &self.slices),
            program: Program::new(&mesh, &self.config, &self.model),
            limits: before.limits.take(),
            mesh,
        };
        self.store();
        Ok(())
    }

    fn state(&self) -> StateView<'_> {
        StateView::of(self, MeanGradient::OverTargets)
    }

    fn edit(&mut self) -> StateEdit<'_> {
        StateEdit::of(self)
    }

    fn model(&mut self) -> ModelHandle<'_> {
        ModelHandle::of(self)
    }
}
