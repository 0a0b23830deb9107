//! [`Strategy`]: the interface between the training loop and each method of distributing a step over ranks.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use ronde_core::step_layout::StepLayout;
use ronde_core::{BatchCounts, Buffer, Group, Shard, Step};
use ronde_engine::{Activation, Chain, Device};
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::transaction::ShardReport;

use crate::compression::SentGradient;
use crate::distributed::DistributedVector;
use crate::error::ParallelError;
use crate::gossip::GossipRounds;
use crate::parameter_servers::ServedRounds;
use crate::state::ModelState;
use crate::synchronous::ComputeTimes;
use crate::synthetic_gradients::StageRounds;

/// The samples of one logical shard.
#[derive(Debug, Clone)]
pub struct MicroBatch {
    /// The shard.
    pub shard: Shard,
    /// The shape `[samples, ..]`; there may be no samples.
    pub shape: Vec<usize>,
    /// The features in row-major order, as many as the shape implies.
    pub features: Vec<f32>,
    /// The targets of each sample, as many as the loss requires: labels, or the bits of values.
    pub labels: Vec<u32>,
}

impl MicroBatch {
    /// Returns the number of samples.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }
}

/// The complete gradient of a step on a rank, not applied yet.
///
/// For a parameter it contains the gradient summed over all counted targets, times the factor of the loss. For a buffer it contains the values after
/// each shard's forward pass, weighted by the shard's number of samples and summed.
#[derive(Debug)]
#[must_use = "a reduced gradient is applied after the vote, or dropped when the step is aborted"]
pub struct ReducedGradient {
    /// In the order of the flat state.
    pub(crate) parts: Vec<GradientPart>,
    /// The residuals of the next step, if gradients are sent in a short form.
    pub(crate) sent: SentGradient,
}

impl ReducedGradient {
    /// Creates a gradient that this rank does not keep.
    pub(crate) fn of(parts: Vec<GradientPart>) -> Self {
        Self {
            parts,
            sent: SentGradient::default(),
        }
    }
}

/// The reduced gradient of a range of the flat state.
#[derive(Debug)]
pub(crate) struct GradientPart {
    pub(crate) elements: Range<usize>,
    pub(crate) sum: Buffer,
    /// Whether this rank reports the sums over the part; otherwise it has a copy of another rank's part.
    pub(crate) is_owned: bool,
}

impl GradientPart {
    /// Returns the values of elements of the flat state in the part.
    pub(crate) fn values(&self, elements: &Range<usize>) -> &[f32] {
        let base = self.elements.start;
        &self.sum.as_slice::<f32>()[elements.start - base..elements.end - base]
    }
}

/// The needs of a rank besides the gradient to apply a committed step.
#[derive(Debug, Clone, Copy)]
pub struct CommittedUpdate<'a> {
    /// The step.
    pub step: Step,
    /// The number of the update, from 1, among the steps with counted targets: optimizers correct their moments by it. In a step
    /// without counted targets, that of the last update.
    pub number: u64,
    /// The global numbers of samples and counted targets, which may be zero.
    pub counts: BatchCounts,
    /// The results of [`Strategy::vote_sums`] of all ranks that voted.
    pub sums: &'a [Vec<u8>],
    /// The learning rate.
    pub learning_rate: f64,
}

/// The effect of applying a gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdateReport {
    /// The global norm of the mean gradient before clipping; NaN in a step without counted targets.
    pub gradient_norm: f64,
    /// The clipping factor of the gradient; 1 if it was not clipped.
    pub clip_factor: f32,
    /// Whether the update was skipped because the gradient was not finite; only the loss scale has changed.
    pub is_skipped: bool,
}

impl UpdateReport {
    /// A skipped update.
    pub(crate) const SKIPPED: Self = Self {
        gradient_norm: f64::INFINITY,
        clip_factor: 0.0,
        is_skipped: true,
    };

    /// The report of a step without counted targets, which has no gradient.
    pub(crate) const WITHOUT_TARGETS: Self = Self {
        gradient_norm: f64::NAN,
        clip_factor: 1.0,
        is_skipped: false,
    };
}

/// How the elements of a vector of the state belong to ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorKind {
    /// It has an element for each one of the flat state, so that the ranks may divide it.
    Flat,
    /// Every rank holds all elements, such as the loss scale.
    Whole,
    /// Each rank holds other elements: see [`DistributedVector`].
    Distributed,
}

