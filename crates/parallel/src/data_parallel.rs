//! Synchronous data parallelism: every rank a full replica, each its own logical shards, gradients
//! summed exactly over shards before the optimizer step.
//!
//! A shard's gradients are added bucket by bucket along the fixed tree ([`ronde_core::exact`]); with
//! the last shard of the run a bucket's reduction over ranks starts as soon as its stages are
//! through their backward pass, while the stages before them still compute.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::layout::Role;
use ronde_core::norm::{block_sums, clip_factor, norm};
use ronde_core::seed::SeedTree;
use ronde_core::session::ShardReport;
use ronde_core::shards::ShardPlan;
use ronde_core::{Buffer, Collectives, Operation, Shard, Step};
use ronde_engine::{
    Activation, Chain, EngineError, ForwardContext, Mode, OptimizerConfig, SoftmaxCrossEntropy,
    WeightDecayOn,
};

use crate::bucket::{self, Bucket};
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
    /// Stages share a bucket up to this many bytes.
    pub bucket_bytes_max: usize,
    /// Classes that the model tells apart.
    pub classes: usize,
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
    /// Updates by `optimizer` of a model that tells `classes` apart: all parameters decayed, no
    /// clipping, buckets of 4 MiB.
    #[must_use]
    pub fn new(optimizer: OptimizerConfig, classes: usize) -> Self {
        Self {
            optimizer,
            weight_decay_on: WeightDecayOn::default(),
            clip_norm: None,
            bucket_bytes_max: 4 << 20,
            classes,
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
    buckets: Vec<Bucket>,
    next_shard: u32,
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
        let next_shard = shards.run(group.rank()).start;
        let mut this = Self {
            group,
            config,
            shards,
            seeds,
            chain,
            state,
            optimizer_states,
            buckets,
            next_shard,
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

    /// The state, writable: for loading a saved one. Takes effect with [`Strategy::reload`].
    pub fn state_mut(&mut self) -> &mut ModelState {
        &mut self.state
    }

    fn run(&self) -> Range<u32> {
        self.shards.run(self.group.rank())
    }

    fn context(&self, step: Step, shard: Shard, stage: usize, mode: Mode) -> ForwardContext {
        ForwardContext {
            seeds: self.seeds,
            step,
            shard,
            stage: stage as u32,
            mode,
        }
    }

    fn forward(
        &mut self,
        step: Step,
        batch: &mut MicroBatch,
        mode: Mode,
    ) -> Result<Vec<f32>, EngineError> {
        let mut activation =
            Activation::from_host(&batch.shape, std::mem::take(&mut batch.features));
        for stage in 0..self.chain.len() {
            let context = self.context(step, batch.shard, stage, mode);
            activation = self.chain.stages_mut()[stage].forward(activation, &context)?;
        }
        Ok(activation.into_host())
    }

    /// Backward of all stages, last first; fills, adds and (with the run's last shard) sends buckets.
    fn backward_buckets(
        &mut self,
        batch: &MicroBatch,
        gradient: Option<Activation>,
        last: bool,
    ) -> Result<(), ParallelError> {
        let mut gradient = gradient;
        for place in 0..self.buckets.len() {
            let mut buffer = self.buckets[place].take_buffer(&*self.group);
            match gradient.take() {
                Some(output) => {
                    let input = self
                        .backward_stages(place, batch, output, buffer.as_mut_slice())
                        .map_err(|source| ParallelError::Engine {
                            shard: batch.shard,
                            source,
                        })?;
                    gradient = input;
                }
                // A shard without samples adds nothing.
                None => buffer.as_mut_slice::<f32>().fill(0.0),
            }
            self.buckets[place].add_shard(batch.shard.0, buffer);
            if last {
                self.start_bucket(place)?;
            }
        }
        Ok(())
    }

    /// Starts the sum of a bucket over all shards of all ranks.
    fn start_bucket(&mut self, place: usize) -> Result<(), ParallelError> {
        let operation = Operation::ExactSum(self.shards.exact_sum());
        let started = self.buckets[place].start(&*self.group, operation);
        started.map_err(|source| self.bucket_error(place, source))
    }

    /// Backward of the stages of one bucket into its buffer; gives the gradient of their input.
    fn backward_stages(
        &mut self,
        place: usize,
        batch: &MicroBatch,
        output: Activation,
        buffer: &mut [f32],
    ) -> Result<Option<Activation>, EngineError> {
        let bucket = &self.buckets[place].plan;
        let weight = batch.labels.len() as f32;
        let mut gradient = Some(output);
        for stage in bucket.stages.clone().rev() {
            let Some(output) = gradient.take() else { break };
            let ranges = self.state.stage_ranges(stage, bucket.elements.start);
            gradient = self.chain.stages_mut()[stage].backward(
                batch.shard,
                output,
                buffer,
                &ranges,
                stage > 0,
            )?;
            for (entry, range) in self.chain.stages()[stage]
                .layout()
                .tensors
                .iter()
                .zip(ranges)
            {
                if entry.role == Role::Buffer {
                    buffer[range].iter_mut().for_each(|value| *value *= weight);
                }
            }
        }
        Ok(gradient)
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

    /// Divides the sums by the global count, once.
    fn average(buckets: &mut [Buffer], samples: u64) {
        let count = samples as f32;
        for bucket in buckets {
            bucket
                .as_mut_slice::<f32>()
                .iter_mut()
                .for_each(|value| *value /= count);
        }
    }

    /// The gradient's norm over all parameters, summed in the order of the flat state.
    fn gradient_norm(&self, buckets: &[Buffer]) -> Result<f64, ParallelError> {
        let mut sums = Vec::new();
        for place in self
            .state
            .places()
            .iter()
            .filter(|p| p.entry.role == Role::Parameter)
        {
            let Some((bucket, within)) = self.locate(&place.range) else {
                continue;
            };
            let before = sums.len();
            sums.extend(block_sums(&buckets[bucket].as_slice::<f32>()[within]));
            if sums[before..].iter().any(|sum| !sum.is_finite()) {
                return Err(ParallelError::NotFinite {
                    tensor: place.entry.name.clone(),
                });
            }
        }
        Ok(norm(sums.into_iter()))
    }

    /// Optimizer step of every parameter, new values of every buffer.
    fn update(&mut self, step: Step, buckets: &mut [Buffer], learning_rate: f64, factor: f32) {
        for index in 0..self.state.places().len() {
            let place = &self.state.places()[index];
            let (range, role) = (place.range.clone(), place.entry.role);
            let mut rule = self.config.optimizer;
            if !self.config.weight_decay_on.includes(&place.entry.shape) {
                rule = rule.without_decay();
            }
            let Some((bucket, within)) = self.locate(&range) else {
                continue;
            };
            let new = &mut buckets[bucket].as_mut_slice::<f32>()[within];
            let values = &mut self.state.values_mut()[range.clone()];
            if role == Role::Buffer {
                values.copy_from_slice(new);
                continue;
            }
            if factor != 1.0 {
                new.iter_mut().for_each(|value| *value *= factor);
            }
            let mut states: Vec<&mut [f32]> = self
                .optimizer_states
                .iter_mut()
                .map(|state| &mut state[range.clone()])
                .collect();
            rule.step(step.0 + 1, learning_rate, values, new, &mut states);
        }
    }

    /// The bucket that holds a run of the flat state, and where; `None` for an empty run.
    fn locate(&self, range: &Range<usize>) -> Option<(usize, Range<usize>)> {
        let place = self
            .buckets
            .partition_point(|bucket| bucket.plan.elements.end <= range.start);
        let base = self.buckets.get(place)?.plan.elements.start;
        (!range.is_empty()).then(|| (place, range.start - base..range.end - base))
    }
}

fn fresh_buckets(
    state: &ModelState,
    config: &DataParallelConfig,
    shards: &ShardPlan,
) -> Vec<Bucket> {
    bucket::plan(state.stage_elements(), config.bucket_bytes_max)
        .into_iter()
        .map(|plan| Bucket::new(plan, shards.shards()))
        .collect()
}

impl Strategy for DataParallel {
    fn backward(
        &mut self,
        step: Step,
        mut batch: MicroBatch,
    ) -> Result<ShardReport, ParallelError> {
        if batch.shard.0 != self.next_shard {
            let problem = format!(
                "shard {} came where shard {} is next",
                batch.shard, self.next_shard
            );
            return Err(ParallelError::OutOfOrder { problem });
        }
        let shard = batch.shard;
        let engine = |source| ParallelError::Engine { shard, source };
        let last = shard.0 + 1 == self.run().end;
        let samples = batch.labels.len() as u64;
        let (mut loss_sum, mut correct, mut gradient) = (0.0, 0, None);
        let begun = self.now();
        if samples > 0 {
            let logits = self
                .forward(step, &mut batch, Mode::Train)
                .map_err(engine)?;
            let classes = self.config.classes;
            let loss =
                SoftmaxCrossEntropy::loss(&logits, classes, &batch.labels).map_err(engine)?;
            (loss_sum, correct) = (loss.loss_sum, loss.correct);
            gradient = Some(Activation::from_host(
                &[batch.labels.len(), classes],
                loss.gradient,
            ));
        }
        let turned = self.now();
        self.backward_buckets(&batch, gradient, last)?;
        self.times.forward_s += turned - begun;
        self.times.backward_s += self.now() - turned;
        self.next_shard += 1;
        Ok(ShardReport {
            shard,
            samples,
            loss_sum,
            correct,
        })
    }

    fn reduce(&mut self) -> Result<Reduced, ParallelError> {
        let run = self.run();
        if self.next_shard != run.end {
            let problem = format!("shards {} to {} are missing", self.next_shard, run.end);
            return Err(ParallelError::OutOfOrder { problem });
        }
        if run.is_empty() {
            // A rank without a shard adds nothing and gets the sum all the same.
            for place in 0..self.buckets.len() {
                self.start_bucket(place)?;
            }
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
        self.next_shard = run.start;
        Ok(Reduced { buckets })
    }

    fn apply(
        &mut self,
        step: Step,
        reduced: Reduced,
        samples: u64,
        learning_rate: f64,
    ) -> Result<Applied, ParallelError> {
        let mut buckets = reduced.buckets;
        Self::average(&mut buckets, samples);
        let gradient_norm = self.gradient_norm(&buckets)?;
        let factor = self
            .config
            .clip_norm
            .map_or(1.0, |limit| clip_factor(gradient_norm, limit));
        self.update(step, &mut buckets, learning_rate, factor);
        for (bucket, buffer) in self.buckets.iter_mut().zip(buckets) {
            bucket.recycle(buffer);
        }
        self.state.load_into(&mut self.chain);
        Ok(Applied {
            gradient_norm,
            clip_factor: factor,
        })
    }

    fn abort(&mut self) {
        self.next_shard = self.run().start;
        self.buckets.iter_mut().for_each(Bucket::reset);
        self.chain
            .stages_mut()
            .iter_mut()
            .for_each(|stage| stage.discard());
    }

    fn regroup(&mut self, group: Arc<dyn Collectives>, shards: ShardPlan) {
        self.group = group;
        self.shards = shards;
        // The old ones lie in memory of the group before.
        self.buckets = fresh_buckets(&self.state, &self.config, &shards);
        self.next_shard = self.run().start;
    }

    fn state(&self) -> &ModelState {
        &self.state
    }

    fn replica(&self) -> Vec<&[f32]> {
        let optimizer = self.optimizer_states.iter().map(Vec::as_slice);
        std::iter::once(self.state.values())
            .chain(optimizer)
            .collect()
    }

    fn replica_mut(&mut self) -> Vec<&mut [f32]> {
        let optimizer = self.optimizer_states.iter_mut().map(Vec::as_mut_slice);
        std::iter::once(self.state.values_mut())
            .chain(optimizer)
            .collect()
    }

    fn reload(&mut self) {
        self.state.load_into(&mut self.chain);
    }

    fn evaluate(&mut self, mut batch: MicroBatch) -> Result<(f64, u64), ParallelError> {
        let shard = batch.shard;
        let engine = |source| ParallelError::Engine { shard, source };
        let logits = self
            .forward(Step(0), &mut batch, Mode::Evaluate)
            .map_err(engine)?;
        let loss = SoftmaxCrossEntropy::loss(&logits, self.config.classes, &batch.labels)
            .map_err(engine)?;
        Ok((loss.loss_sum, loss.correct))
    }
}
