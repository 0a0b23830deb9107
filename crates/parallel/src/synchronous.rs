//! Synchronous training: every shard passes through every layer once, on the ranks that the layout names, and gradients are
//! summed exactly over shards before the optimizer step.
//!
//! A step is the program of this rank ([`ronde_schedule::step_program`]). Plain data parallelism is that of one stage, and a
//! pipeline has several. Shards of a rank run one after the other, or all of them through a bucket before the next one
//! ([`ronde_schedule::ShardOrder`]); for layers that need sums over shards see `lock_step`.
//! A shard's gradients are added bucket by bucket along the fixed tree ([`ronde_core::exact`]). During the last shard of the
//! rank, a bucket's reduction over the ranks with the same layers starts as soon as these have finished their backward pass,
//! while earlier layers still compute.

mod borders;
mod compressed;
mod config;
mod evaluation;
mod gathered;
mod gradient_values;
mod lock_step;
mod mesh;
mod parts;
mod program;
pub(crate) mod replica;
mod run;
mod shard;
mod slices;
mod stage;
mod update;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use ronde_core::seed::SeedTree;
use ronde_core::spans::{SpanKind, SpanRecorder, SpanStart};
use ronde_core::step_layout::StepLayout;
use ronde_core::weight_hash;
use ronde_core::{BatchCounts, Buffer, Group, GroupRank, Shard, Step, Work};
use ronde_engine::{
    Activation, Chain, Device, EvaluationSize, ForwardContext, LayerExt, Mode, ParameterRule,
    PartPlace,
};
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::transaction::ShardReport;

pub use self::config::SynchronousConfig;
pub use self::shard::evaluate_guarded;

use self::borders::BorderForms;
use self::mesh::{Division, MeshGroups, computed_layers, fresh_buckets};
use self::parts::GroupParts;
use crate::bucket::{self, Bucket, buckets_in_flight};
use crate::compression::CompressedExchange;
use crate::distributed::DistributedVector;
use crate::error::ParallelError;
use crate::loss_scale::LossScale;
use crate::state::ModelState;
use crate::state::remap_for;
use crate::strategy::GradientPart;
use crate::strategy::{
    CommittedUpdate, EvaluationPart, HeldVector, HeldVectorMut, MicroBatch, ReducedGradient,
    Strategy, UpdateReport, VectorKind,
};
use crate::zero::ZeroLevel;

/// The computing times of a step so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ComputeTimes {
    /// The seconds of the forward pass and the loss.
    pub forward_s: f64,
    /// The seconds of the backward pass, including adding shards and starting reductions.
    pub backward_s: f64,
    /// The part of both in which this rank waited for sums over all ranks.
    pub waited_s: f64,
}

/// A monotonic clock that returns seconds.
pub type ComputeClock = fn() -> f64;

/// The strategy's state on one rank.
pub struct SynchronousStrategy {
    groups: MeshGroups,
    /// The exchange with the ranks that compute other parts of the same layers.
    exchange: Option<Arc<GroupParts>>,
    /// The parts that this rank computes.
    parts: PartPlace,
    /// The lengths of the parts of the outputs, if the loss is computed from them.
    output_parts: Option<Vec<usize>>,
    layout: StepLayout,
    config: SynchronousConfig,
    seeds: SeedTree,
    chain: Chain,
    state: ModelState,
    /// The update of each tensor of the state.
    rules: Vec<ParameterRule>,
    /// The elements of the flat state that this rank updates.
    held: HeldRanges,
    /// The elements whose second copy each rank may have, by rank; `None`: all.
    copies: Option<Vec<HeldRanges>>,
    /// The states of the held elements.
    optimizer_states: Vec<Vec<f32>>,
    scale: LossScale,
    buckets: Vec<Bucket>,
    /// The exchange of gradients in a short form.
    compression: Option<CompressedExchange>,
    /// Memory for the gradient of layers that have several buckets.
    joined: Vec<f32>,
    /// A buffer for a part of the scaled gradient, small enough to stay in the cache during the update.
    part: Vec<f32>,
    forms: BorderForms,
    evaluation: EvaluationSize,
    /// The whole initial state, if it was loaded and cannot be drawn again; until the first update.
    loaded: Option<ModelState>,
    /// The number of elements, from the first one, whose weights were gathered after the last update.
    gathered: usize,
    /// The weights of buckets that are being gathered.
    gathering: BTreeMap<usize, Box<dyn Work>>,
    /// The hash of the weights that were gathered last to be compared.
    gathered_digest: u64,
    /// The values of this step that are being sent to other ranks.
    sends: Vec<Box<dyn Work>>,
    /// Whether all shards of this rank are computed and the reductions have begun.
    is_computed: bool,
    clock: Option<ComputeClock>,
    times: ComputeTimes,
    recorder: Option<Arc<SpanRecorder>>,
}

