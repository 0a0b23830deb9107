//! Synchronous data parallelism: every rank a full replica, each its own logical shards, gradients
//! summed exactly over shards before the optimizer step.
//!
//! Shards of a rank run one after the other, unless a layer asks for lock step: see `lock_step`.
//! A shard's gradients are added bucket by bucket along the fixed tree ([`ronde_core::exact`]); with
//! the last shard of the run a bucket's reduction over ranks starts as soon as its layers are
//! through their backward pass, while the layers before them still compute.

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
    Chain, ForwardContext, GradientScale, Layer, Loss, LossOutput, Mode, OptimizerConfig,
    WeightDecayOn,
};

use crate::bucket::{self, Bucket};
use crate::loss_scale::{LossScale, LossScaling};
use crate::{Applied, MicroBatch, ModelState, ParallelError, Reduced, Strategy};

/// What a step does besides forward and backward.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DataParallelConfig {
    /// The update rule.
    pub optimizer: OptimizerConfig,
    /// Which parameters are decayed.
    pub weight_decay_on: WeightDecayOn,
    /// Global gradient norm above which the gradient is scaled down.
    pub clip_norm: Option<f64>,
    /// Layers share a bucket up to this many bytes.
    pub bucket_bytes_max: usize,
    /// What the outputs cost.
    pub loss: Loss,
    /// Gradients are computed of a multiple of the loss, so that `f16` can hold them.
    pub loss_scaling: Option<LossScaling>,
}

/// Seconds of a step's computation so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ComputeTimes {
    /// Forward and the loss.
    pub forward_s: f64,
    /// Backward, adding up shards and starting reductions included.
    pub backward_s: f64,
}

/// Says how many seconds have passed since some moment.
pub type Clock = fn() -> f64;

