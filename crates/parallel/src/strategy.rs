//! [`Strategy`]: the interface between the training loop and each method of distributing a step over ranks.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::session::ShardReport;
use ronde_core::shards::ShardPlan;
use ronde_core::{Buffer, Collectives, Shard, Step};
use ronde_engine::Activation;

use crate::{ModelState, ParallelError};

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
/// For a parameter it contains the gradient summed over all samples. For a buffer it contains the values after
/// each shard's forward pass, weighted by the shard's number of samples and summed.
#[derive(Debug)]
#[must_use = "a reduced gradient is applied after the vote, or dropped when the step is aborted"]
pub struct ReducedGradient {
    /// In the order of the flat state.
    pub(crate) parts: Vec<GradientPart>,
}

/// The reduced gradient of a range of the flat state.
#[derive(Debug)]
pub(crate) struct GradientPart {
    pub(crate) elements: Range<usize>,
    pub(crate) sum: Buffer,
}

impl GradientPart {
    /// Returns the values of elements of the flat state that lie in the part.
    pub(crate) fn values(&self, elements: &Range<usize>) -> &[f32] {
        let base = self.elements.start;
        &self.sum.as_slice::<f32>()[elements.start - base..elements.end - base]
    }
}

/// The effect of applying a gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdateReport {
    /// The global norm of the mean gradient before clipping.
    pub gradient_norm: f64,
    /// The factor by which clipping scaled the gradient; 1 if it was not clipped.
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
}

/// A method of distributing the steps of a model over a process group.
pub trait Strategy: Send {
    /// Runs forward and backward of this rank's logical shards in order, and starts the reductions over ranks. A
    /// rank without shards also calls it.
    ///
    /// # Errors
    /// The batches are of other shards, the engine failed, or a reduction could not be started.
    fn backward(
        &mut self,
        step: Step,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<Vec<ShardReport>, ParallelError>;

    /// Waits for the complete gradient.
    ///
    /// # Errors
    /// A reduction failed; the state has not changed.
    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError>;

    /// Updates the weights. Called after the vote. `samples` is the global number of samples, which may be zero.
    ///
    /// # Errors
    /// The gradient is not finite; the state has not changed.
    fn apply(
        &mut self,
        step: Step,
        reduced: ReducedGradient,
        samples: u64,
        learning_rate: f64,
    ) -> Result<UpdateReport, ParallelError>;

    /// Aborts the step in flight without changing the state.
    fn abort(&mut self);

    /// Continues in another group, or with another assignment of shards. No step is in flight: the
    /// caller has aborted it or applied its gradient.
    fn regroup(&mut self, group: Arc<dyn Collectives>, shards: ShardPlan);

    /// Returns the state of the model on this rank.
    fn state(&self) -> &ModelState;

    /// Returns all vectors that another rank needs to continue from the last applied step: weights and buffers, then
    /// the optimizer states, and the loss scale if there is one. The lengths are equal on all ranks.
    fn replica(&self) -> Vec<&[f32]>;

    /// Returns the same vectors, mutable. Changes take effect with [`Strategy::reload`].
    fn replica_mut(&mut self) -> Vec<&mut [f32]>;

    /// Loads the state into the model.
    fn reload(&mut self);

    /// Computes the outputs of samples in evaluation mode, with running statistics. Takes the features out of the
    /// batch.
    ///
    /// # Errors
    /// The engine failed.
    fn predict(&mut self, micro_batch: &mut MicroBatch) -> Result<Activation, ParallelError>;
}
