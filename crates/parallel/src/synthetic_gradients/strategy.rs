//! [`Strategy`] for [`SyntheticGradients`].

use std::sync::Arc;

use ronde_core::holdings::HeldRanges;
use ronde_core::session::ShardReport;
use ronde_core::step_layout::StepLayout;
use ronde_core::{Group, Step, weight_hash};
use ronde_engine::{Activation, Chain, Device};

use super::{StageRounds, SyntheticGradients, no_round};
use crate::strategy::GradientPart;
use crate::{
    ComputeTimes, EvaluationPart, HeldVector, HeldVectorMut, MicroBatch, ModelState, ParallelError,
    ReducedGradient, Strategy, UpdateReport,
};

impl Strategy for SyntheticGradients {
    fn stage_rounds(&mut self) -> Option<&mut dyn StageRounds> {
        Some(self)
    }

    fn backward(&mut self, _: Step, _: Vec<MicroBatch>) -> Result<Vec<ShardReport>, ParallelError> {
        Err(ParallelError::OutOfOrder {
            problem: "a round with predicted gradients is computed by its batches".to_owned(),
        })
    }

    /// Returns the state at the end of the round.
    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError> {
        if !std::mem::take(&mut self.is_computed) {
            return Err(no_round());
        }
        let sum = self.join_state()?;
        Ok(ReducedGradient::of(vec![GradientPart {
            elements: 0..sum.len(),
            sum,
            is_owned: true,
        }]))
    }

    /// Returns the losses of the batches: see [`crate::InnerLosses`].
    fn vote_sums(
        &mut self,
        _: Step,
        _: &ReducedGradient,
        _: u64,
    ) -> Result<Vec<u8>, ParallelError> {
        Ok(self.losses.encode())
    }

    /// Visits nothing: the gradients of batches are not kept.
    fn visit_gradient(&self, _: &ReducedGradient, _: u64, _: &mut dyn FnMut(usize, &[f32])) {}

    /// Takes over the state at the end of the round. The norm is that of the change of the parameters.
    fn apply(
        &mut self,
        _: Step,
        reduced: ReducedGradient,
        _: &[Vec<u8>],
        _: u64,
        _: f64,
    ) -> Result<UpdateReport, ParallelError> {
        let part = reduced.parts.first().ok_or_else(no_round)?;
        Ok(UpdateReport {
            gradient_norm: self.take_over(part.sum.as_slice())?,
            clip_factor: 1.0,
            is_skipped: false,
        })
    }

    fn gather_weights(&mut self, step: Option<Step>) -> Result<(), ParallelError> {
        self.inner.gather_weights(step)
    }

    fn abort(&mut self) {
        self.is_computed = false;
        self.abort_passes();
        self.leave_round();
    }

    fn regroup(&mut self, group: Arc<dyn Group>, layout: StepLayout) -> Result<(), ParallelError> {
        (self.group, self.layout) = (group, layout);
        self.is_computed = false;
        self.leave_round();
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
        self.forget_round();
        self.inner.reset()
    }

    fn state(&self) -> &ModelState {
        self.inner.state()
    }

    /// Returns the hash of a part of the weights, and of the predictors.
    fn digest(&self, step: Option<Step>) -> u64 {
        let predictors = self.committed.iter().map(Vec::as_slice);
        let predictors = weight_hash::hash_parts(predictors);
        self.inner.digest(step) ^ predictors.rotate_left(1)
    }

    fn vectors(&self) -> Vec<HeldVector<'_>> {
        let mut vectors = self.inner.vectors();
        let predictors = self.committed.iter();
        vectors.extend(predictors.map(|values| HeldVector::whole(values)));
        vectors
    }

    fn vectors_mut(&mut self) -> Vec<HeldVectorMut<'_>> {
        self.forget_round();
        let mut vectors = self.inner.vectors_mut();
        let predictors = self.committed.iter_mut();
        vectors.extend(predictors.map(|values| HeldVectorMut::whole(values)));
        vectors
    }

    fn reload(&mut self) {
        self.inner.reload();
        self.restore_predictors();
    }

    fn swap_weights(&mut self, values: &mut [f32]) {
        self.inner.swap_weights(values);
    }

    fn state_mut(&mut self) -> &mut ModelState {
        self.forget_round();
        self.inner.state_mut()
    }

    fn into_chain(self: Box<Self>) -> Chain {
        self.inner.into_chain()
    }

    fn set_device(&mut self, device: &Arc<dyn Device>) {
        self.inner.set_device(device);
        let predictors = self.predictors.iter_mut();
        predictors.for_each(|predictor| predictor.set_device(device));
    }

    fn part_group(&self) -> Option<&dyn Group> {
        None
    }

    fn take_times(&mut self) -> ComputeTimes {
        std::mem::take(&mut self.times)
    }

    /// Returns the same number for all sizes: nothing is computed while the state is sent, so their size is not tuned.
    fn buckets_of(&self, _: usize) -> usize {
        self.inner.bucket_plans().len()
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