impl SynchronousStrategy {
    /// Creates the strategy for a model. All ranks must have the same model and plan. In a layout with pipelines,
    /// [`Strategy::regroup`] must follow, which connects the ranks.
    #[must_use]
    pub fn new(
        chain: Chain,
        group: Arc<dyn Group>,
        layout: StepLayout,
        seeds: SeedTree,
        config: SynchronousConfig,
    ) -> Self {
        let state = ModelState::outline(&chain);
        let buckets = fresh_buckets(&state, &config, &layout, &group.hosts());
        let division = Division {
            layout: &layout,
            parts: chain.parts(),
            buckets: &buckets,
            hosts: group.hosts(),
            config: &config,
            copies: None,
        };
        let held = division.held_by(group.rank());
        let groups = MeshGroups::unconnected(group, &layout);
        let optimizer_states = config
            .optimizer
            .state_names()
            .iter()
            .map(|_| vec![0.0; held.len()])
            .collect();
        let rules = update::parameter_rules(&state, &config);
        let scale = LossScale::new(config.loss_scaling, config.fixed_factor());
        let evaluation = match config.sample_shape.is_empty() {
            true => EvaluationSize::default(),
            false => EvaluationSize::of(&chain, &config.sample_shape),
        };
        let mut this = Self {
            groups,
            exchange: None,
            parts: PartPlace::all(1),
            output_parts: None,
            layout,
            config,
            seeds,
            chain,
            state,
            rules,
            held,
            copies: None,
            optimizer_states,
            scale,
            buckets,
            compression: None,
            joined: Vec::new(),
            part: Vec::new(),
            forms: BorderForms::default(),
            evaluation,
            sends: Vec::new(),
            gathered: 0,
            gathering: BTreeMap::new(),
            loaded: None,
            gathered_digest: 0,
            is_computed: false,
            clock: None,
            times: ComputeTimes::default(),
            recorder: None,
        };
        this.begin_state();
        this.forms = this.border_forms(true);
        this.place_parts();
        this.load_layers();
        this
    }

    /// Stores the initial values, and begins the compression if the settings have it.
    fn begin_state(&mut self) {
        self.compression = self.begin_compression();
        self.store();
        self.state.copy_from(&self.chain);
        let mut layers = self.chain.layers().iter();
        if self.config.may_reset && layers.any(|layer| !layer.is_initial()) {
            self.loaded = Some(ModelState::of(&self.chain));
        }
    }

    /// Loads the weights of this rank's layers into the model, unless they are gathered for each pass, and drops those of the
    /// remaining layers.
    fn load_layers(&mut self) {
        if self.gathers_weights() {
            return self.chain.release_state();
        }
        let layers = computed_layers(&self.layout, self.groups.all.rank());
        for layer in 0..self.chain.len() {
            if layers.iter().any(|layers| layers.contains(&layer)) {
                self.state.load_into(&mut self.chain, layer);
            } else {
                self.chain.layers_mut()[layer].release_state();
            }
        }
    }

    /// Stores the held elements and, unless they are gathered for each pass, those that this rank computes with.
    fn store(&mut self) {
        let elements = match self.gathers_weights() {
            true => self.held.clone(),
            false => {
                let computed = self.computed();
                let ranges = computed.ranges().iter().chain(self.held.ranges());
                HeldRanges::new(ranges.cloned())
            }
        };
        self.state.store(elements);
    }

    /// Returns the forms of the values between stages. In training, ranks with different parts of the layers may have different
    /// tokens.
    fn border_forms(&self, in_training: bool) -> BorderForms {
        let mut shape: Vec<usize> = std::iter::once(1)
            .chain(self.config.sample_shape.iter().copied())
            .collect();
        let mut shapes = Vec::new();
        let stages = self.layout.stages();
        let own = self
            .layout
            .own_parts(self.groups.all.rank(), self.chain.parts());
        // The output of the last stage stays where it is.
        for stage in &stages[..stages.len() - 1] {
            let mut tokens = None;
            for layer in &self.chain.layers()[stage.layers.clone()] {
                shape = layer.cost(&shape).output_shape;
                tokens = layer.facts().output_tokens.clone();
            }
            let mut of_rank = shape[1..].to_vec();
            if let Some(tokens) = tokens.filter(|_| in_training) {
                of_rank[0] = tokens.of(&own);
            }
            shapes.push(of_rank);
        }
        BorderForms {
            shapes,
            samples_max: self.config.shard_samples_max,
            shards: self.layout.shards().shards(),
        }
    }

