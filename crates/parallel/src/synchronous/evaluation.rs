//! The forward pass of an evaluation through the stages of a pipeline.

use std::ops::Range;

use ronde_core::step_layout::MeshPlace;
use ronde_core::{GroupRank, Shard, Step};
use ronde_engine::{Activation, EngineError, Mode};
use ronde_schedule::Border;

use super::SynchronousStrategy;
use super::borders::BorderForms;
use super::program::exchange;
use super::shard::features;
use crate::error::ParallelError;
use crate::strategy::MicroBatch;

/// The number of batches that a rank may be ahead of the next one.
const AHEAD: usize = 4;

impl SynchronousStrategy {
    /// Passes a batch through the stages of this rank; returns the outputs of the last one.
    pub(super) fn evaluate_stages(
        &mut self,
        mut batch: Option<&mut MicroBatch>,
    ) -> Result<Option<Activation>, ParallelError> {
        let shard = batch.as_ref().map_or(Shard(0), |batch| batch.shard);
        let Some(MeshPlace { column, tensor, .. }) = self.place() else {
            return Ok(None);
        };
        // Without its groups, a rank would leave other parts of the layers out.
        self.same_layers()?;
        let forms = BorderForms {
            samples_max: self.evaluation.batch,
            ..self.border_forms(false)
        };
        let stages = self.layout.stages().to_vec();
        let mut values = None;
        for (index, stage) in stages.iter().enumerate() {
            if stage.column != column {
                continue;
            }
            let is_elsewhere = |other: usize| stages[other].column != column;
            if index == 0 {
                values = batch.as_deref_mut().and_then(features);
            } else if is_elsewhere(index - 1) && batch.is_some() {
                values = self.receive_for_evaluation(&forms, index)?;
            }
            values = if self.gathers_weights() {
                self.evaluate_gathered(index, shard, values.take())?
            } else {
                let layers = stage.layers.clone();
                let output = values.take();
                let output = output.map(|values| self.evaluate_layers(layers, shard, values));
                output
                    .transpose()
                    .map_err(|source| self.pass_error(shard, source))?
            };
            if index + 1 < stages.len() && is_elsewhere(index + 1) && batch.is_some() {
                self.send_for_evaluation(&forms, index, values.take())?;
            }
        }
        let is_last = stages.last().is_some_and(|stage| stage.column == column);
        // Ranks with different parts of the last layer have the same outputs.
        let returns = is_last && tensor == 0;
        Ok(values.filter(|_| returns).map(Activation::on_host))
    }

    /// Passes a batch through layers, some of its samples at a time.
    fn evaluate_layers(
        &mut self,
        layers: Range<usize>,
        shard: Shard,
        values: Activation,
    ) -> Result<Activation, EngineError> {
        let of = (Step(0), shard, Mode::Evaluate);
        let size = self.evaluation;
        size.forward(values, |part| self.forward(layers.clone(), of, part))
    }

    /// Passes values through the layers of a stage whose weights are gathered for each pass, also without values.
    fn evaluate_gathered(
        &mut self,
        stage: usize,
        shard: Shard,
        mut values: Option<Activation>,
    ) -> Result<Option<Activation>, ParallelError> {
        let mut units = self.units_of_stage(stage).rev().peekable();
        if let Some(&first) = units.peek() {
            self.start_layers(first)?;
        }
        while let Some(unit) = units.next() {
            if let Some(&next) = units.peek() {
                self.start_layers(next)?;
            }
            self.finish_layers(unit)?;
            let layers = self.unit(unit).layers.clone();
            let output = values.take();
            let output = output.map(|values| self.evaluate_layers(layers, shard, values));
            values = output
                .transpose()
                .map_err(|source| self.pass_error(shard, source))?;
            self.suspend_layers(unit)?;
        }
        Ok(values)
    }

    fn receive_for_evaluation(
        &self,
        forms: &BorderForms,
        stage: usize,
    ) -> Result<Option<Activation>, ParallelError> {
        let border = Border {
            from: stage - 1,
            to: stage,
            shard: 0,
        };
        let from = self.rank_of_stage(stage - 1);
        let received = forms.receive(&*self.groups.all, from, border);
        let layer = self.layout.stages()[stage].layers.start;
        received
            .map_err(|source| exchange(format!("receive the values before layer {layer}"), source))
    }

    fn send_for_evaluation(
        &mut self,
        forms: &BorderForms,
        stage: usize,
        values: Option<Activation>,
    ) -> Result<(), ParallelError> {
        let border = Border {
            from: stage,
            to: stage + 1,
            shard: 0,
        };
        let to = self.rank_of_stage(stage + 1);
        let failed = |source| exchange(format!("send the values to rank {to}"), source);
        let sent = forms.send(&*self.groups.all, to, border, values);
        self.sends.push(sent.map_err(failed)?);
        if self.sends.len() > AHEAD {
            self.sends.remove(0).wait().map_err(failed)?;
        }
        Ok(())
    }

    /// Returns the rank that has a stage of the pipeline of this rank.
    pub(super) fn rank_of_stage(&self, stage: usize) -> GroupRank {
        let column = self.layout.stages()[stage].column;
        let (replica, tensor) = self
            .place()
            .map_or((0, 0), |place| (place.replica, place.tensor));
        self.layout.rank_at(MeshPlace {
            column,
            replica,
            tensor,
        })
    }
}
