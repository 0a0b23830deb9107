//! [`Strategy`]: the seam between the step loop and every way to spread a step over ranks.

use std::sync::Arc;

use ronde_core::session::ShardReport;
use ronde_core::shards::ShardPlan;
use ronde_core::{Collectives, Shard, Step};
use ronde_engine::LossOutput;

use crate::{ModelState, ParallelError};

/// The samples of one logical shard.
#[derive(Debug, Clone)]
pub struct MicroBatch {
    /// Which shard.
    pub shard: Shard,
    /// `[samples, ..]`; no sample is fine.
    pub shape: Vec<usize>,
    /// Row-major features, as many as the shape says.
    pub features: Vec<f32>,
    /// As many targets for each sample as the loss takes: labels, or the bits of values.
    pub labels: Vec<u32>,
}

impl MicroBatch {
    /// Count of samples.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }
}

/// The complete gradient of a step: held by every rank, not applied yet.
///
/// A parameter's elements are its gradient summed over all samples; a buffer's are its values after
/// each shard's forward pass, summed with the shard's sample count as weight.
#[derive(Debug)]
#[must_use = "a reduced gradient is applied after the vote, or dropped when the step is aborted"]
pub struct Reduced {
    pub(crate) buckets: Vec<ronde_core::Buffer>,
}

/// What applying a gradient did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Applied {
    /// Global norm of the mean gradient before clipping.
    pub gradient_norm: f64,
    /// What the gradient was multiplied with by clipping; 1 where it was not clipped.
    pub clip_factor: f32,
    /// The gradient was not finite at the loss scale: nothing has changed but the scale.
    pub is_skipped: bool,
}

impl Applied {
    /// An update that was left out.
    pub(crate) const SKIPPED: Self = Self {
        gradient_norm: f64::INFINITY,
        clip_factor: 0.0,
        is_skipped: true,
    };
}

/// A way to spread the steps of a model over a process group.
pub trait Strategy: Send {
    /// Forward and backward of the logical shards of this rank's run, in their order; a rank that holds
    /// none calls it as well. The reductions over ranks have then begun.
    ///
    /// # Errors
    /// Other shards came, the engine failed, or a reduction could not be started.
    fn backward(
        &mut self,
        step: Step,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<Vec<ShardReport>, ParallelError>;

    /// Waits until this rank holds the complete gradient.
    ///
    /// # Errors
    /// A reduction failed; nothing has changed then.
    fn reduce(&mut self) -> Result<Reduced, ParallelError>;

    /// Changes the weights. Called after the vote; `samples` is the global count, which may be zero.
    ///
    /// # Errors
    /// The gradient is not finite; nothing has changed then.
    fn apply(
        &mut self,
        step: Step,
        reduced: Reduced,
        samples: u64,
        learning_rate: f64,
    ) -> Result<Applied, ParallelError>;

    /// Gives the step in flight up: nothing has changed.
    fn abort(&mut self);

    /// Goes on in another group, or with the shards shared out otherwise. No step is in flight: the
    /// caller has aborted it or applied its gradient.
    fn regroup(&mut self, group: Arc<dyn Collectives>, shards: ShardPlan);

    /// The state that this rank holds.
    fn state(&self) -> &ModelState;

    /// All that another rank needs to go on from the last applied step: weights and buffers, then
    /// the optimizer's state and the loss scale if there is one, each as one run. The same lengths on all ranks.
    fn replica(&self) -> Vec<&[f32]>;

    /// The same, writable. Takes effect with [`Strategy::reload`].
    fn replica_mut(&mut self) -> Vec<&mut [f32]>;

    /// Puts the state into the model.
    fn reload(&mut self);

    /// Forward of samples that are not trained on, with running statistics: what they cost.
    ///
    /// # Errors
    /// The engine failed.
    fn evaluate(&mut self, micro_batch: MicroBatch) -> Result<LossOutput, ParallelError>;
}
