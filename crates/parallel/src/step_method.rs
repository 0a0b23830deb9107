//! [`StepMethod`]: the common interface of all methods of distributing the steps of a model over a process group.
//!
//! Methods differ in how the gradient of a transaction is computed, which may be one step or a round; each has its own functions
//! for that. From the reduction on, they are the same for the training loop: reduce, vote, apply, gather.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::step_layout::StepLayout;
use ronde_core::{BatchCounts, Buffer, Group, Shard, Step};

use crate::compression::SentGradient;
use crate::error::ParallelError;
use crate::state_view::{ModelHandle, StateEdit, StateView};

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
    /// Creates a gradient that is not sent in a short form.
    pub(crate) fn of(parts: Vec<GradientPart>) -> Self {
        Self {
            parts,
            sent: SentGradient::default(),
        }
    }

    /// Creates the outcome of a round: values of the whole state.
    pub(crate) fn of_round(sum: Buffer) -> Self {
        Self::of(vec![GradientPart {
            elements: 0..sum.len(),
            sum,
            is_owned: true,
        }])
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
    /// The results of [`StepMethod::vote`] of all ranks that voted.
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

    /// The report of an update that was not clipped.
    pub(crate) fn of_norm(gradient_norm: f64) -> Self {
        Self {
            gradient_norm,
            clip_factor: 1.0,
            is_skipped: false,
        }
    }

    /// The report of a step without counted targets, which has no gradient.
    pub(crate) const WITHOUT_TARGETS: Self = Self {
        gradient_norm: f64::NAN,
        clip_factor: 1.0,
        is_skipped: false,
    };
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

/// A method of distributing the steps of a model over a process group.
///
/// Order: the gradient is computed by the functions of the method; `reduce`; `vote`; after the vote, `apply`; then
/// [`StateEdit::gather`].
pub trait StepMethod: Send {
    /// Waits for the complete gradient of the elements that this rank holds, or for the outcome of a round. Afterwards
    /// [`StepMethod::state`] is again the state after the last applied step, also if a round has trained in it.
    ///
    /// # Errors
    /// A reduction failed; [`StepMethod::abort`] returns to the state after the last applied step.
    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError>;

    /// Returns the bytes that all ranks need to apply the gradient, for the vote; empty if they need none. `number` is that of the
    /// update, from 1, and `targets` the number of counted targets that this rank reports. All ranks call it together, because some
    /// update rules need sums over all ranks first.
    ///
    /// # Errors
    /// Such a sum failed; the state has not changed.
    fn vote(
        &mut self,
        number: u64,
        reduced: &ReducedGradient,
        targets: u64,
    ) -> Result<Vec<u8>, ParallelError>;

    /// Updates the state that this rank holds; no other rank takes part. Called after the vote. Without counted targets, parameters
    /// and optimizer states stay as they are.
    ///
    /// # Errors
    /// The gradient is not finite, or the votes belong to another step; the state has not changed.
    fn apply(
        &mut self,
        update: &CommittedUpdate<'_>,
        reduced: ReducedGradient,
    ) -> Result<UpdateReport, ParallelError>;

    /// Aborts the step in flight without changing the state.
    fn abort(&mut self);

    /// Continues in another group, or with another layout. All ranks call it together. No step is in flight: the caller has
    /// aborted it or applied its gradient. The held elements stay the same until [`StateEdit::hold`].
    ///
    /// # Errors
    /// The ranks of a part of the mesh cannot connect.
    fn enter(&mut self, group: Arc<dyn Group>, layout: StepLayout) -> Result<(), ParallelError>;

    /// Returns the state of the run on this rank, and how the ranks divide it.
    fn state(&self) -> StateView<'_>;

    /// Discards the round under way, if there is one, and returns the state for changes from outside.
    fn edit(&mut self) -> StateEdit<'_>;

    /// Returns the model that this rank computes with.
    fn model(&mut self) -> ModelHandle<'_>;
}
