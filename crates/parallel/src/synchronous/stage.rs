//! A strategy as the stages of a model that are computed and updated one at a time: see [`crate::synthetic_gradients`].

use ronde_core::step_layout::StepLayout;
use ronde_core::{
    BatchCounts, Buffer, CollectiveError, DType, Group, GroupRank, Shard, Step, Work,
};
use ronde_engine::{Activation, LayerExt, Mode};
use ronde_protocol::transaction::ShardReport;
use ronde_schedule::Border;

use super::SynchronousStrategy;
use super::replica::ReplicaUpdate;
use crate::error::ParallelError;
use crate::step_method::{GradientPart, MicroBatch, ReducedGradient};

impl SynchronousStrategy {
    /// Returns the number of stages.
    pub(crate) fn stages(&self) -> usize {
        self.stage_layout().stages().len()
    }

    /// Returns the stages and the shards of a step.
    pub(crate) fn stage_layout(&self) -> &StepLayout {
        &self.connected.mesh.layout
    }

    /// Returns the number of shards of a step.
    pub(crate) fn shards(&self) -> u32 {
        self.stage_layout().shards().shards()
    }

    /// Returns the shape of one sample of the output of a stage, which is not the last one.
    pub(crate) fn output_of_stage(&self, stage: usize) -> &[usize] {
        &self.connected.program.forms.shapes[stage]
    }

    /// Returns the name of the first layer of a stage.
    pub(crate) fn first_layer(&self, stage: usize) -> &str {
        let first = self.stage_layout().stages()[stage].layers.start;
        self.model.chain.layers()[first].name()
    }

    /// Adds the times of passes to the times of the step.
    pub(crate) fn add_times(&mut self, forward_s: f64, backward_s: f64) {
        self.timer.times.forward_s += forward_s;
        self.timer.times.backward_s += backward_s;
    }

    /// Returns the report of a shard before its loss is computed.
    pub(crate) fn report_of(&self, batch: &MicroBatch) -> ShardReport {
        self.model.report_of(batch)
    }

    /// Passes the input of a shard through a stage; `None` for a shard without samples.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) fn forward_stage(
        &mut self,
        stage: usize,
        (step, shard): (Step, Shard),
        input: Option<Activation>,
    ) -> Result<Option<Activation>, ParallelError> {
        let layers = self.stage_layout().stages()[stage].layers.clone();
        let model = &mut self.model;
        let output = input.map(|input| model.forward(layers, (step, shard, Mode::Train), input));
        let output = output.transpose();
        output.map_err(|source| model.pass_error(shard, source))
    }

    /// Returns the report of a shard, and the gradient of the outputs of the last stage, except without samples.
    ///
    /// # Errors
    /// The loss cannot be computed.
    pub(crate) fn loss_of_stage(
        &mut self,
        output: Option<Activation>,
        batch: &MicroBatch,
    ) -> Result<(ShardReport, Option<Activation>), ParallelError> {
        let mut report = self.report_of(batch);
        let (model, scale) = (&self.model, &self.slices.scale);
        let gradient =
            output.map(|output| model.loss_gradient(output, (batch, &mut report), scale));
        let gradient = gradient.transpose()?;
        Ok((report, gradient))
    }

    /// Passes the gradient of the output of a shard back through a stage, and adds the gradient of its weights. Returns that of
    /// the input, except for the first stage. Without a gradient, the shard has no samples and adds zeros.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) fn backward_stage(
        &mut self,
        stage: usize,
        (shard, samples): (Shard, usize),
        mut gradient: Option<Activation>,
    ) -> Result<Option<Activation>, ParallelError> {
        let mut passes = self.passes();
        // In backward order.
        for unit in passes.reducer.units_of_stage(stage) {
            gradient = passes.backward_unit(unit, (shard, samples), gradient)?;
        }
        Ok(gradient)
    }

    /// Updates a stage with the gradients of all shards, or drops them without `update`. Clips by the norm of the gradient of the
    /// stage. Changes no parameter without counted targets, and nothing without samples.
    ///
    /// # Errors
    /// [`ParallelError::NotFinite`] with the first tensor whose gradient is not finite; nothing has changed.
    pub(crate) fn update_stage(
        &mut self,
        stage: usize,
        update: Option<ReplicaUpdate>,
        counts: BatchCounts,
    ) -> Result<(), ParallelError> {
        let reducer = &mut self.connected.reducer;
        let units = reducer.units_of_stage(stage);
        let buckets: Vec<usize> = units
            .flat_map(|unit| reducer.buckets_of_unit(unit))
            .collect();
        for &index in &buckets {
            reducer.start(index, None, &mut self.timer)?;
        }
        let parts = buckets.into_iter().map(|index| {
            let elements = reducer.buckets()[index].plan.elements.clone();
            Ok(GradientPart {
                elements,
                sum: reducer.wait_for(index)?,
                is_owned: true,
            })
        });
        let parts: Vec<GradientPart> = parts.collect::<Result<_, ParallelError>>()?;
        let updated = match update.filter(|_| counts.samples > 0) {
            Some(update) => self.update_parts(&parts, update, counts),
            None => Ok(()),
        };
        self.recycle(ReducedGradient::of(parts));
        updated
    }

    fn update_parts(
        &mut self,
        parts: &[GradientPart],
        update: ReplicaUpdate,
        counts: BatchCounts,
    ) -> Result<(), ParallelError> {
        let slices = &self.slices;
        let sums = slices.whole_sums(parts, None)?;
        let number = update.number + 1;
        let factors = slices.factors(number, &sums, counts, update.learning_rate)?;
        let trust = slices.whole_trust(parts, &factors.update)?;
        self.slices_mut().update(parts, &factors.update, &trust);
        self.load_layers();
        Ok(())
    }

    /// Starts to send values between two stages to a rank of another group; `None` for a shard without samples.
    pub(crate) fn send_between(
        &self,
        group: &dyn Group,
        to: GroupRank,
        border: Border,
        values: Option<Activation>,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        self.connected.program.forms.send(group, to, border, values)
    }

    /// Starts to receive such values.
    pub(crate) fn receive_between(
        &self,
        group: &dyn Group,
        from: GroupRank,
        border: Border,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        let message = Buffer::host(DType::F32, self.connected.program.forms.message_len(border));
        group.receive(from, self.connected.program.forms.tag(border), message)
    }

    /// Returns the values of a received message.
    pub(crate) fn read_between(
        &self,
        border: Border,
        message: &Buffer,
    ) -> Result<Option<Activation>, CollectiveError> {
        self.connected.program.forms.read_received(border, message)
    }
}