/// The part of a vector of the state that a rank holds.
#[derive(Debug)]
pub struct HeldVector<'a> {
    /// How its elements belong to ranks.
    pub kind: VectorKind,
    /// The elements.
    pub held: Cow<'a, HeldRanges>,
    /// Their values, one held range after the other.
    pub values: &'a [f32],
}

impl<'a> HeldVector<'a> {
    /// Describes a vector that this rank holds completely.
    #[must_use]
    pub fn whole(values: &'a [f32]) -> Self {
        let held = HeldRanges::new(std::iter::once(0..values.len()));
        Self {
            kind: VectorKind::Whole,
            held: Cow::Owned(held),
            values,
        }
    }
}

/// The part of a vector of the state that a rank holds, mutable.
#[derive(Debug)]
pub struct HeldVectorMut<'a> {
    /// The elements.
    pub held: Cow<'a, HeldRanges>,
    /// Their values, one held range after the other.
    pub values: &'a mut [f32],
}

impl<'a> HeldVectorMut<'a> {
    /// Describes a vector that this rank holds completely.
    pub fn whole(values: &'a mut [f32]) -> Self {
        let held = HeldRanges::new(std::iter::once(0..values.len()));
        Self {
            held: Cow::Owned(held),
            values,
        }
    }
}

/// One inner step of a replica in a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalStep {
    /// The replica, which is a shard of the round.
    pub replica: Shard,
    /// The number of the inner step within the round, from 0.
    pub index: u64,
    /// Its number among all inner steps of the replica.
    pub number: u64,
    /// The step that its random numbers belong to; no other inner step of any replica has it.
    pub random: Step,
    /// The learning rate.
    pub learning_rate: f64,
}

/// The part of a strategy whose transaction is a round: each replica of this rank makes inner steps from the same state, and their
/// contributions are reduced like gradients. [`Strategy::reduce`] follows.
///
/// Order: `begin_round`; for each replica of this rank, in order, its inner steps and `finish_replica`; `finish_round`.
pub trait ReplicaRounds {
    /// Begins a round, or begins it again.
    ///
    /// # Errors
    /// A sum could not be started.
    fn begin_round(&mut self, round: Step) -> Result<(), ParallelError>;

    /// Updates a replica with the micro-batches of one inner step, numbered from 0. The first step of another replica than that
    /// of the previous call starts from the state before the round. Returns the reports of the micro-batches.
    ///
    /// # Errors
    /// The engine failed. A gradient that is not finite is not an error here: [`Strategy::apply`] reports it on all ranks.
    fn inner_step(
        &mut self,
        step: &LocalStep,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<Vec<ShardReport>, ParallelError>;

    /// Adds the contribution of the replica of the last inner step.
    ///
    /// # Errors
    /// There is none, or no memory.
    fn finish_replica(&mut self) -> Result<(), ParallelError>;

    /// Starts the sums over all replicas of all ranks; the state is again that before the round. A rank without replicas also
    /// calls it.
    ///
    /// # Errors
    /// No round was begun, or a sum could not be started.
    fn finish_round(&mut self) -> Result<(), ParallelError>;
}

/// A method of distributing the steps of a model over a process group.
pub trait Strategy: Send {
    /// Returns the interface through which a round is computed; `None`: a transaction is one step, see [`Strategy::backward`].
    fn replica_rounds(&mut self) -> Option<&mut dyn ReplicaRounds> {
        None
    }

    /// Returns the interface through which a round of updates at servers is computed; `None`: the run has no servers.
    fn served_rounds(&mut self) -> Option<&mut dyn ServedRounds> {
        None
    }

    /// Returns the interface through which a round of replicas that average in pairs is computed; `None`: the run has no such
    /// rounds.
    fn gossip_rounds(&mut self) -> Option<&mut dyn GossipRounds> {
        None
    }

    /// Returns the interface through which a round of stages with predicted gradients is computed; `None`: the run has no such
    /// rounds.
    fn stage_rounds(&mut self) -> Option<&mut dyn StageRounds> {
        None
    }

