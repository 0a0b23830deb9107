//! [`StepMethod`] for [`SyntheticGradients`].

use std::sync::Arc;

use ronde_core::Group;
use ronde_core::step_layout::StepLayout;

use super::predictor::GradientPredictor;
use super::{SyntheticGradients, no_round};
use crate::error::ParallelError;
use crate::state_view::{
    MeanGradient, ModelHandle, RoundState, RunVector, RunVectorMut, StateEdit, StateView,
};
use crate::step_method::{CommittedUpdate, ReducedGradient, StepMethod, UpdateReport};

impl StepMethod for SyntheticGradients {
    /// Returns the state at the end of the round.
    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError> {
        if !std::mem::take(&mut self.is_computed) {
            return Err(no_round());
        }
        let sum = self.join_state()?;
        self.restore_start();
        Ok(ReducedGradient::of_round(sum))
    }

    /// Returns the losses of the batches: see [`crate::InnerLosses`].
    fn vote(&mut self, _: u64, _: &ReducedGradient, _: u64) -> Result<Vec<u8>, ParallelError> {
        Ok(self.losses.encode())
    }

    /// Takes over the state at the end of the round. The norm is of the change of the parameters.
    fn apply(
        &mut self,
        _: &CommittedUpdate<'_>,
        reduced: ReducedGradient,
    ) -> Result<UpdateReport, ParallelError> {
        let part = reduced.parts.first().ok_or_else(no_round)?;
        let norm = self.take_over(part.sum.as_slice())?;
        Ok(UpdateReport::of_norm(norm))
    }

    fn abort(&mut self) {
        self.inner.abort();
        let predictors = self.predictors.iter_mut();
        predictors.for_each(GradientPredictor::abort);
        self.leave_round();
    }

    fn enter(&mut self, group: Arc<dyn Group>, layout: StepLayout) -> Result<(), ParallelError> {
        self.leave_round();
        (self.group, self.layout) = (group, layout);
        Ok(())
    }

    fn state(&self) -> StateView<'_> {
        let predictors = self.committed.iter();
        let round = RoundState {
            ranks: self.layout.ranks(),
            rank: self.group.rank(),
            has_optimizer: true,
            vectors: predictors.map(|v| RunVector::Whole(v)).collect(),
        };
        StateView::of_rounds(&self.inner, round, MeanGradient::Unknown)
    }

    fn edit(&mut self) -> StateEdit<'_> {
        (self.running, self.is_computed) = (None, false);
        let predictors = self.committed.iter_mut();
        let vectors = predictors.map(|v| RunVectorMut::Whole(v)).collect();
        StateEdit::of_rounds(&mut self.inner, true, vectors)
    }

    /// Ranks without a stage evaluate nothing.
    fn model(&mut self) -> ModelHandle<'_> {
        let layout = Some(&self.layout);
        ModelHandle::of_rounds(&mut self.inner, (&*self.group, layout))
            .with(self.predictors.iter_mut().map(GradientPredictor::model))
    }
}
