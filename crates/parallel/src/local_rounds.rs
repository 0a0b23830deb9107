//! [`LocalRounds`]: replicas train alone for a round of inner steps; then the exact sum of their displacements is one gradient of
//! an outer optimizer.
//!
//! Sources: McMahan et al., "Communication-efficient learning", AISTATS 2017 (averaging); Stich, "Local SGD converges fast",
//! ICLR 2019; Douillard et al., "DiLoCo", arXiv:2311.08105, algorithm 1 (outer Nesterov momentum).
//!
//! The number of replicas is fixed by the plan. A rank computes a contiguous range of them one after the other, all from the
//! same state, and a replica's contribution to the sum is a leaf of the exact sum, so the bits do not depend on the ranks.
//! Cost of a round: one exact sum of the state; of the states of the inner optimizer too, if these are averaged.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use ronde_core::holdings::HeldRanges;
use ronde_core::layout::Role;
use ronde_core::norm::BLOCK;
use ronde_core::session::ShardReport;
use ronde_core::step_layout::StepLayout;
use ronde_core::{Buffer, DType, Group, GroupRank, Operation, Shard, Step};
use ronde_engine::{Activation, Chain, Device, GradientScale, OptimizerConfig, sum_of_squares};

use crate::bucket::{Bucket, BucketPlan};
use crate::compression::{
    Codec, CodedSum, CompressedExchange, CompressionConfig, Residuals, SentGradient,
};
use crate::strategy::{GradientPart, LocalStep, ReplicaRounds};
use crate::synchronous::replica::{ReplicaUpdate, common};
use crate::{
    ComputeTimes, EvaluationPart, HeldVector, HeldVectorMut, InnerLosses, MicroBatch, ModelState,
    ParallelError, ReducedGradient, Strategy, SynchronousStrategy, UpdateReport,
};

/// What happens to the states of the inner optimizer between two rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InnerState {
    /// They begin at zero in every round, and are never sent.
    #[default]
    Reset,
    /// Every replica continues from their mean over all replicas.
    Average,
}

/// The settings of rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalRoundsConfig {
    /// The update rule of the outer step: SGD.
    pub outer: OptimizerConfig,
    /// The learning rate of the outer step. With 1 and no momentum, the weights become the mean of the replicas.
    pub outer_learning_rate: f64,
    /// The states of the inner optimizer.
    pub inner_state: InnerState,
    /// The form in which displacements are sent, if their errors are dropped.
    pub outer_format: Codec,
    /// The form in which displacements are sent, with each replica as a sender, if their errors are added to the next ones.
    pub compression: Option<CompressionConfig>,
}

/// A round on its way.
struct RunningRound {
    /// The weights and buffers from which every replica starts.
    start: Vec<f32>,
    /// The replica that is being computed, with the number of its samples so far.
    replica: Option<(Shard, u64)>,
    /// The tensor whose gradient was not finite in an inner step of this replica.
    diverged: Option<String>,
}

/// The strategy's state on one rank.
///
/// Between rounds, the inner strategy has the weights of the run. During a round it has those of the current replica.
pub struct LocalRounds {
    group: Arc<dyn Group>,
    layout: StepLayout,
    config: LocalRoundsConfig,
    inner: Box<SynchronousStrategy>,
    /// The states of the outer optimizer.
    outer_states: Vec<Vec<f32>>,
    /// The mean states of the inner optimizer after the last round, if they are averaged.
    averaged: Vec<Vec<f32>>,
    /// The exchange of the displacements, if they are sent in a short form.
    coded: Option<CodedSum>,
    /// The exchange of the displacements with residuals, if the settings have it.
    compressed: Option<CompressedExchange>,
    /// The displacements of the replicas of this rank, if they are sent with residuals.
    leaves: Vec<(u32, Buffer)>,
    /// Memory for a displacement that is sent in a short form.
    scratch: Vec<f32>,
    /// The buckets of the displacements, unless these are sent in a short form, then those of each averaged state.
    buckets: Vec<Bucket>,
    running: Option<RunningRound>,
    /// The memory of the start of a round, between rounds.
    spare: Vec<f32>,
    losses: InnerLosses,
    is_computed: bool,
}