    /// Sets the clock that measures the forward and backward passes.
    pub fn set_clock(&mut self, clock: ComputeClock) {
        self.clock = Some(clock);
    }

    /// Sets the recorder of the thread that computes.
    pub fn set_recorder(&mut self, recorder: Arc<SpanRecorder>) {
        self.recorder = Some(recorder);
    }

    fn begin_span(&self) -> Option<SpanStart> {
        self.recorder.as_ref().map(|recorder| recorder.begin())
    }

    fn end_span(&self, start: Option<SpanStart>, kind: SpanKind, detail: u64) {
        if let (Some(recorder), Some(start)) = (&self.recorder, start) {
            recorder.end(start, kind, detail);
        }
    }

    fn now(&self) -> f64 {
        self.clock.map_or(0.0, |clock| clock())
    }

    /// Returns the bytes of each bucket, in the order in which they are sent.
    #[must_use]
    pub fn bucket_bytes(&self) -> Vec<usize> {
        self.buckets.iter().map(|bucket| bucket.len() * 4).collect()
    }

    fn renew_buckets(&mut self) {
        let hosts = self.groups.all.hosts();
        self.buckets = fresh_buckets(&self.state, &self.config, &self.layout, &hosts);
        self.rearrange_compression();
    }

    fn context(&self, step: Step, shard: Shard, layer: usize, mode: Mode) -> ForwardContext {
        ForwardContext {
            seeds: self.seeds,
            step,
            shard,
            layer: layer as u32,
            mode,
        }
    }

    /// Starts the sum of a bucket over all shards of all ranks.
    fn start_bucket(&mut self, index: usize) -> Result<(), ParallelError> {
        if self.compression.is_some() {
            return self.start_compressed(index);
        }
        let operation = self.buckets[index].reduction(self.layout.shards().exact_sum());
        let group = self.same_layers()?.clone();
        let started = self.buckets[index].start(&*group, operation);
        started.map_err(|source| self.bucket_error(index, source))?;
        let own = self.own_buckets();
        let position = own.iter().position(|&own| own == index);
        // One more is filled while these are reduced.
        let reduced = buckets_in_flight(4 * self.buckets[index].plan.elements.len()) - 1;
        if let Some(position) = position
            && let Some(last) = position.checked_sub(reduced)
        {
            // Nothing is done twice; before a long bucket there may be two.
            for &earlier in &own[last.saturating_sub(1)..=last] {
                self.release_bucket(earlier)?;
            }
        }
        Ok(())
    }

    /// Releases the memory of a bucket as soon as its slice is reduced, if gradients are divided.
    fn release_bucket(&mut self, index: usize) -> Result<(), ParallelError> {
        if self.config.zero < ZeroLevel::Gradients || !self.buckets[index].is_scattered() {
            return Ok(());
        }
        let begun = self.now();
        let group = self.same_layers()?.clone();
        let released = self.buckets[index].release(&*group);
        self.times.waited_s += self.now() - begun;
        released.map_err(|source| self.bucket_error(index, source))
    }

    /// Returns a buffer of a bucket for one shard's gradient.
    fn take_buffer(&mut self, index: usize) -> Result<Buffer, ParallelError> {
        let group = self.same_layers()?.clone();
        let taken = self.buckets[index].take_buffer(&*group);
        taken.map_err(|source| self.bucket_error(index, source))
    }

    fn bucket_error(&self, index: usize, source: ronde_core::CollectiveError) -> ParallelError {
        let elements = &self.buckets[index].plan.elements;
        let names: Vec<&str> = self
            .state
            .tensors()
            .iter()
            .filter(|p| elements.contains(&p.range.start))
            .map(|p| p.entry.name.as_str())
            .collect();
        let tensors = match (names.first(), names.last()) {
            (Some(first), Some(last)) => format!("{first} to {last}"),
            _ => "no tensor".to_owned(),
        };
        ParallelError::Collective {
            bucket: index + 1,
            buckets: self.buckets.len(),
            tensors,
            source,
        }
    }

