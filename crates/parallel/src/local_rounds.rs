//! [`LocalRounds`]: replicas train alone for a round of inner steps; then the exact sum of their displacements is one gradient of
//! an outer optimizer.
//!
//! Sources: McMahan et al., "Communication-efficient learning", AISTATS 2017 (averaging); Stich, "Local SGD converges fast",
//! ICLR 2019; Douillard et al., "DiLoCo", arXiv:2311.08105, algorithm 1 (outer Nesterov momentum); Douillard et al., "Streaming
//! DiLoCo", arXiv:2501.18512 (fragments that are summed in turn, while replicas compute).
//!
//! The number of replicas is fixed by the plan. A rank computes a contiguous range of them one after the other, and a replica's
//! contribution to the sum is a leaf of the exact sum, so the bits do not depend on the ranks.
//! Cost of a round: one exact sum of the state, or of a fragment; of the states of the inner optimizer too, if these are averaged.
//!
//! A round is one step of the session: its global batch has the samples of all inner steps, and its shards are replicas. A
//! `SynchronousStrategy` on a group of one trains a replica; reduction, vote, healing and checkpoints are the same as for a
//! gradient. So a lost rank costs the round, and the transaction needs no further state. A rank looks at its group between inner
//! steps (`Collectives::failure`), because it exchanges nothing for long. The displacement of a fragment is a function of the state
//! at the start of a round: its sum starts there and is used at the end, so nothing is in flight between rounds. Fragments are
//! whole layers, because units of short forms are assigned to ranks by layer.

mod kept;
mod outer_sum;

use std::ops::Range;
use std::sync::Arc;

use ronde_core::layout::Role;
use ronde_core::norm::BLOCK;
use ronde_core::step_layout::StepLayout;
use ronde_core::{BatchCounts, Group, Shard, Step};
use ronde_engine::{Chain, GradientScale, OptimizerConfig, sum_of_squares};
use ronde_protocol::transaction::ShardReport;

use self::kept::KeptReplicas;
use self::outer_sum::OuterSum;
use crate::compression::{Codec, CompressionConfig, CompressionState};
use crate::error::ParallelError;
use crate::inner_losses::InnerLosses;
use crate::state::ModelState;
use crate::state_view::{
    MeanGradient, ModelHandle, RoundState, RunVector, RunVectorMut, StateEdit, StateView,
};
use crate::step_method::{
    CommittedUpdate, GradientPart, LocalStep, MicroBatch, ReducedGradient, StepMethod, UpdateReport,
};
use crate::synchronous::SynchronousStrategy;
use crate::synchronous::replica::{ReplicaUpdate, common};

/// What happens to the states of the inner optimizer between two rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InnerState {
    /// They begin at zero in every round, and are never sent.
    #[default]
    Reset,
    /// Every replica continues from their mean over all replicas.
    Average,
    /// Every replica continues from its own.
    Keep,
}

/// The settings of fragments: parts of the state that are summed in turn, while replicas compute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamingConfig {
    /// The number of fragments. Round `r` sums fragment `r` modulo this number.
    pub fragments: u32,
    /// The share of the present weights that a replica keeps of a fragment when it receives the new ones, from 0 to 1.
    pub own_share: f32,
}

/// The settings of rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalRoundsConfig {
    /// The update rule of the outer step: SGD.
    pub outer: OptimizerConfig,
    /// The learning rate of the outer step. With 1 and no momentum, the weights become the mean of the replicas.
    pub outer_learning_rate: f64,
    /// The states of the inner optimizer; kept if there are fragments.
    pub inner_state: InnerState,
    /// The fragments; `None`: the whole state is summed after each round.
    pub streaming: Option<StreamingConfig>,
    /// The form in which displacements are sent, if their errors are dropped.
    pub outer_format: Codec,
    /// The form in which displacements are sent, with each replica as a sender, if their errors are added to the next ones.
    pub compression: Option<CompressionConfig>,
}

impl LocalRoundsConfig {
    /// Returns the number of fragments; one without streaming.
    fn fragments(&self) -> u32 {
        self.streaming.map_or(1, |streaming| streaming.fragments)
    }
}