impl LocalRounds {
    /// Creates the strategy. `inner` trains one replica: on a group of its own, with the micro-batches of an inner step as
    /// shards. The shards of `layout` are the replicas.
    ///
    /// # Panics
    /// When `inner` does not hold the whole state, which is a bug of the caller.
    #[must_use]
    pub fn new(
        inner: SynchronousStrategy,
        group: Arc<dyn Group>,
        layout: StepLayout,
        config: LocalRoundsConfig,
    ) -> Self {
        let len = inner.state().len();
        assert_eq!(inner.stored().len(), len, "a replica has the whole state");
        let zeros = |count: usize| vec![vec![0.0; len]; count];
        let averaged = match config.inner_state {
            InnerState::Reset => Vec::new(),
            InnerState::Average => zeros(inner.optimizer_states().len()),
        };
        let mut this = Self {
            group,
            layout,
            config,
            coded: None,
            compressed: None,
            leaves: Vec::new(),
            scratch: Vec::new(),
            inner: Box::new(inner),
            outer_states: zeros(config.outer.state_names().len()),
            averaged,
            buckets: Vec::new(),
            running: None,
            spare: Vec::new(),
            losses: InnerLosses::default(),
            is_computed: false,
        };
        this.compressed = this.config.compression.map(|config| {
            let (shards, rank) = (this.layout.shards(), this.group.rank());
            let (seeds, state) = (this.inner.seeds(), this.inner.state());
            CompressedExchange::new(config, seeds, state, (shards, rank))
        });
        this.renew_buckets();
        this
    }

    /// Creates the exchange of the displacements and the buckets in the memory of the group.
    fn renew_buckets(&mut self) {
        let (format, ranks) = (self.config.outer_format, self.layout.ranks());
        self.coded = (format != Codec::F32).then(|| {
            let state = self.inner.state();
            CodedSum::new(state, 0..state.len(), format, ranks)
        });
        if let Some(compressed) = &mut self.compressed {
            let state = self.inner.state();
            let all = std::iter::once(0..state.len());
            compressed.arrange(state, self.layout.shards(), all);
        }
        let (len, replicas) = (self.inner.state().len(), self.layout.shards().shards());
        let plans = self.inner.bucket_plans();
        let first = usize::from(self.is_short());
        let shifted = (first..=self.averaged.len()).flat_map(|vector| {
            let shift = vector * len;
            plans.iter().map(move |plan| BucketPlan {
                elements: plan.elements.start + shift..plan.elements.end + shift,
                ..plan.clone()
            })
        });
        let buckets = shifted.map(|plan| Bucket::new(plan, Vec::new(), false, replicas));
        self.buckets = buckets.collect();
    }

    /// Returns whether displacements are sent in a short form, in one part.
    fn is_short(&self) -> bool {
        self.coded.is_some() || self.compressed.is_some()
    }

    /// Returns the vector and the elements of the state that a range of the buckets stands for: 0 for the weights, then the
    /// averaged states.
    fn vector_of(&self, elements: &Range<usize>) -> (usize, Range<usize>) {
        let len = self.inner.state().len().max(1);
        let vector = elements.start / len;
        (
            vector,
            elements.start - vector * len..elements.end - vector * len,
        )
    }

    fn exchange_failed(&self, source: ronde_core::CollectiveError) -> ParallelError {
        ParallelError::Exchange {
            action: "sum the displacements of the replicas".to_owned(),
            source,
        }
    }

    /// Returns the weights to the state before the round, if one is under way.
    fn leave_round(&mut self) {
        if let Some(running) = self.running.take() {
            self.inner.restore(&running.start, None);
            self.spare = running.start;
        }
    }

    /// Discards the contributions of replicas.
    fn reset_sums(&mut self) {
        self.buckets.iter_mut().for_each(Bucket::reset);
        self.leaves.clear();
        if let Some(coded) = &mut self.coded {
            coded.reset();
        }
        if let Some(compressed) = &mut self.compressed {
            compressed.reset();
        }
    }

