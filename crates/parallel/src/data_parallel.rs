//! Synchronous data parallelism: every rank has a full replica and its own logical shards, and gradients are
//! summed exactly over shards before the optimizer step.
//!
//! Shards of a rank run one after the other, unless a layer needs lock step: see `lock_step`.
//! A shard's gradients are added bucket by bucket along the fixed tree ([`ronde_core::exact`]). During
//! the last shard of the rank, a bucket's reduction over ranks starts as soon as its layers have finished
//! their backward pass, while earlier layers still compute.

mod lock_step;
mod shard;
mod update;

use std::ops::Range;
use std::sync::Arc;

use ronde_core::norm::clip_factor;
use ronde_core::seed::SeedTree;
use ronde_core::session::ShardReport;
use ronde_core::shards::ShardPlan;
use ronde_core::{Buffer, Collectives, Operation, Shard, Step};
use ronde_engine::{
    Activation, Chain, Device, ForwardContext, GradientScale, Layer, Loss, Mode, OptimizerConfig,
    ParameterGroup, ParameterRule, WeightDecayOn,
};

use self::update::UpdateFactors;
use crate::bucket::{self, Bucket};
use crate::loss_scale::{LossScale, LossScaling};
use crate::strategy::GradientPart;
use crate::{MicroBatch, ModelState, ParallelError, ReducedGradient, Strategy, UpdateReport};

/// The settings of a step.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DataParallelConfig {
    /// The update rule.
    pub optimizer: OptimizerConfig,
    /// The parameters to which weight decay applies.
    pub weight_decay_on: WeightDecayOn,
    /// Parameters with settings of their own; a parameter belongs to the first group that contains it.
    pub parameter_groups: Vec<ParameterGroup>,
    /// The global gradient norm above which the gradient is clipped.
    pub clip_norm: Option<f64>,
    /// Layers share a bucket up to this many bytes.
    pub bucket_bytes_max: usize,
    /// The loss function.
    pub loss: Arc<dyn Loss>,
    /// Loss scaling, which keeps gradients in the range of `f16`.
    pub loss_scaling: Option<LossScaling>,
}

/// The computing times of a step so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ComputeTimes {
    /// The seconds of the forward pass and the loss.
    pub forward_s: f64,
    /// The seconds of the backward pass, including adding shards and starting reductions.
    pub backward_s: f64,
}

/// A monotonic clock that returns seconds.
pub type ComputeClock = fn() -> f64;

impl DataParallelConfig {
    /// Creates settings with weight decay on all parameters, no clipping and buckets of 4 MiB.
    #[must_use]
    pub fn new(optimizer: OptimizerConfig, loss: Arc<dyn Loss>) -> Self {
        Self {
            optimizer,
            weight_decay_on: WeightDecayOn::default(),
            parameter_groups: Vec::new(),
            clip_norm: None,
            bucket_bytes_max: 4 << 20,
            loss,
            loss_scaling: None,
        }
    }
}

/// The strategy's state on one rank.
pub struct DataParallel {
    group: Arc<dyn Collectives>,
    config: DataParallelConfig,
    shards: ShardPlan,
    seeds: SeedTree,
    chain: Chain,
    state: ModelState,
    /// The update of each tensor of the state.
    rules: Vec<ParameterRule>,
    optimizer_states: Vec<Vec<f32>>,
    scale: LossScale,
    buckets: Vec<Bucket>,
    /// A buffer for a part of the scaled gradient, small enough to stay in the cache during the update.
    part: Vec<f32>,
    /// Whether all shards of this rank are computed and the reductions have begun.
    is_computed: bool,
    clock: Option<ComputeClock>,
    times: ComputeTimes,
}