/// Returns the starts of the layers that have weights or buffers, in the order of the flat state.
fn layer_starts(state: &ModelState) -> Vec<usize> {
    let layers = state.regions().iter().flatten();
    let layers = layers.filter(|layer| !layer.is_empty());
    let mut starts: Vec<usize> = layers.map(|layer| layer.start).collect();
    starts.sort_unstable();
    starts
}

/// Returns the most fragments into which a state can be divided: each has at least one layer.
#[must_use]
pub fn fragments_max(state: &ModelState) -> usize {
    layer_starts(state).len()
}

/// Divides the flat state into fragments of whole layers, nearly even. Fewer than `count` if there are not enough layers.
fn fragments(state: &ModelState, count: u32) -> Vec<Range<usize>> {
    let starts = layer_starts(state);
    let count = (count as usize).clamp(1, starts.len().max(1));
    let mut borders = vec![0];
    let mut at = 0;
    for index in 1..count {
        let wanted = (state.len() as u128 * index as u128 / count as u128) as usize;
        let nearest = (at + 1..=starts.len() - (count - index))
            .min_by_key(|&layer| starts[layer].abs_diff(wanted));
        at = nearest.unwrap_or(at + 1);
        borders.push(starts[at]);
    }
    borders.push(state.len());
    borders.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// The weight of replicas that count alike.
const ONCE: BatchCounts = BatchCounts {
    samples: 1,
    targets: 1,
};

/// A replica in a round.
#[derive(Clone, Copy)]
struct RunningReplica {
    number: Shard,
    /// The numbers of its samples and counted targets so far.
    counts: BatchCounts,
    /// The number of its inner steps so far that had counted targets.
    updates: u64,
}

/// A round on its way.
struct RunningRound {
    round: Step,
    /// The weights and buffers of the run.
    start: Vec<f32>,
    /// The replica that is being computed.
    replica: Option<RunningReplica>,
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
    /// What replicas keep between rounds; absent if that is nothing, as for an optimizer without states.
    kept: Option<KeptReplicas>,
    /// What displacements in a short form need, if their errors are added to the next ones.
    compression: Option<CompressionState>,
    sum: OuterSum,
    running: Option<RunningRound>,
    /// The memory of the start of a round, between rounds.
    spare: Vec<f32>,
    losses: InnerLosses,
    /// The round that is computed, whose sums are under way.
    computed: Option<Step>,
}

impl LocalRounds {
    /// Creates the strategy. `inner` trains one replica: on a separate group, with the micro-batches of an inner step as
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
        let len = inner.weights().len();
        assert_eq!(
            inner.weights().stored().len(),
            len,
            "a replica has the whole state"
        );
        let zeros = |count: usize| vec![vec![0.0; len]; count];
        let states = inner.optimizer_states().len();
        let averaged = match config.inner_state {
            InnerState::Average => zeros(states),
            InnerState::Reset | InnerState::Keep => Vec::new(),
        };
        let vectors = (config.streaming.is_some(), states);
        let keeps = config.inner_state == InnerState::Keep && vectors != (false, 0);
        let kept = keeps.then(|| KeptReplicas::new(len, vectors, layout.shards(), group.rank()));
        let compression = config.compression.map(|config| {
            let of = (layout.shards(), group.rank());
            CompressionState::new(config, inner.seeds(), inner.weights(), of)
        });
        let summed = (averaged.len(), compression.as_ref());
        Self {
            sum: OuterSum::new(&config, &inner, summed, &layout),
            compression,
            group,
            layout,
            config,
            inner: Box::new(inner),
            outer_states: zeros(config.outer.state_names().len()),
            averaged,
            kept,
            running: None,
            spare: Vec::new(),
            losses: InnerLosses::default(),
            computed: None,
        }
    }

    /// Returns the model with the current state.
    #[must_use]
    pub fn into_chain(self) -> Chain {
        self.inner.into_chain()
    }

    /// Returns the fragment that a round sums; 0 for the whole state.
    fn fragment(&self, round: Step) -> usize {
        (round.0 % u64::from(self.config.fragments())) as usize
    }

    /// Returns the vector and the elements of the state of a range of the sums: 0 for the weights, then the
    /// averaged states.
    fn vector_of(&self, elements: &Range<usize>) -> (usize, Range<usize>) {
        let len = self.inner.weights().len().max(1);
        let vector = elements.start / len;
        (
            vector,
            elements.start - vector * len..elements.end - vector * len,
        )
    }

    /// Returns the factor that makes a mean of a sum: over `count` targets or samples, or over replicas if a fragment is summed.
    fn scale(&self, count: u64) -> GradientScale {
        let count = match self.config.streaming {
            Some(_) => u64::from(self.layout.shards().shards()),
            None => count.max(1),
        };
        GradientScale::new(count, 1.0)
    }

    /// Returns the weights to those of the run, if a round is under way.
    fn restore_start(&mut self) {
        if let Some(running) = self.running.take() {
            self.inner.restore(&running.start, None);
            self.spare = running.start;
        }
    }

    /// Leaves the round under way, if there is one: the inner strategy has the state of the run again.
    fn leave_round(&mut self) {
        self.computed = None;
        self.restore_start();
        self.sum.reset();
        if let Some(kept) = &mut self.kept {
            kept.discard();
        }
    }

    /// Writes the displacement of a replica from the weights of the run, times its number of targets, for elements of the flat state.
    /// Buffers are their values times its number of samples. A tensor that has `diverged` is not a number.
    fn write_displacement(
        &self,
        elements: &Range<usize>,
        (start, end): (&[f32], &[f32]),
        (counts, diverged): (BatchCounts, Option<&str>),
        to: &mut [f32],
    ) {
        let (start, end) = (&start[elements.clone()], &end[elements.clone()]);
        let weight = counts.targets as f32;
        for ((to, start), end) in to.iter_mut().zip(start).zip(end) {
            *to = (start - end) * weight;
        }
        for tensor in self.inner.weights().tensors() {
            let range = common(&tensor.range, elements);
            let at = range.start - elements.start;
            let values = &mut to[at..at + range.len()];
            if diverged == Some(tensor.entry.name.as_str()) {
                values.fill(f32::NAN);
            } else if tensor.entry.role == Role::Buffer {
                let weight = counts.samples as f32;
                for (to, value) in values.iter_mut().zip(&end[at..at + range.len()]) {
                    *to = value * weight;
                }
            }
        }
    }

    /// Adds the displacement of the current replica to the sum, and its states if they are averaged.
    fn add_replica(&self, sum: &mut OuterSum) -> Result<(), ParallelError> {
        let running = self.running.as_ref().ok_or_else(no_round)?;
        let replica = running.replica.ok_or_else(no_round)?;
        let weight = replica.counts.targets as f32;
        let write = |elements: &Range<usize>, to: &mut [f32]| {
            let (vector, elements) = self.vector_of(elements);
            if let Some(state) = vector.checked_sub(1) {
                let state = &self.inner.optimizer_states()[state][elements];
                for (to, value) in to.iter_mut().zip(state) {
                    *to = value * weight;
                }
                return;
            }
            let ends = (running.start.as_slice(), self.inner.weights().values());
            let diverged = running.diverged.as_deref();
            self.write_displacement(&elements, ends, (replica.counts, diverged), to);
        };
        sum.add((0, replica.number.0), &*self.group, &write)
    }

    /// Starts the sum of a fragment, with the displacements that the replicas of this rank have at the beginning of the round.
    fn start_fragment(&self, round: Step, sum: &mut OuterSum) -> Result<(), ParallelError> {
        let (fragment, start) = (self.fragment(round), self.inner.weights().values());
        for replica in self.layout.shards().run(self.group.rank()) {
            let weights = weights_of(self.kept.as_ref(), (round, replica), start)?;
            let write = |elements: &Range<usize>, to: &mut [f32]| {
                self.write_displacement(elements, (start, weights), (ONCE, None), to);
            };
            sum.add((fragment, replica), &*self.group, &write)?;
        }
        let replicas = self.layout.shards().exact_sum();
        sum.start(
            (fragment, self.compression.as_ref()),
            &*self.group,
            &replicas,
        )
    }

    /// Begins the inner steps of a replica.
    fn begin_replica(&mut self, replica: Shard) -> Result<(), ParallelError> {
        let running = self.running.as_ref().ok_or_else(no_round)?;
        let (round, start) = (running.round, running.start.as_slice());
        let weights = weights_of(self.kept.as_ref(), (round, replica.0), start)?;
        let states: Vec<&[f32]> = match &self.kept {
            Some(kept) => kept.states(replica.0).ok_or_else(|| not_here(replica.0))?,
            None => self.averaged.iter().map(Vec::as_slice).collect(),
        };
        let states = (!states.is_empty()).then_some(states.as_slice());
        self.inner.restore(weights, states);
        self.losses.begin(replica.0);
        if let Some(running) = &mut self.running {
            let replica = RunningReplica {
                number: replica,
                counts: BatchCounts::default(),
                updates: 0,
            };
            (running.replica, running.diverged) = (Some(replica), None);
        }
        Ok(())
    }

    /// Lets the replicas of this rank continue from the new weights of a fragment and their own.
    fn merge_fragment(&mut self, elements: &Range<usize>) {
        let (Some(streaming), Some(kept)) = (self.config.streaming, &mut self.kept) else {
            return;
        };
        let new = &self.inner.weights().values()[elements.clone()];
        for weights in kept.next_weights() {
            for (own, new) in weights[elements.clone()].iter_mut().zip(new) {
                *own = streaming.own_share * *own + (1.0 - streaming.own_share) * new;
            }
        }
    }

    /// Returns the error of a replica that a rank has reported as not finite.
    fn diverged(&self, votes: &[Vec<u8>]) -> Option<ParallelError> {
        let losses = InnerLosses::decode(votes.iter().map(Vec::as_slice))?;
        let tensor = self
            .inner
            .weights()
            .tensors()
            .get(losses.diverged()? as usize);
        let tensor = tensor.map_or_else(String::new, |tensor| tensor.entry.name.clone());
        Some(ParallelError::NotFinite { tensor })
    }

    /// Changes the sums with the remaining state at hand.
    fn change_sum<T>(&mut self, change: impl FnOnce(&Self, &mut OuterSum) -> T) -> T {
        let mut sum = std::mem::take(&mut self.sum);
        let changed = change(self, &mut sum);
        self.sum = sum;
        changed
    }

    /// Returns the norm of the mean displacement.
    ///
    /// # Errors
    /// [`ParallelError::NotFinite`] with the first tensor that is not finite.
    fn norm(&self, parts: &[GradientPart], scale: &GradientScale) -> Result<f64, ParallelError> {
        let mut total = 0.0;
        for tensor in self.inner.weights().tensors() {
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

    /// Makes the outer step on the part of the weights in a bucket, unless no target was counted, and takes over the means of the
    /// buffers.
    fn update_weights(&mut self, part: &GradientPart, counts: BatchCounts, number: u64) {
        let (scale, of_buffers) = (self.scale(counts.targets), self.scale(counts.samples));
        let tensors: Vec<(Range<usize>, Role)> = (self.inner.weights().tensors().iter())
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
                        of_buffers.write(part.values(&run), values);
                        continue;
                    }
                    if counts.targets == 0 {
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

/// The computation of a round: each replica of this rank makes inner steps from the same state, and their contributions are reduced
/// like gradients. Order: `begin_round`; for each replica of this rank, in order, its inner steps and `finish_replica`;
/// `finish_round`; [`StepMethod::reduce`].
impl LocalRounds {
    /// Starts a round, or starts it again.
    ///
    /// # Errors
    /// A sum could not be started.
    pub fn begin_round(&mut self, round: Step) -> Result<(), ParallelError> {
        self.leave_round();
        self.losses = InnerLosses::default();
        if self.config.streaming.is_some() {
            // The sum travels while the replicas compute.
            self.change_sum(|this, sum| this.start_fragment(round, sum))?;
        }
        let mut start = std::mem::take(&mut self.spare);
        start.clear();
        start.extend_from_slice(self.inner.weights().values());
        self.running = Some(RunningRound {
            round,
            start,
            replica: None,
            diverged: None,
        });
        Ok(())
    }

    /// Updates a replica with the micro-batches of one inner step, numbered from 0. The first step of another replica than that
    /// of the previous call starts from the state before the round. Returns the reports of the micro-batches.
    ///
    /// # Errors
    /// The engine failed. A gradient that is not finite is not an error here: [`StepMethod::apply`] reports it on all ranks.
    pub fn inner_step(
        &mut self,
        step: &LocalStep,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<Vec<ShardReport>, ParallelError> {
        let current = self.running.as_ref().ok_or_else(no_round)?.replica;
        if current.map(|replica| replica.number) != Some(step.replica) {
            self.begin_replica(step.replica)?;
        }
        let running = self.running.as_mut().ok_or_else(no_round)?;
        let replica = running.replica.as_mut().ok_or_else(no_round)?;
        let update = ReplicaUpdate {
            random: step.random,
            number: match self.config.inner_state {
                InnerState::Reset => replica.updates,
                InnerState::Average | InnerState::Keep => step.number,
            },
            learning_rate: step.learning_rate,
        };
        let unused = micro_batches
            .iter()
            .map(|batch| self.inner.report_of(batch));
        let unused: Vec<ShardReport> = unused.collect();
        let counts: BatchCounts = unused.iter().map(ShardReport::counts).sum();
        let reports = match running.diverged.is_some() {
            // All ranks learn of it from the sum or the votes.
            true => unused,
            false => match self.inner.update_replica(update, micro_batches) {
                Err(ParallelError::NotFinite { tensor }) => {
                    let mut tensors = self.inner.weights().tensors().iter();
                    let index = tensors.position(|other| other.entry.name == tensor);
                    self.losses.diverge(index.unwrap_or(0) as u64);
                    running.diverged = Some(tensor);
                    unused
                }
                reports => reports?,
            },
        };
        let loss_sum = reports.iter().map(|report| report.loss_sum).sum();
        self.losses.add(step.replica.0, loss_sum, counts.targets);
        replica.counts += counts;
        replica.updates += u64::from(counts.targets > 0);
        Ok(reports)
    }

    /// Adds the contribution of the replica of the last inner step.
    ///
    /// # Errors
    /// There is none, or no memory.
    pub fn finish_replica(&mut self) -> Result<(), ParallelError> {
        let running = self.running.as_ref().ok_or_else(no_round)?;
        let replica = running.replica.ok_or_else(no_round)?.number;
        if let Some(kept) = &mut self.kept {
            let weights = self.inner.weights().values();
            kept.add(replica.0, weights, self.inner.optimizer_states());
        }
        match self.config.streaming {
            Some(_) => Ok(()),
            None => self.change_sum(|this, sum| this.add_replica(sum)),
        }
    }

    /// Starts the sums over all replicas of all ranks; the state is again that before the round. A rank without replicas also
    /// calls it.
    ///
    /// # Errors
    /// No round was started, or a sum could not be started.
    pub fn finish_round(&mut self) -> Result<(), ParallelError> {
        let round = self.running.as_ref().ok_or_else(no_round)?.round;
        self.restore_start();
        if self.config.streaming.is_none() {
            let replicas = self.layout.shards().exact_sum();
            let of = (0, self.compression.as_ref());
            self.sum.start(of, &*self.group, &replicas)?;
        }
        self.computed = Some(round);
        Ok(())
    }
}

fn no_round() -> ParallelError {
    ParallelError::OutOfOrder {
        problem: "no replica of a round is being computed".to_owned(),
    }
}

/// Returns the weights with which a replica begins a round: those of the run, unless it keeps others.
fn weights_of<'a>(
    kept: Option<&'a KeptReplicas>,
    (round, replica): (Step, u32),
    start: &'a [f32],
) -> Result<&'a [f32], ParallelError> {
    match kept.filter(|kept| kept.has_weights && round.0 > 0) {
        Some(kept) => kept.weights(replica).ok_or_else(|| not_here(replica)),
        None => Ok(start),
    }
}

fn not_here(replica: u32) -> ParallelError {
    ParallelError::OutOfOrder {
        problem: format!("what replica {replica} keeps is not on this worker"),
    }
}

impl StepMethod for LocalRounds {
    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError> {
        let round = self.computed.take().ok_or_else(no_round)?;
        let replicas = self.layout.shards().exact_sum();
        let fragment = self.fragment(round);
        let (parts, sent) = self.sum.wait(
            (fragment, self.compression.as_ref()),
            &*self.group,
            &replicas,
        )?;
        Ok(ReducedGradient { parts, sent })
    }

    /// Returns the losses of this rank's inner steps: see [`InnerLosses`].
    fn vote(&mut self, _: u64, _: &ReducedGradient, _: u64) -> Result<Vec<u8>, ParallelError> {
        Ok(self.losses.encode())
    }

    /// Makes the outer step.
    fn apply(
        &mut self,
        update: &CommittedUpdate<'_>,
        reduced: ReducedGradient,
    ) -> Result<UpdateReport, ParallelError> {
        let (step, counts) = (update.step, update.counts);
        let scale = self.scale(counts.targets);
        let len = self.inner.weights().len();
        let is_of_weights = |part: &GradientPart| part.elements.start < len.max(1);
        let first_state = reduced.parts.iter().position(|part| !is_of_weights(part));
        let weights = &reduced.parts[..first_state.unwrap_or(reduced.parts.len())];
        let gradient_norm = self.norm(weights, &scale)?;
        if let Some(error) = self.diverged(update.sums) {
            return Err(error);
        }
        let fragment = self.fragment(step);
        if counts.samples > 0 {
            for part in weights {
                self.update_weights(part, counts, update.number);
            }
        }
        if counts.targets > 0 {
            for part in &reduced.parts[weights.len()..] {
                let (vector, elements) = self.vector_of(&part.elements);
                let mean = &mut self.averaged[vector - 1][elements];
                scale.write(part.values(&part.elements), mean);
            }
            self.merge_fragment(&self.sum.elements(fragment));
        }
        if let Some(kept) = &mut self.kept {
            kept.keep();
        }
        self.sum.recycle(fragment, reduced.parts);
        if counts.targets == 0 {
            // The sent values are not used, so the residuals stay, too.
            return Ok(UpdateReport::WITHOUT_TARGETS);
        }
        if let Some(compression) = &mut self.compression {
            compression.keep(reduced.sent, step);
        }
        Ok(UpdateReport::of_norm(gradient_norm))
    }

    fn abort(&mut self) {
        self.inner.abort();
        self.leave_round();
    }

    fn enter(&mut self, group: Arc<dyn Group>, layout: StepLayout) -> Result<(), ParallelError> {
        self.leave_round();
        (self.group, self.layout) = (group, layout);
        let shards = self.layout.shards();
        if let Some(kept) = &mut self.kept {
            kept.assign(shards);
        }
        if let Some(compression) = &mut self.compression {
            compression.arrange(self.inner.weights(), shards);
        }
        let summed = (self.averaged.len(), self.compression.as_ref());
        self.sum = OuterSum::new(&self.config, &self.inner, summed, &self.layout);
        Ok(())
    }

    fn state(&self) -> StateView<'_> {
        let states = self.outer_states.iter().chain(&self.averaged);
        let kept = self.kept.iter().map(|kept| &kept.all);
        let compression = self.compression.iter();
        let round = RoundState {
            ranks: self.layout.ranks(),
            rank: self.group.rank(),
            has_optimizer: false,
            vectors: states
                .map(|values| RunVector::Flat(values))
                .chain(kept.map(RunVector::Distributed))
                .chain(compression.flat_map(CompressionState::vectors))
                .collect(),
        };
        let replicas = u64::from(self.layout.shards().shards());
        let replicas = self.config.streaming.map(|_| replicas);
        StateView::of_rounds(&self.inner, round, MeanGradient::OverReplicas(replicas))
    }

    fn edit(&mut self) -> StateEdit<'_> {
        let states = self.outer_states.iter_mut().chain(&mut self.averaged);
        let kept = self.kept.iter_mut().map(|kept| &mut kept.all);
        let compression = self.compression.iter_mut();
        let vectors = states
            .map(|values| RunVectorMut::Flat(values))
            .chain(kept.map(RunVectorMut::Distributed))
            .chain(compression.flat_map(CompressionState::vectors_mut));
        StateEdit::of_rounds(&mut self.inner, false, vectors.collect())
    }

    /// The ranks that compute replicas evaluate.
    fn model(&mut self) -> ModelHandle<'_> {
        ModelHandle::of_rounds(&mut self.inner, (&*self.group, Some(&self.layout)))
    }
}