    /// Writes the contribution of the current replica to the sum.
    fn write_leaf(
        &self,
        elements: &Range<usize>,
        (running, samples): (&RunningRound, u64),
        to: &mut [f32],
    ) {
        let weight = samples as f32;
        let (vector, elements) = self.vector_of(elements);
        if let Some(state) = vector.checked_sub(1) {
            let state = &self.inner.optimizer_states()[state][elements];
            for (to, value) in to.iter_mut().zip(state) {
                *to = value * weight;
            }
            return;
        }
        let (start, end) = (&running.start[elements.clone()], self.inner.state());
        let end_values = &end.values()[elements.clone()];
        for ((to, start), end) in to.iter_mut().zip(start).zip(end_values) {
            *to = (start - end) * weight;
        }
        for tensor in end.tensors() {
            let range = common(&tensor.range, &elements);
            let is_diverged = running.diverged.as_ref() == Some(&tensor.entry.name);
            let at = range.start - elements.start;
            let values = &mut to[at..at + range.len()];
            if is_diverged {
                values.fill(f32::NAN);
            } else if tensor.entry.role == Role::Buffer {
                for (to, value) in values.iter_mut().zip(&end.values()[range]) {
                    *to = value * weight;
                }
            }
        }
    }

    /// Returns the norm of the mean displacement.
    ///
    /// # Errors
    /// [`ParallelError::NotFinite`] with the first tensor that is not finite.
    fn norm(&self, parts: &[GradientPart], scale: &GradientScale) -> Result<f64, ParallelError> {
        let mut total = 0.0;
        for tensor in self.inner.state().tensors() {
            let mut squares = 0.0;
            for part in parts {
                let range = common(&tensor.range, &part.elements);
                let values = part.values(&range);
                squares += values.chunks(BLOCK).map(sum_of_squares).sum::<f64>();
            }
            if !squares.is_finite() {
                let tensor = tensor.entry.name.clone();
                return Err(ParallelError::NotFinite { tensor });
            }
            if tensor.entry.role == Role::Parameter {
                total += squares;
            }
        }
        Ok(total.sqrt() * scale.factor())
    }

    /// Makes the outer step on the part of the weights in a bucket, and takes over the means of the buffers.
    fn update_weights(&mut self, part: &GradientPart, scale: &GradientScale, number: u64) {
        let tensors: Vec<(Range<usize>, Role)> = (self.inner.state().tensors().iter())
            .map(|tensor| (common(&tensor.range, &part.elements), tensor.entry.role))
            .collect();
        let (rule, rate) = (self.config.outer, self.config.outer_learning_rate);
        let states = &mut self.outer_states;
        let mut scaled = [0.0; BLOCK];
        self.inner.with_weights(|weights| {
            for (range, role) in tensors {
                for start in range.clone().step_by(BLOCK) {
                    let run = start..(start + BLOCK).min(range.end);
                    let values = &mut weights[run.clone()];
                    if role == Role::Buffer {
                        scale.write(part.values(&run), values);
                        continue;
                    }
                    let gradient = &mut scaled[..run.len()];
                    scale.write(part.values(&run), gradient);
                    let states = states.iter_mut().map(|state| &mut state[run.clone()]);
                    let mut states: Vec<&mut [f32]> = states.collect();
                    rule.step(number, rate, 1.0, values, gradient, &mut states);
                }
            }
        });
    }
}

impl ReplicaRounds for LocalRounds {
    fn begin_round(&mut self) {
        self.leave_round();
        self.reset_sums();
        self.losses = InnerLosses::default();
        let mut start = std::mem::take(&mut self.spare);
        start.clear();
        start.extend_from_slice(self.inner.state().values());
        self.running = Some(RunningRound {
            start,
            replica: None,
            diverged: None,
        });
    }