impl DataParallelConfig {
    /// Updates by `optimizer` that lower `loss`: all parameters decayed, no clipping, buckets of
    /// 4 MiB.
    #[must_use]
    pub fn new(optimizer: OptimizerConfig, loss: Loss) -> Self {
        Self {
            optimizer,
            weight_decay_on: WeightDecayOn::default(),
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
    optimizer_states: Vec<Vec<f32>>,
    scale: LossScale,
    buckets: Vec<Bucket>,
    /// A part of a scaled gradient, which the update takes while the cache holds it.
    part: Vec<f32>,
    /// All shards of this rank's run went forward and back, and the reductions have begun.
    is_computed: bool,
    clock: Option<Clock>,
    times: ComputeTimes,
}

impl DataParallel {
    /// Wraps a model. Every rank must hold the same model and plan.
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
        let scale = LossScale::new(config.loss_scaling);
        let mut this = Self {
            group,
            config,
            shards,
            seeds,
            chain,
            state,
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

    /// Measures forward and backward by a clock from now on.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = Some(clock);
    }

    /// What was measured since this was last called; zeros without a clock.
    pub fn take_times(&mut self) -> ComputeTimes {
        std::mem::take(&mut self.times)
    }

    fn now(&self) -> f64 {
        self.clock.map_or(0.0, |clock| clock())
    }

    /// Bytes of each bucket, in the order in which they are sent.
    #[must_use]
    pub fn bucket_bytes(&self) -> Vec<usize> {
        self.buckets.iter().map(|bucket| bucket.len() * 4).collect()
    }

    /// How many buckets a size makes.
    #[must_use]
    pub fn buckets_of(&self, bucket_bytes_max: usize) -> usize {
        bucket::plan(self.state.layer_elements(), bucket_bytes_max).len()
    }

    /// Layers share a bucket up to this many bytes from the next step on; no step is in flight and no
    /// reduced gradient waits. All ranks do so before the same step. Changes no bits.
    pub fn set_bucket_bytes(&mut self, bucket_bytes_max: usize) {
        if self.config.bucket_bytes_max != bucket_bytes_max {
            self.config.bucket_bytes_max = bucket_bytes_max;
            self.buckets = fresh_buckets(&self.state, &self.config, &self.shards);
        }
    }

    /// The state, writable: for loading a saved one. Takes effect with [`Strategy::reload`].
    pub fn state_mut(&mut self) -> &mut ModelState {
        &mut self.state
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
    fn start_bucket(&mut self, place: usize) -> Result<(), ParallelError> {
        let operation = Operation::ExactSum(self.shards.exact_sum());
        let started = self.buckets[place].start(&*self.group, operation);
        started.map_err(|source| self.bucket_error(place, source))
    }

    fn bucket_error(&self, place: usize, source: ronde_core::CollectiveError) -> ParallelError {
        let elements = &self.buckets[place].plan.elements;
        let names: Vec<&str> = self
            .state
            .places()
            .iter()
            .filter(|p| elements.contains(&p.range.start))
            .map(|p| p.entry.name.as_str())
            .collect();
        let tensors = match (names.first(), names.last()) {
            (Some(first), Some(last)) => format!("{first} to {last}"),
            _ => "no tensor".to_owned(),
        };
        ParallelError::Collective {
            bucket: place + 1,
            buckets: self.buckets.len(),
            tensors,
            source,
        }
    }

    fn recycle(&mut self, buckets: Vec<Buffer>) {
        for (bucket, buffer) in self.buckets.iter_mut().zip(buckets) {
            bucket.recycle(buffer);
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
        let come = micro_batches.iter().map(|batch| batch.shard.0);
        if !come.clone().eq(run.clone()) {
            let come: Vec<u32> = come.collect();
            let problem = format!("shards {come:?} came where {run:?} are to be computed");
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

    fn reduce(&mut self) -> Result<Reduced, ParallelError> {
        if !std::mem::take(&mut self.is_computed) {
            let problem = format!("shards {:?} were not computed", self.run());
            return Err(ParallelError::OutOfOrder { problem });
        }
        let mut buckets = Vec::with_capacity(self.buckets.len());
        for place in 0..self.buckets.len() {
            match self.buckets[place].wait() {
                Some(Ok(buffer)) => buckets.push(buffer),
                Some(Err(source)) => return Err(self.bucket_error(place, source)),
                None => {
                    return Err(ParallelError::OutOfOrder {
                        problem: "no reduction was started".to_owned(),
                    });
                }
            }
        }
        Ok(Reduced { buckets })
    }

    fn apply(
        &mut self,
        step: Step,
        reduced: Reduced,
        samples: u64,
        learning_rate: f64,
    ) -> Result<Applied, ParallelError> {
        let buckets = reduced.buckets;
        let scale = GradientScale::new(samples.max(1), self.scale.inverse().unwrap_or(1.0));
        // Decided from the reduced gradient alone, which all ranks hold alike.
        let gradient_norm = match self.gradient_norm(&buckets, scale) {
            Err(ParallelError::NotFinite { .. }) if self.scale.skip() => {
                self.recycle(buckets);
                return Ok(Applied::SKIPPED);
            }
            norm => norm?,
        };
        let factor = self
            .config
            .clip_norm
            .map_or(1.0, |limit| clip_factor(gradient_norm, limit));
        let number = step.0 + 1 - self.scale.skipped();
        self.update(number, &buckets, learning_rate, samples, scale.then(factor));
        self.scale.applied();
        self.recycle(buckets);
        self.state.load_into(&mut self.chain);
        Ok(Applied {
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
        // The old ones lie in memory of the group before.
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

    fn evaluate(&mut self, mut batch: MicroBatch) -> Result<LossOutput, ParallelError> {
        let shard = batch.shard;
        let engine = |source| ParallelError::Engine { shard, source };
        let output = self
            .forward(Step(0), &mut batch, Mode::Evaluate)
            .map_err(engine)?;
        let loss = self.config.loss;
        loss.of(output.as_slice(), &batch.labels, batch.samples())
            .map_err(engine)
    }
}