impl DataParallel {
    /// Creates the strategy for a model. All ranks must have the same model and plan.
    #[must_use]
    pub fn new(
        chain: Chain,
        group: Arc<dyn Collectives>,
        shards: ShardPlan,
        seeds: SeedTree,
        config: DataParallelConfig,
    ) -> Self {
        let state = ModelState::of(&chain);
        let buckets = fresh_buckets(&state, &config, &shards);
        let optimizer_states = config
            .optimizer
            .state_names()
            .iter()
            .map(|_| vec![0.0; state.values().len()])
            .collect();
        let rules = state.tensors().iter().map(|tensor| {
            let is_decayed = config.weight_decay_on.includes(&tensor.entry.shape);
            let (name, groups) = (&tensor.entry.name, &config.parameter_groups);
            ParameterRule::of(name, config.optimizer, is_decayed, groups)
        });
        let rules = rules.collect();
        let scale = LossScale::new(config.loss_scaling);
        let mut this = Self {
            group,
            config,
            shards,
            seeds,
            chain,
            state,
            rules,
            optimizer_states,
            scale,
            buckets,
            part: Vec::new(),
            is_computed: false,
            clock: None,
            times: ComputeTimes::default(),
        };
        this.state.load_into(&mut this.chain);
        this
    }

    /// Computes the layers on another device. No step may be in flight.
    pub fn set_device(&mut self, device: &Arc<dyn Device>) {
        self.chain.set_device(device);
    }

    /// Sets the clock that measures the forward and backward passes.
    pub fn set_clock(&mut self, clock: ComputeClock) {
        self.clock = Some(clock);
    }

    /// Returns the times since the last call; zeros without a clock.
    pub fn take_times(&mut self) -> ComputeTimes {
        std::mem::take(&mut self.times)
    }

    fn now(&self) -> f64 {
        self.clock.map_or(0.0, |clock| clock())
    }

    /// Returns the bytes of each bucket, in the order in which they are sent.
    #[must_use]
    pub fn bucket_bytes(&self) -> Vec<usize> {
        self.buckets.iter().map(|bucket| bucket.len() * 4).collect()
    }

    /// Returns the number of buckets for a size.
    #[must_use]
    pub fn buckets_of(&self, bucket_bytes_max: usize) -> usize {
        bucket::plan(self.state.layer_elements(), bucket_bytes_max).len()
    }

    /// Sets the largest bucket shared by several layers, starting with the next step. All ranks call it before
    /// the same step, while no step is in flight and no reduced gradient is pending. The trained bits do not
    /// change.
    pub fn set_bucket_bytes(&mut self, bucket_bytes_max: usize) {
        if self.config.bucket_bytes_max != bucket_bytes_max {
            self.config.bucket_bytes_max = bucket_bytes_max;
            self.buckets = fresh_buckets(&self.state, &self.config, &self.shards);
        }
    }

    /// Returns the mutable state, for loading a saved one. Changes take effect with [`Strategy::reload`].
    pub fn state_mut(&mut self) -> &mut ModelState {
        &mut self.state
    }

    /// Returns the model with the current state.
    #[must_use]
    pub fn into_chain(mut self) -> Chain {
        self.state.load_into(&mut self.chain);
        self.chain
    }

    fn run(&self) -> Range<u32> {
        self.shards.run(self.group.rank())
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
        let operation = Operation::ExactSum(self.shards.exact_sum());
        let started = self.buckets[index].start(&*self.group, operation);
        started.map_err(|source| self.bucket_error(index, source))
    }

    /// Returns a buffer of a bucket for one shard's gradient.
    fn take_buffer(&mut self, index: usize) -> Result<Buffer, ParallelError> {
        let taken = self.buckets[index].take_buffer(&*self.group);
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
        for (bucket, part) in self.buckets.iter_mut().zip(parts) {
            bucket.recycle(part.sum);
        }
    }
}

fn fresh_buckets(
    state: &ModelState,
    config: &DataParallelConfig,
    shards: &ShardPlan,
) -> Vec<Bucket> {
    bucket::plan(state.layer_elements(), config.bucket_bytes_max)
        .into_iter()
        .map(|plan| Bucket::new(plan, shards.shards()))
        .collect()
}