    fn inner_step(
        &mut self,
        step: &LocalStep,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<Vec<ShardReport>, ParallelError> {
        let Some(running) = &mut self.running else {
            return Err(no_round());
        };
        let current = running.replica.map(|(replica, _)| replica);
        if current != Some(step.replica) {
            (running.replica, running.diverged) = (Some((step.replica, 0)), None);
            let averaged = Some(self.averaged.as_slice());
            let states = averaged.filter(|averaged| !averaged.is_empty());
            self.inner.restore(&running.start, states);
            self.losses.begin(step.replica.0);
        }
        let update = ReplicaUpdate {
            random: step.random,
            number: match self.config.inner_state {
                InnerState::Reset => step.index,
                InnerState::Average => step.number,
            },
            learning_rate: step.learning_rate,
        };
        let unused = unused(&micro_batches);
        let samples = unused.iter().map(|report| report.samples).sum();
        let reports = match running.diverged.is_some() {
            // All ranks learn of it from the sum.
            true => unused,
            false => match self.inner.update_replica(update, micro_batches) {
                Err(ParallelError::NotFinite { tensor }) => {
                    running.diverged = Some(tensor);
                    unused
                }
                reports => reports?,
            },
        };
        let loss_sum = reports.iter().map(|report| report.loss_sum).sum();
        self.losses.add(step.replica.0, loss_sum, samples);
        running.replica = running
            .replica
            .map(|(replica, sum)| (replica, sum + samples));
        Ok(reports)
    }

    fn finish_replica(&mut self) -> Result<(), ParallelError> {
        let Some(running) = self.running.take() else {
            return Err(no_round());
        };
        let Some((replica, samples)) = running.replica else {
            self.running = Some(running);
            return Err(no_round());
        };
        let group = self.group.clone();
        if let Some(mut coded) = self.coded.take() {
            let mut leaf = std::mem::take(&mut self.scratch);
            leaf.resize(self.inner.state().len(), 0.0);
            let all = 0..leaf.len();
            self.write_leaf(&all, (&running, samples), &mut leaf);
            coded.add(&mut leaf, false);
            (self.coded, self.scratch) = (Some(coded), leaf);
        }
        if self.compressed.is_some() {
            let mut leaf = Buffer::host(DType::F32, self.inner.state().len());
            let all = 0..leaf.len();
            self.write_leaf(&all, (&running, samples), leaf.as_mut_slice());
            self.leaves.push((replica.0, leaf));
        }
        for index in 0..self.buckets.len() {
            let taken = self.buckets[index].take_buffer(&*group);
            let mut leaf = match taken {
                Ok(leaf) => leaf,
                Err(source) => {
                    self.running = Some(running);
                    return Err(self.exchange_failed(source));
                }
            };
            let elements = self.buckets[index].plan.elements.clone();
            self.write_leaf(&elements, (&running, samples), leaf.as_mut_slice());
            self.buckets[index].add_shard(replica.0, leaf);
        }
        self.running = Some(running);
        Ok(())
    }

    fn finish_round(&mut self) -> Result<(), ParallelError> {
        if self.running.is_none() {
            return Err(no_round());
        }
        self.leave_round();
        let sum = self.layout.shards().exact_sum();
        let group = self.group.clone();
        if let Some(coded) = &mut self.coded
            && let Err(source) = coded.start(&*group, &sum)
        {
            return Err(self.exchange_failed(source));
        }
        let leaves = std::mem::take(&mut self.leaves);
        if let Some(compressed) = &mut self.compressed {
            if let Some(replica) = compressed.missing(0, &leaves) {
                let problem = format!("the residuals of replica {replica} are not on this worker");
                return Err(ParallelError::OutOfOrder { problem });
            }
            if let Err(source) = compressed.start(0, leaves, &*group) {
                return Err(self.exchange_failed(source));
            }
        }
        for bucket in &mut self.buckets {
            let started = bucket.start(&*group, Operation::ExactSum(sum.clone()));
            if let Err(source) = started {
                return Err(self.exchange_failed(source));
            }
        }
        self.is_computed = true;
        Ok(())
    }
}

/// Returns the reports of micro-batches that a replica without a finite gradient does not compute.
fn unused(micro_batches: &[MicroBatch]) -> Vec<ShardReport> {
    let report = |batch: &MicroBatch| ShardReport {
        shard: batch.shard,
        samples: batch.samples() as u64,
        skipped: 0,
        loss_sum: 0.0,
    };
    micro_batches.iter().map(report).collect()
}

fn no_round() -> ParallelError {
    ParallelError::OutOfOrder {
        problem: "no replica of a round is being computed".to_owned(),
    }
}

impl Strategy for LocalRounds {
    fn replica_rounds(&mut self) -> Option<&mut dyn ReplicaRounds> {
        Some(self)
    }

