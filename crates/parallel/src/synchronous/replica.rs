//! A strategy as one replica of local training: its state is set from outside, and its updates need no other rank.

use std::ops::Range;

use ronde_core::layout::Role;
use ronde_core::seed::SeedTree;
use ronde_core::{BatchCounts, Step};
use ronde_protocol::transaction::ShardReport;

use super::SynchronousStrategy;
use crate::bucket::{self, BucketPlan};
use crate::error::ParallelError;
use crate::state::ModelState;
use crate::step_method::{CommittedUpdate, MicroBatch, ReducedGradient, StepMethod};
use crate::synchronous::SynchronousConfig;

/// An update of one replica.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplicaUpdate {
    /// The step that random numbers belong to.
    pub(crate) random: Step,
    /// The number of the update from 0, from which optimizers correct their moments.
    pub(crate) number: u64,
    pub(crate) learning_rate: f64,
}

impl SynchronousStrategy {
    /// Replaces the weights, and the states of the optimizer: zeros without `states`. The model computes with them from now on.
    pub(crate) fn restore(&mut self, weights: &[f32], states: Option<&[&[f32]]>) {
        let slices = self.slices_mut();
        slices.weights.values_mut().copy_from_slice(weights);
        slices.set_optimizer_states(states);
        self.load_layers();
    }

    /// Passes the weights to `change`. The model computes with them from [`SynchronousStrategy::load_layers`] on.
    pub(crate) fn with_weights(&mut self, change: impl FnOnce(&mut [f32])) {
        change(self.slices_mut().weights.values_mut());
    }

    /// Replaces the state by the first elements of `joined`: the weights, then each state of the optimizer. Frozen parameters keep
    /// their values. [`SynchronousStrategy::load_layers`] must follow. Returns the norm of the change of the parameters, and the remaining elements;
    /// `None`, without a change, if there are too few.
    pub(crate) fn take_over<'a>(&mut self, joined: &'a [f32]) -> Option<(f64, &'a [f32])> {
        let state = &self.slices.weights;
        let len = state.len();
        let (weights, rest) = joined.split_at_checked(len)?;
        let (states, rest) = rest.split_at_checked(len * self.optimizer_states().len())?;
        let mut squares = 0.0;
        for tensor in state.tensors() {
            if tensor.entry.role == Role::Parameter {
                let before = &state.values()[tensor.range.clone()];
                let pairs = before.iter().zip(&weights[tensor.range.clone()]);
                squares += pairs
                    .map(|(before, after)| f64::from(before - after).powi(2))
                    .sum::<f64>();
            }
        }
        let trained = self.slices.trained_elements();
        self.with_weights(|values| {
            for range in trained {
                values[range.clone()].copy_from_slice(&weights[range]);
            }
        });
        let states: Vec<&[f32]> = states.chunks_exact(len.max(1)).collect();
        if len > 0 {
            self.slices.set_optimizer_states(Some(&states));
        }
        Some((squares.sqrt(), rest))
    }

    /// Returns the states of the optimizer.
    pub(crate) fn optimizer_states(&self) -> &[Vec<f32>] {
        self.slices.optimizer_states()
    }

    /// Returns the root of all random numbers.
    pub(crate) fn seeds(&self) -> SeedTree {
        self.model.seeds
    }

    /// Returns the settings.
    pub(crate) fn config(&self) -> &SynchronousConfig {
        &self.config
    }

    /// Returns the weights and buffers.
    pub(crate) fn weights(&self) -> &ModelState {
        &self.slices.weights
    }

    /// Returns the ranges of layers whose gradients this strategy would reduce together.
    pub(crate) fn bucket_plans(&self) -> Vec<BucketPlan> {
        let stages = self.connected.mesh.layout.stages();
        let regions = self.slices.weights.regions();
        bucket::plan(regions, stages, self.config.bucket_bytes_max)
    }

    /// Computes the gradient of a replica's micro-batches, with the reports of the micro-batches.
    ///
    /// # Errors
    /// As [`SynchronousStrategy::backward`].
    pub(crate) fn gradient_of(
        &mut self,
        random: Step,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<(Vec<ShardReport>, ReducedGradient), ParallelError> {
        let reports = self.backward(random, micro_batches)?;
        Ok((reports, self.reduce()?))
    }

    /// Returns the clipping factor of a mean gradient over counted targets.
    ///
    /// # Errors
    /// [`ParallelError::NotFinite`] with the first tensor whose gradient is not finite.
    pub(crate) fn clip_factor_of(
        &self,
        reduced: &ReducedGradient,
        counts: BatchCounts,
    ) -> Result<f32, ParallelError> {
        let sums = self.slices.whole_sums(&reduced.parts, None)?;
        let factors = self.slices.factors(1, &sums, counts, 0.0)?;
        Ok(factors.clip_factor)
    }

    /// Returns the memory of a gradient that is not used any more.
    pub(crate) fn recycle_gradient(&mut self, reduced: ReducedGradient) {
        self.recycle(reduced);
    }

    /// Computes the gradient of a replica's micro-batches and updates its weights. Returns the reports of the micro-batches, and
    /// changes no parameter if these have no counted targets.
    ///
    /// # Errors
    /// As [`SynchronousStrategy::backward`] and [`StepMethod::apply`].
    pub(crate) fn update_replica(
        &mut self,
        update: ReplicaUpdate,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<Vec<ShardReport>, ParallelError> {
        let reports = self.backward(update.random, micro_batches)?;
        let reduced = self.reduce()?;
        let counts: BatchCounts = reports.iter().map(ShardReport::counts).sum();
        if counts.samples == 0 {
            self.recycle(reduced);
            return Ok(reports);
        }
        let committed = CommittedUpdate {
            step: Step(update.number),
            number: update.number + 1,
            counts,
            sums: &[],
            learning_rate: update.learning_rate,
        };
        self.apply(&committed, reduced)?;
        self.load_layers();
        Ok(reports)
    }
}

/// Returns the elements of one range that are also in another; empty, within the other one, if there are none.
pub(crate) fn common(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.clamp(other.start, other.end);
    start..one.end.clamp(start, other.end)
}