    fn recycle(&mut self, parts: Vec<GradientPart>) {
        if self.is_divided() {
            return;
        }
        for (bucket, part) in self.buckets.iter_mut().zip(parts) {
            bucket.recycle(part.sum);
        }
    }
}

impl Strategy for SynchronousStrategy {
    fn backward(
        &mut self,
        step: Step,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<Vec<ShardReport>, ParallelError> {
        let run = self.layout.loads(self.groups.all.rank());
        let given = micro_batches.iter().map(|batch| batch.shard.0);
        if !given.clone().eq(run.clone()) {
            let given: Vec<u32> = given.collect();
            let problem = format!("expected batches of shards {run:?}, received {given:?}");
            return Err(ParallelError::OutOfOrder { problem });
        }
        let reports = self.run_program(step, micro_batches)?;
        self.is_computed = true;
        Ok(reports)
    }

    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError> {
        if !std::mem::take(&mut self.is_computed) {
            let problem = "the shards of this step were not computed".to_owned();
            return Err(ParallelError::OutOfOrder { problem });
        }
        self.finish_sends()?;
        if self.compression.is_some() {
            return self.reduce_compressed();
        }
        let replica = self.place().map_or(0, |place| place.replica);
        // Ranks with different parts have the same gradient of undivided tensors.
        let is_first = self.place().is_none_or(|place| place.tensor == 0);
        let own = self.own_buckets();
        let mut parts = Vec::with_capacity(own.len());
        for index in own {
            let group = self.same_layers()?.clone();
            self.release_bucket(index)?;
            let is_divided = self.is_divided();
            let bucket = &mut self.buckets[index];
            let (elements, is_scattered) = (bucket.received_by(replica), bucket.is_scattered());
            let reports = bucket.plan.region > 0 || is_first;
            match bucket.wait(&*group) {
                Some(Ok(sum)) => parts.push(GradientPart {
                    elements,
                    sum,
                    is_owned: reports && (is_scattered || replica == 0) || !is_divided,
                }),
                Some(Err(source)) => return Err(self.bucket_error(index, source)),
                None => {
                    return Err(ParallelError::OutOfOrder {
                        problem: "no reduction was started".to_owned(),
                    });
                }
            }
        }
        if let Some(partners) = self.partners().filter(|_| self.is_divided()) {
            self.copy_parts(partners, &mut parts)?;
        }
        Ok(ReducedGradient::of(parts))
    }

    fn vote_sums(
        &mut self,
        number: u64,
        reduced: &ReducedGradient,
        targets: u64,
    ) -> Result<Vec<u8>, ParallelError> {
        if !self.is_divided() {
            return Ok(Vec::new());
        }
        let mut sums = self.gradient_sums(&reduced.parts);
        if self.has_trust_ratios() {
            // The update that the norms are taken of depends on the number of targets and on clipping.
            let (targets, all) = self.gather_sums(targets, &sums)?;
            let counts = BatchCounts {
                targets,
                ..BatchCounts::default()
            };
            if let Ok(factors) = self.factors(number, &all, counts, 0.0) {
                self.add_trust_sums(&reduced.parts, &factors.update, &mut sums);
            }
        }
        Ok(sums.encode())
    }

    fn visit_gradient(
        &self,
        reduced: &ReducedGradient,
        targets: u64,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) {
        self.visit_reported(reduced, targets, visit);
    }

    fn apply(
        &mut self,
        update: &CommittedUpdate<'_>,
        reduced: ReducedGradient,
    ) -> Result<UpdateReport, ParallelError> {
        let ReducedGradient { parts, sent } = reduced;
        let sums = self.whole_sums(&parts, update.sums)?;
        let (number, counts) = (update.number, update.counts);
        // The decision uses only sums over the reduced gradient, which are equal on all ranks.
        let factors = match self.factors(number, &sums, counts, update.learning_rate) {
            Err(ParallelError::NotFinite { .. }) if self.scale.skip() => {
                self.recycle(parts);
                return Ok(UpdateReport::SKIPPED);
            }
            factors => factors?,
        };
        let trust = if self.is_divided() {
            sums.trust
        } else {
            self.whole_trust(&parts, &factors.update)?
        };
        self.gathered = 0;
        self.update(&parts, &factors.update, &trust);
        if counts.targets == 0 {
            // The sent values are not used, so the residuals stay, too.
            self.recycle(parts);
            return Ok(UpdateReport::WITHOUT_TARGETS);
        }
        self.scale.applied();
        self.recycle(parts);
        self.keep_residuals(sent, update.step);
        Ok(UpdateReport {
            gradient_norm: factors.gradient_norm,
            clip_factor: factors.clip_factor,
            is_skipped: false,
        })
    }

    fn gather_weights(&mut self, step: Option<Step>) -> Result<(), ParallelError> {
        if self.gathers_weights() {
            self.load_layers();
            return self.hash_gathered(step);
        }
        self.gather_rest(0, step)
    }

    fn gathered(&self) -> usize {
        self.gathered
    }

    fn gather_rest(&mut self, first: usize, step: Option<Step>) -> Result<(), ParallelError> {
        if self.gathers_weights() {
            return self.gather_weights(step);
        }
        let mut own = self.own_buckets().into_iter();
        if own.any(|index| self.buckets[index].is_scattered()) {
            self.gather_slices(first)?;
        }
        self.gathered = self.state.len();
        self.load_layers();
        Ok(())
    }

    fn abort(&mut self) {
        self.is_computed = false;
        self.groups.abort_parts();
        self.sends.clear();
        self.gathering.clear();
        self.buckets.iter_mut().for_each(Bucket::reset);
        if let Some(compression) = &mut self.compression {
            compression.reset();
        }
        self.chain
            .layers_mut()
            .iter_mut()
            .for_each(|layer| layer.discard_all());
        if self.gathers_weights() {
            self.chain.release_state();
        }
    }

    fn regroup(&mut self, group: Arc<dyn Group>, layout: StepLayout) -> Result<(), ParallelError> {
        let is_connected = self.groups.are_those_of(&group)
            && self.layout.members() == layout.members()
            && (self.layout.columns(), self.layout.tensors())
                == (layout.columns(), layout.tensors());
        if !self.groups.are_those_of(&group) {
            self.copies = None;
        }
        if !is_connected {
            self.groups = MeshGroups::connect(group, &layout)?;
        }
        self.layout = layout;
        self.place_parts();
        // The old buckets are in memory of the previous group.
        self.renew_buckets();
        self.forms = self.border_forms(true);
        self.is_computed = false;
        self.store();
        Ok(())
    }

    fn held(&self) -> &HeldRanges {
        &self.held
    }

    fn owned(&self) -> Vec<HeldRanges> {
        let division = self.division();
        let ranks = (0..self.layout.ranks()).map(|rank| GroupRank(rank as u32));
        ranks.map(|rank| division.owned_by(rank)).collect()
    }

    fn layout(&self) -> Vec<HeldRanges> {
        let division = self.division();
        let ranks = (0..self.layout.ranks()).map(|rank| GroupRank(rank as u32));
        ranks.map(|rank| division.held_by(rank)).collect()
    }

    fn needed(&self) -> Vec<HeldRanges> {
        let division = self.division();
        let ranks = (0..self.layout.ranks()).map(|rank| GroupRank(rank as u32));
        ranks
            .map(|rank| HeldRanges::new(division.received_by(rank)))
            .collect()
    }

    fn limit_copies(&mut self, elements: Vec<HeldRanges>) {
        self.copies = Some(elements);
    }

    fn hold(&mut self, elements: HeldRanges) {
        if self.held == elements {
            return;
        }
        // Memory of slices that are given up serves for second copies that follow.
        let later = self.all_held().len();
        for values in &mut self.optimizer_states {
            remap_for(values, &self.held, &elements, later);
        }
        self.held = elements;
        self.store();
    }

    fn reset(&mut self) -> Result<(), ParallelError> {
        if let Some(loaded) = &self.loaded {
            for tensor in loaded.tensors() {
                let values = loaded.get(&tensor.range).unwrap_or_default();
                self.state.write(&tensor.range, values);
            }
            return Ok(());
        }
        for layer in 0..self.chain.len() {
            if !self.state.write_initial(&self.chain, layer) {
                let layer = self.chain.layers()[layer].name();
                return Err(ParallelError::OutOfOrder {
                    problem: format!(
                        "the initial weights of layer `{layer}` are not known any more"
                    ),
                });
            }
        }
        Ok(())
    }

    fn state(&self) -> &ModelState {
        &self.state
    }

    fn digest(&self, step: Option<Step>) -> u64 {
        if self.gathers_weights() {
            return self.gathered_digest;
        }
        let computed = self.computed();
        let values = computed.ranges().iter();
        let weights: Vec<&[f32]> = values.filter_map(|range| self.state.get(range)).collect();
        match step {
            Some(step) => self.config.hashing.digest(step, &weights),
            None => weight_hash::hash_parts(weights.into_iter()),
        }
    }

    fn vectors(&self) -> Vec<HeldVector<'_>> {
        let optimizer = self.optimizer_states.iter().map(|values| HeldVector {
            kind: VectorKind::Flat,
            held: Cow::Borrowed(&self.held),
            values,
        });
        let weights = HeldVector {
            kind: VectorKind::Flat,
            held: Cow::Borrowed(self.state.stored()),
            values: self.state.values(),
        };
        std::iter::once(weights)
            .chain(optimizer)
            .chain(self.scale.state().map(HeldVector::whole))
            .chain(
                self.compression
                    .iter()
                    .flat_map(CompressedExchange::vectors),
            )
            .collect()
    }