    fn backward(&mut self, _: Step, _: Vec<MicroBatch>) -> Result<Vec<ShardReport>, ParallelError> {
        Err(ParallelError::OutOfOrder {
            problem: "a round is computed by its inner steps".to_owned(),
        })
    }

    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError> {
        if !std::mem::take(&mut self.is_computed) {
            return Err(no_round());
        }
        let mut parts = Vec::with_capacity(self.buckets.len());
        if let Some(coded) = &mut self.coded {
            let replicas = self.layout.shards().exact_sum();
            let mut sum = Buffer::host(DType::F32, self.inner.state().len());
            let gathered = coded.gather(&*self.group, &replicas, None);
            let finished = match gathered.ok_or_else(no_round)? {
                Ok(_) => coded.finish(sum.as_mut_slice()).ok_or_else(no_round)?,
                Err(source) => Err(source),
            };
            finished.map_err(|source| self.exchange_failed(source))?;
            parts.push(GradientPart {
                elements: 0..sum.len(),
                sum,
                is_owned: true,
            });
        }
        let mut sent = SentGradient::default();
        if let Some(compressed) = &mut self.compressed {
            let mut sum = Buffer::host(DType::F32, self.inner.state().len());
            let gathered = compressed.gather(0, &*self.group, &mut sent);
            let finished = match gathered.ok_or_else(no_round)? {
                Ok(()) => {
                    (compressed.finish(0, sum.as_mut_slice(), &mut sent)).ok_or_else(no_round)?
                }
                Err(source) => Err(source),
            };
            finished.map_err(|source| self.exchange_failed(source))?;
            parts.push(GradientPart {
                elements: 0..sum.len(),
                sum,
                is_owned: true,
            });
        }
        for index in 0..self.buckets.len() {
            let elements = self.buckets[index].plan.elements.clone();
            let sum = match self.buckets[index].wait(&*self.group) {
                Some(Ok(sum)) => sum,
                Some(Err(source)) => return Err(self.exchange_failed(source)),
                None => return Err(no_round()),
            };
            parts.push(GradientPart {
                elements,
                sum,
                is_owned: true,
            });
        }
        Ok(ReducedGradient { parts, sent })
    }

    /// Returns the losses of this rank's inner steps: see [`InnerLosses`].
    fn vote_sums(
        &mut self,
        _: Step,
        _: &ReducedGradient,
        _: u64,
    ) -> Result<Vec<u8>, ParallelError> {
        Ok(self.losses.encode())
    }

    fn visit_gradient(
        &self,
        reduced: &ReducedGradient,
        samples: u64,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) {
        if self.group.rank() != GroupRank(0) {
            return;
        }
        let scale = GradientScale::new(samples.max(1), 1.0);
        let mut mean = [0.0; BLOCK];
        for (index, tensor) in self.inner.state().tensors().iter().enumerate() {
            if tensor.entry.role != Role::Parameter {
                continue;
            }
            for part in &reduced.parts {
                let range = common(&tensor.range, &part.elements);
                for start in range.clone().step_by(BLOCK) {
                    let run = start..(start + BLOCK).min(range.end);
                    let mean = &mut mean[..run.len()];
                    scale.write(part.values(&run), mean);
                    visit(index, mean);
                }
            }
        }
    }

    /// Makes the outer step. The learning rate is that of the settings.
    fn apply(
        &mut self,
        step: Step,
        reduced: ReducedGradient,
        _: &[Vec<u8>],
        samples: u64,
        _: f64,
    ) -> Result<UpdateReport, ParallelError> {
        let scale = GradientScale::new(samples.max(1), 1.0);
        let len = self.inner.state().len();
        let is_of_weights = |part: &GradientPart| part.elements.start < len.max(1);
        let first_state = reduced.parts.iter().position(|part| !is_of_weights(part));
        let weights = &reduced.parts[..first_state.unwrap_or(reduced.parts.len())];
        let gradient_norm = self.norm(weights, &scale)?;
        if samples > 0 {
            for part in weights {
                self.update_weights(part, &scale, step.0 + 1);
            }
            for part in &reduced.parts[weights.len()..] {
                let (vector, elements) = self.vector_of(&part.elements);
                let mean = &mut self.averaged[vector - 1][elements];
                scale.write(part.values(&part.elements), mean);
            }
        }
        if let Some(compressed) = &mut self.compressed {
            compressed.keep(reduced.sent, step);
        }
        let coded = usize::from(self.is_short());
        for (bucket, part) in self
            .buckets
            .iter_mut()
            .zip(reduced.parts.into_iter().skip(coded))
        {
            bucket.recycle(part.sum);
        }
        Ok(UpdateReport {
            gradient_norm,
            clip_factor: 1.0,
            is_skipped: false,
        })
    }