impl Strategy for DataParallel {
    fn backward(
        &mut self,
        step: Step,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<Vec<ShardReport>, ParallelError> {
        let run = self.run();
        let given = micro_batches.iter().map(|batch| batch.shard.0);
        if !given.clone().eq(run.clone()) {
            let given: Vec<u32> = given.collect();
            let problem = format!("expected batches of shards {run:?}, received {given:?}");
            return Err(ParallelError::OutOfOrder { problem });
        }
        let reports = if self.chain.in_lock_step().is_some() {
            self.backward_together(step, micro_batches)?
        } else {
            self.backward_apart(step, micro_batches)?
        };
        self.is_computed = true;
        Ok(reports)
    }

    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError> {
        if !std::mem::take(&mut self.is_computed) {
            let problem = format!("shards {:?} were not computed", self.run());
            return Err(ParallelError::OutOfOrder { problem });
        }
        let mut parts = Vec::with_capacity(self.buckets.len());
        for index in 0..self.buckets.len() {
            let elements = self.buckets[index].plan.elements.clone();
            match self.buckets[index].wait() {
                Some(Ok(sum)) => parts.push(GradientPart { elements, sum }),
                Some(Err(source)) => return Err(self.bucket_error(index, source)),
                None => {
                    return Err(ParallelError::OutOfOrder {
                        problem: "no reduction was started".to_owned(),
                    });
                }
            }
        }
        Ok(ReducedGradient { parts })
    }

    fn apply(
        &mut self,
        step: Step,
        reduced: ReducedGradient,
        samples: u64,
        learning_rate: f64,
    ) -> Result<UpdateReport, ParallelError> {
        let parts = reduced.parts;
        let scale = GradientScale::new(samples.max(1), self.scale.inverse().unwrap_or(1.0));
        // The decision uses only the reduced gradient, which is equal on all ranks.
        let squares = match self.gradient_squares(&parts) {
            Err(ParallelError::NotFinite { .. }) if self.scale.skip() => {
                self.recycle(parts);
                return Ok(UpdateReport::SKIPPED);
            }
            squares => squares?,
        };
        let gradient_norm = squares.sqrt() * scale.factor();
        let factor = self
            .config
            .clip_norm
            .map_or(1.0, |limit| clip_factor(gradient_norm, limit));
        let factors = UpdateFactors {
            number: step.0 + 1 - self.scale.skipped(),
            learning_rate,
            samples,
            scale: scale.then(factor),
        };
        self.update(&parts, &factors);
        self.scale.applied();
        self.recycle(parts);
        self.state.load_into(&mut self.chain);
        Ok(UpdateReport {
            gradient_norm,
            clip_factor: factor,
            is_skipped: false,
        })
    }

    fn abort(&mut self) {
        self.is_computed = false;
        self.buckets.iter_mut().for_each(Bucket::reset);
        self.chain
            .layers_mut()
            .iter_mut()
            .for_each(|layer| layer.discard());
    }

    fn regroup(&mut self, group: Arc<dyn Collectives>, shards: ShardPlan) {
        self.group = group;
        self.shards = shards;
        // The old buckets are in memory of the previous group.
        self.buckets = fresh_buckets(&self.state, &self.config, &shards);
        self.is_computed = false;
    }

    fn state(&self) -> &ModelState {
        &self.state
    }

    fn replica(&self) -> Vec<&[f32]> {
        let optimizer = self.optimizer_states.iter().map(Vec::as_slice);
        std::iter::once(self.state.values())
            .chain(optimizer)
            .chain(self.scale.state())
            .collect()
    }

    fn replica_mut(&mut self) -> Vec<&mut [f32]> {
        let optimizer = self.optimizer_states.iter_mut().map(Vec::as_mut_slice);
        std::iter::once(self.state.values_mut())
            .chain(optimizer)
            .chain(self.scale.state_mut())
            .collect()
    }

    fn reload(&mut self) {
        self.state.load_into(&mut self.chain);
    }

    fn predict(&mut self, batch: &mut MicroBatch) -> Result<Activation, ParallelError> {
        let shard = batch.shard;
        self.forward(Step(0), batch, Mode::Evaluate)
            .map_err(|source| ParallelError::Engine { shard, source })
    }
}