    /// Runs forward and backward of this rank's logical shards through its layers, and starts the reductions over ranks. A
    /// rank without shards also calls it. Takes the batches of the shards that the layout lets this rank load, and returns
    /// the reports of those whose loss it computes.
    ///
    /// # Errors
    /// The batches are of other shards, the engine failed, or a reduction could not be started.
    fn backward(
        &mut self,
        step: Step,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<Vec<ShardReport>, ParallelError>;

    /// Waits for the complete gradient of the elements that this rank holds. Afterwards [`Strategy::state`] is that of the last
    /// applied step again, also if a round has trained in it.
    ///
    /// # Errors
    /// A reduction failed; [`Strategy::abort`] returns the state to that of the last applied step.
    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError>;

    /// Returns the sums that all ranks need to apply the gradient, for the vote; empty if they hold the whole
    /// gradient. `number` is that of the update, from 1, and `targets` the number of counted targets that this rank reports. All
    /// ranks call it together, because some update rules need sums over all ranks first.
    ///
    /// # Errors
    /// Such a sum failed; the state has not changed.
    fn vote_sums(
        &mut self,
        number: u64,
        reduced: &ReducedGradient,
        targets: u64,
    ) -> Result<Vec<u8>, ParallelError>;

    /// Passes the mean gradient over `targets` counted targets of each trained tensor to `visit`, with the index of the tensor, in runs of its
    /// elements in order: of the elements that this rank reports. Together, the ranks of the group report each element
    /// once. Cost: one pass over these elements.
    fn visit_gradient(
        &self,
        reduced: &ReducedGradient,
        targets: u64,
        visit: &mut dyn FnMut(usize, &[f32]),
    );

    /// Updates the state that this rank holds; no other rank takes part. Called after the vote. Without counted targets, parameters
    /// and optimizer states stay as they are.
    ///
    /// # Errors
    /// The gradient is not finite, or the sums are not those of this step; the state has not changed.
    fn apply(
        &mut self,
        update: &CommittedUpdate<'_>,
        reduced: ReducedGradient,
    ) -> Result<UpdateReport, ParallelError>;

    /// Receives the updated weights of this rank's layers from the ranks that hold them, and loads them into the model. If
    /// weights are gathered for each pass, only those are received whose hash [`Strategy::digest`] returns after
    /// `step`. All ranks of the group call it together after [`Strategy::apply`], and may repeat it.
    ///
    /// # Errors
    /// A rank was lost. The weights that this rank holds are up to date.
    fn gather_weights(&mut self, step: Option<Step>) -> Result<(), ParallelError>;

    /// Returns the number of elements, from the first one of the flat state, whose weights were gathered after the last update, or
    /// after the weights were exchanged for others. A gathering that fails has gathered a part.
    fn gathered(&self) -> usize {
        0
    }

    /// Does [`Strategy::gather_weights`] for the weights from an element on, because every rank has the earlier ones.
    ///
    /// # Errors
    /// As [`Strategy::gather_weights`].
    fn gather_rest(&mut self, _first: usize, step: Option<Step>) -> Result<(), ParallelError> {
        self.gather_weights(step)
    }

    /// Aborts the step in flight without changing the state.
    fn abort(&mut self);

    /// Continues in another group, or with another layout. All ranks call it together. No step is in flight: the caller has
    /// aborted it or applied its gradient. The held elements stay the same until [`Strategy::hold`].
    ///
    /// # Errors
    /// The ranks of a part of the mesh cannot connect.
    fn regroup(&mut self, group: Arc<dyn Group>, layout: StepLayout) -> Result<(), ParallelError>;

    /// Returns the elements of the flat state that this rank holds.
    fn held(&self) -> &HeldRanges;

    /// Returns the elements of the flat state that each rank of the group answers for. Together, the ranks answer for each
    /// element once if the state is divided; otherwise each answers for all of them.
    fn owned(&self) -> Vec<HeldRanges>;

    /// Returns the elements that each rank of the group holds in training; all of them on every rank, unless the state is
    /// divided.
    fn layout(&self) -> Vec<HeldRanges>;

    /// Returns the elements of [`Strategy::layout`] that each rank needs to train: those that are not second copies.
    fn needed(&self) -> Vec<HeldRanges> {
        self.layout()
    }

    /// Lets each rank have second copies of these elements only, by rank, starting with the next step, until another group is
    /// entered. All ranks call it together. [`Strategy::hold`] must follow.
    fn limit_copies(&mut self, _elements: Vec<HeldRanges>) {}

    /// Holds other elements from now on. Values that were held before are kept, the remaining ones are zeros until the
    /// caller writes them.
    fn hold(&mut self, elements: HeldRanges);

    /// Writes the initial weights and buffers of the elements that this rank stores. Changes take effect
    /// with [`Strategy::reload`].
    ///
    /// # Errors
    /// A layer does not know its initial values any more.
    fn reset(&mut self) -> Result<(), ParallelError>;

    /// Returns the state of the model on this rank.
    fn state(&self) -> &ModelState;

    /// Returns the hash of the part of the weights and buffers of this rank's layers that is compared after `step`, or of all
    /// of them without one. Ranks with the same layers have the same hash. If weights are gathered for each pass, it is the one
    /// of the last [`Strategy::gather_weights`].
    fn digest(&self, step: Option<Step>) -> u64;

    /// Returns the part of each vector of the state that this rank has: the weights and buffers that it computes with or
    /// updates, then the optimizer states, and the loss scale if there is one. Another rank needs all of them to continue
    /// from the last applied step.
    fn vectors(&self) -> Vec<HeldVector<'_>>;

    /// Returns the vectors of the state whose elements are on different ranks, in the order of [`Strategy::vectors`].
    fn distributed(&self) -> Vec<&DistributedVector> {
        Vec::new()
    }

    /// Returns the same vectors, mutable.
    fn distributed_mut(&mut self) -> Vec<&mut DistributedVector> {
        Vec::new()
    }

    /// Returns the same vectors, mutable. [`Strategy::reload`] or [`Strategy::gather_weights`] must follow before the next pass.
    fn vectors_mut(&mut self) -> Vec<HeldVectorMut<'_>>;

    /// Loads the state into the model.
    fn reload(&mut self);

    /// Exchanges the weights of the held elements with `values`, one held range after the other. Takes effect with
    /// [`Strategy::gather_weights`], or with [`Strategy::reload`] if the state is not divided.
    ///
    /// # Panics
    /// When the lengths differ.
    fn swap_weights(&mut self, values: &mut [f32]);

    /// Returns the mutable weights and buffers, for loading saved ones. Changes take effect with [`Strategy::reload`].
    fn state_mut(&mut self) -> &mut ModelState;

    /// Returns the model with the current state.
    fn into_chain(self: Box<Self>) -> Chain;

    /// Computes the layers on another device. No step may be in flight.
    fn set_device(&mut self, device: &Arc<dyn Device>);

    /// Returns the group of the ranks with the same layers as this one, if it is another one than that of all ranks.
    fn part_group(&self) -> Option<&dyn Group>;

    /// Returns the computing times since the last call.
    fn take_times(&mut self) -> ComputeTimes;

    /// Returns the number of buckets in which gradients are reduced, if their largest size in bytes is this one.
    fn buckets_of(&self, bucket_bytes_max: usize) -> usize;

    /// Sets the largest bucket shared by several layers, starting with the next step. All ranks call it before the same
    /// step, while no step is in flight and no reduced gradient is pending. The trained bits do not change. Slices of a
    /// divided state follow the buckets, so [`Strategy::hold`] must follow.
    fn set_bucket_bytes(&mut self, bucket_bytes_max: usize);

    /// Returns the batches of an evaluation that this rank takes part in.
    fn evaluation_part(&self) -> EvaluationPart;

    /// Computes the outputs of samples in evaluation mode, with running statistics. Takes the features out of the batch. The
    /// ranks of a pipeline call it together, batch by batch; those without the first layer need no features, and only the one
    /// with the last layer gets the outputs. Without a batch, the rank
    /// joins a round in which its group has none: see [`EvaluationPart::joins_every_round`].
    ///
    /// # Errors
    /// The engine failed, or a rank was lost.
    fn predict(
        &mut self,
        batch: Option<&mut MicroBatch>,
    ) -> Result<Option<Activation>, ParallelError>;
}

/// The batches of an evaluation that a rank takes part in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluationPart {
    /// The number of samples of a batch, which is the same on all ranks.
    pub batch: u64,
    /// The number of groups of ranks that divide the batches among themselves.
    pub groups: u64,
    /// The group of this rank, which takes every batch number `group + i * groups`; `None`: a spare, which takes none.
    pub group: Option<u64>,
    /// Whether the rank needs the samples.
    pub loads: bool,
    /// Whether the rank takes part in every round in which any group has a batch, without samples if its own group has none.
    pub joins_every_round: bool,
}