    fn gather_weights(&mut self, step: Option<Step>) -> Result<(), ParallelError> {
        self.inner.gather_weights(step)
    }

    fn abort(&mut self) {
        self.is_computed = false;
        self.inner.abort();
        self.leave_round();
        self.reset_sums();
    }

    fn regroup(&mut self, group: Arc<dyn Group>, layout: StepLayout) -> Result<(), ParallelError> {
        (self.group, self.layout) = (group, layout);
        self.is_computed = false;
        self.leave_round();
        self.reset_sums();
        // The old buckets are in memory of the previous group.
        self.renew_buckets();
        Ok(())
    }

    fn held(&self) -> &HeldRanges {
        self.inner.held()
    }

    fn owned(&self) -> Vec<HeldRanges> {
        self.layout()
    }

    fn layout(&self) -> Vec<HeldRanges> {
        vec![self.inner.held().clone(); self.layout.ranks()]
    }

    fn hold(&mut self, elements: HeldRanges) {
        self.inner.hold(elements);
    }

    fn reset(&mut self) -> Result<(), ParallelError> {
        self.inner.reset()
    }

    fn state(&self) -> &ModelState {
        self.inner.state()
    }

    fn digest(&self, step: Option<Step>) -> u64 {
        self.inner.digest(step)
    }

    fn vectors(&self) -> Vec<HeldVector<'_>> {
        let held = self.inner.held();
        let of = |values| HeldVector {
            is_flat: true,
            held: Cow::Borrowed(held),
            values,
        };
        let states = self.outer_states.iter().chain(&self.averaged);
        let compressed = self.compressed.iter();
        std::iter::once(of(self.inner.state().values()))
            .chain(states.map(|values| of(values.as_slice())))
            .chain(compressed.flat_map(CompressedExchange::vectors))
            .collect()
    }

    fn vectors_mut(&mut self) -> Vec<HeldVectorMut<'_>> {
        let held = self.inner.held().clone();
        let states = self.outer_states.iter_mut().chain(&mut self.averaged);
        let compressed = self.compressed.iter_mut();
        let of = |values| HeldVectorMut {
            held: Cow::Owned(held.clone()),
            values,
        };
        std::iter::once(of(self.inner.state_mut().values_mut()))
            .chain(states.map(|values| of(values.as_mut_slice())))
            .chain(compressed.flat_map(CompressedExchange::vectors_mut))
            .collect()
    }

    fn residuals(&self) -> Option<&Residuals> {
        self.compressed.as_ref().map(CompressedExchange::residuals)
    }

    fn residuals_mut(&mut self) -> Option<&mut Residuals> {
        self.compressed
            .as_mut()
            .map(CompressedExchange::residuals_mut)
    }

    fn reload(&mut self) {
        self.inner.reload();
    }

    fn swap_weights(&mut self, values: &mut [f32]) {
        self.inner.swap_weights(values);
    }

    fn state_mut(&mut self) -> &mut ModelState {
        self.inner.state_mut()
    }

    fn into_chain(self: Box<Self>) -> Chain {
        self.inner.into_chain()
    }

    fn set_device(&mut self, device: &Arc<dyn Device>) {
        self.inner.set_device(device);
    }

    fn part_group(&self) -> Option<&dyn Group> {
        None
    }

    fn take_times(&mut self) -> ComputeTimes {
        self.inner.take_times()
    }

    /// Returns the same number for all sizes: nothing is computed while the buckets are summed, so their size is not tuned.
    fn buckets_of(&self, _: usize) -> usize {
        self.buckets.len()
    }

    fn set_bucket_bytes(&mut self, _: usize) {}

    fn evaluation_part(&self) -> EvaluationPart {
        let rank = self.group.rank();
        EvaluationPart {
            groups: self.layout.replicas() as u64,
            group: self.layout.place(rank).map(|place| place.replica as u64),
            loads: self.layout.is_at_an_end(rank),
            ..self.inner.evaluation_part()
        }
    }

    fn predict(
        &mut self,
        batch: Option<&mut MicroBatch>,
    ) -> Result<Option<Activation>, ParallelError> {
        self.inner.predict(batch)
    }
}