    fn vectors_mut(&mut self) -> Vec<HeldVectorMut<'_>> {
        // Otherwise the weights would be copied, because the layers share them.
        self.chain.release_state();
        let held = &self.held;
        let optimizer = self
            .optimizer_states
            .iter_mut()
            .map(|values| HeldVectorMut {
                held: Cow::Borrowed(held),
                values,
            });
        let stored = self.state.stored().clone();
        let weights = HeldVectorMut {
            held: Cow::Owned(stored),
            values: self.state.values_mut(),
        };
        std::iter::once(weights)
            .chain(optimizer)
            .chain(self.scale.state_mut().map(HeldVectorMut::whole))
            .chain(
                self.compression
                    .iter_mut()
                    .flat_map(CompressedExchange::vectors_mut),
            )
            .collect()
    }

    fn distributed(&self) -> Vec<&DistributedVector> {
        let compression = self.compression.iter();
        compression.map(CompressedExchange::residuals).collect()
    }

    fn distributed_mut(&mut self) -> Vec<&mut DistributedVector> {
        let compression = self.compression.iter_mut();
        compression.map(CompressedExchange::residuals_mut).collect()
    }

    fn reload(&mut self) {
        self.load_layers();
    }

    fn state_mut(&mut self) -> &mut ModelState {
        &mut self.state
    }

    fn swap_weights(&mut self, values: &mut [f32]) {
        assert_eq!(
            values.len(),
            self.held.len(),
            "the lengths of the held elements"
        );
        self.chain.release_state();
        self.gathered = 0;
        let mut rest = values;
        for range in self.held.ranges() {
            let (values, after) = rest.split_at_mut(range.len());
            rest = after;
            if let Some(weights) = self.state.get_mut(range) {
                weights.swap_with_slice(values);
            }
        }
    }

    fn into_chain(mut self: Box<Self>) -> Chain {
        self.load_layers();
        self.chain
    }

    fn set_device(&mut self, device: &Arc<dyn Device>) {
        self.chain.set_device(device);
    }

    fn part_group(&self) -> Option<&dyn Group> {
        self.groups.part()
    }

    fn take_times(&mut self) -> ComputeTimes {
        std::mem::take(&mut self.times)
    }

    fn buckets_of(&self, bucket_bytes_max: usize) -> usize {
        let stages = self.layout.stages();
        bucket::plan(self.state.regions(), stages, bucket_bytes_max).len()
    }

    fn set_bucket_bytes(&mut self, bucket_bytes_max: usize) {
        if self.config.bucket_bytes_max != bucket_bytes_max {
            self.config.bucket_bytes_max = bucket_bytes_max;
            self.copies = None;
            self.renew_buckets();
            if let Some(group) = &self.groups.same_layers {
                group.release_free_memory();
            }
        }
    }

    fn evaluation_part(&self) -> EvaluationPart {
        let rank = self.groups.all.rank();
        EvaluationPart {
            batch: self.evaluation.batch as u64,
            groups: self.layout.replicas() as u64,
            group: self.place().map(|place| place.replica as u64),
            loads: self.layout.is_at_an_end(rank),
            joins_every_round: self.gathers_weights(),
        }
    }

    fn predict(
        &mut self,
        batch: Option<&mut MicroBatch>,
    ) -> Result<Option<Activation>, ParallelError> {
        self.evaluate_stages(batch)
    }
}
