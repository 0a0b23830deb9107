//! The forward pass of an evaluation through the stages of a pipeline.

use ronde_core::Shard;
use ronde_core::step_layout::MeshPlace;
use ronde_engine::Activation;
use ronde_schedule::Border;

use super::passes::Passes;
use super::program::exchange;
use super::shard::features;
use crate::error::ParallelError;
use crate::step_method::MicroBatch;

/// The number of batches that a rank may be ahead of the next one.
const AHEAD: usize = 4;

impl Passes<'_> {
    /// Passes a batch through the stages of this rank; returns the outputs of the last one.
    pub(super) fn evaluate_stages(
        &mut self,
        mut batch: Option<&mut MicroBatch>,
    ) -> Result<Option<Activation>, ParallelError> {
        let shard = batch.as_ref().map_or(Shard(0), |batch| batch.shard);
        let Some(MeshPlace { column, tensor, .. }) = self.mesh.place() else {
            return Ok(None);
        };
        // Without its groups, a rank would leave other parts of the layers out.
        self.mesh.same_layers()?;
        let stages = self.mesh.layout.stages().to_vec();
        let mut values = None;
        for (index, stage) in stages.iter().enumerate() {
            if stage.column != column {
                continue;
            }
            let is_elsewhere = |other: usize| stages[other].column != column;
            if index == 0 {
                values = batch.as_deref_mut().and_then(features);
            } else if is_elsewhere(index - 1) && batch.is_some() {
                values = self.receive_for_evaluation(index)?;
            }
            values = if self.program.gathers_weights {
                self.evaluate_gathered(index, shard, values.take())?
            } else {
                let layers = stage.layers.clone();
                let output = values.take();
                let output = output.map(|values| self.model.evaluate(layers, shard, values));
                output.transpose()?
            };
            if index + 1 < stages.len() && is_elsewhere(index + 1) && batch.is_some() {
                self.send_for_evaluation(index, values.take())?;
            }
        }
        let is_last = stages.last().is_some_and(|stage| stage.column == column);
        // Ranks with different parts of the last layer have the same outputs.
        let returns = is_last && tensor == 0;
        Ok(values.filter(|_| returns).map(Activation::on_host))
    }

    /// Passes values through the layers of a stage whose weights are gathered for each pass, also without values.
    fn evaluate_gathered(
        &mut self,
        stage: usize,
        shard: Shard,
        mut values: Option<Activation>,
    ) -> Result<Option<Activation>, ParallelError> {
        let mut units = self.reducer.units_of_stage(stage).rev().peekable();
        if let Some(&first) = units.peek() {
            self.start_layers(first)?;
        }
        while let Some(unit) = units.next() {
            if let Some(&next) = units.peek() {
                self.start_layers(next)?;
            }
            self.finish_layers(unit)?;
            let layers = self.reducer.unit(unit).layers.clone();
            let output = values.take();
            let output = output.map(|values| self.model.evaluate(layers, shard, values));
            values = output.transpose()?;
            self.suspend_layers(unit)?;
        }
        Ok(values)
    }

    fn receive_for_evaluation(&self, stage: usize) -> Result<Option<Activation>, ParallelError> {
        let border = Border {
            from: stage - 1,
            to: stage,
            shard: 0,
        };
        let from = self.mesh.rank_of_stage(stage - 1);
        let forms = &self.program.evaluation_forms;
        let received = forms.receive(&*self.mesh.all, from, border);
        let layer = self.mesh.layout.stages()[stage].layers.start;
        received
            .map_err(|source| exchange(format!("receive the values before layer {layer}"), source))
    }

    fn send_for_evaluation(
        &mut self,
        stage: usize,
        values: Option<Activation>,
    ) -> Result<(), ParallelError> {
        let border = Border {
            from: stage,
            to: stage + 1,
            shard: 0,
        };
        let to = self.mesh.rank_of_stage(stage + 1);
        let failed = |source| exchange(format!("send the values to rank {to}"), source);
        let forms = &self.program.evaluation_forms;
        let sent = forms.send(&*self.mesh.all, to, border, values);
        self.program.sends.push(sent.map_err(failed)?);
        if self.program.sends.len() > AHEAD {
            self.program.sends.remove(0).wait().map_err(failed)?;
        }
        Ok(())
    }
}
