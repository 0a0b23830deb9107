//! [`Strategy`](crate::Strategy) for [`SyntheticGradients`], through [`WholeReplica`].

use std::sync::Arc;

use ronde_core::step_layout::StepLayout;
use ronde_core::{Group, Step, weight_hash};
use ronde_engine::Device;

use super::predictor::GradientPredictor;
use super::{StageRounds, SyntheticGradients, no_round};
use crate::error::ParallelError;
use crate::strategy::GradientPart;
use crate::strategy::{
    CommittedUpdate, HeldVector, HeldVectorMut, ReducedGradient, Strategy, UpdateReport,
};
use crate::synchronous::{ComputeTimes, SynchronousStrategy};
use crate::whole_replica::WholeReplica;

impl WholeReplica for SyntheticGradients {
    fn inner(&self) -> &SynchronousStrategy {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut SynchronousStrategy {
        &mut self.inner
    }

    fn into_inner(self) -> SynchronousStrategy {
        *self.inner
    }

    fn ranks(&self) -> (&dyn Group, &StepLayout) {
        (&*self.group, &self.layout)
    }

    fn computed_by(&self) -> &'static str {
        "batches"
    }

    fn as_stage_rounds(&mut self) -> Option<&mut dyn StageRounds> {
        Some(self)
    }

    /// Returns the state at the end of the round.
    fn reduce_round(&mut self) -> Result<ReducedGradient, ParallelError> {
        if !std::mem::take(&mut self.is_computed) {
            return Err(no_round());
        }
        let sum = self.join_state()?;
        self.restore_start();
        Ok(ReducedGradient::of(vec![GradientPart {
            elements: 0..sum.len(),
            sum,
            is_owned: true,
        }]))
    }

    /// Returns the losses of the batches: see [`crate::InnerLosses`].
    fn vote(&self) -> Vec<u8> {
        self.losses.encode()
    }

    /// Takes over the state at the end of the round. The norm is that of the change of the parameters.
    fn apply_round(
        &mut self,
        _: &CommittedUpdate<'_>,
        reduced: ReducedGradient,
    ) -> Result<UpdateReport, ParallelError> {
        let part = reduced.parts.first().ok_or_else(no_round)?;
        Ok(UpdateReport {
            gradient_norm: self.take_over(part.sum.as_slice())?,
            clip_factor: 1.0,
            is_skipped: false,
        })
    }

    fn abort_passes(&mut self) {
        self.inner.abort();
        let predictors = self.predictors.iter_mut();
        predictors.for_each(GradientPredictor::abort);
    }

    fn leave_round(&mut self) {
        self.is_computed = false;
        self.restore_start();
    }

    fn forget_round(&mut self) {
        self.running = None;
        self.is_computed = false;
    }

    fn enter(&mut self, group: Arc<dyn Group>, layout: StepLayout) {
        (self.group, self.layout) = (group, layout);
    }

    /// Returns the hash of a part of the weights, and of the predictors.
    fn state_digest(&self, step: Option<Step>) -> u64 {
        let predictors = self.committed.iter().map(Vec::as_slice);
        let predictors = weight_hash::hash_parts(predictors);
        self.inner.digest(step) ^ predictors.rotate_left(1)
    }

    fn reload_state(&mut self) {
        self.inner.reload();
        self.restore_predictors();
    }

    fn compute_on(&mut self, device: &Arc<dyn Device>) {
        self.inner.set_device(device);
        let predictors = self.predictors.iter_mut();
        predictors.for_each(|predictor| predictor.set_device(device));
    }

    fn take_computing_times(&mut self) -> ComputeTimes {
        std::mem::take(&mut self.times)
    }

    fn state_vectors(&self) -> Vec<HeldVector<'_>> {
        let mut vectors = self.inner.vectors();
        let predictors = self.committed.iter();
        vectors.extend(predictors.map(|values| HeldVector::whole(values)));
        vectors
    }

    fn state_vectors_mut(&mut self) -> Vec<HeldVectorMut<'_>> {
        let mut vectors = self.inner.vectors_mut();
        let predictors = self.committed.iter_mut();
        vectors.extend(predictors.map(|values| HeldVectorMut::whole(values)));
        vectors
    }

    /// Returns the groups of the layout: ranks without a stage evaluate nothing.
    fn evaluating(&self) -> (u64, Option<u64>) {
        let place = self.layout.place(self.group.rank());
        (
            self.layout.replicas() as u64,
            place.map(|place| place.replica as u64),
        )
    }
}
