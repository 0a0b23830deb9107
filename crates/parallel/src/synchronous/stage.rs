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
use crate::strategy::GradientPart;
use crate::strategy::MicroBatch;

impl SynchronousStrategy {
    /// Returns the number of stages.
    pub(crate) fn stages(&self) -> usize {
        self.layout.stages().len()
    }

    /// Returns the stages and the shards of a step.
    pub(crate) fn stage_layout(&self) -> &StepLayout {
        &self.layout
    }

    /// Returns the number of shards of a step.
    pub(crate) fn shards(&self) -> u32 {
        self.layout.shards().shards()
    }

    /// Returns the shape of one sample of the output of a stage, which is not the last one.
    pub(crate) fn output_of_stage(&self, stage: usize) -> &[usize] {
        &self.forms.shapes[stage]
    }

    /// Returns the name of the first layer of a stage.
    pub(crate) fn first_layer(&self, stage: usize) -> &str {
        let first = self.layout.stages()[stage].layers.start;
        self.chain.layers()[first].name()
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
        let layers = self.layout.stages()[stage].layers.clone();
        let output = input.map(|input| self.forward(layers, (step, shard, Mode::Train), input));
        let output = output.transpose();
        output.map_err(|source| self.pass_error(shard, source))
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
        let gradient = output.map(|output| self.loss_gradient(output, batch, &mut report));
        Ok((report, gradient.transpose()?))
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
        // In backward order.
        for unit in self.units_of_stage(stage) {
            let mut buffer = self.take_unit(unit)?;
            gradient = match gradient {
                Some(output) => {
                    let passed =
                        self.backward_layers(unit, (shard, samples), output, buffer.values_mut());
                    passed.map_err(|source| self.pass_error(shard, source))?
                }
                None => {
                    buffer.values_mut().fill(0.0);
                    None
                }
            };
            self.add_unit(&(shard.0..shard.0 + 1), buffer);
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
        let units = self.units_of_stage(stage);
        let buckets: Vec<usize> = units.flat_map(|unit| self.buckets_of_unit(unit)).collect();
        for &index in &buckets {
            self.start_bucket(index)?;
        }
        let mut parts = Vec::with_capacity(buckets.len());
        for &index in &buckets {
            let group = self.same_layers()?.clone();
            let bucket = &mut self.buckets[index];
            let elements = bucket.plan.elements.clone();
            let sum = match bucket.wait(&*group) {
                Some(sum) => sum.map_err(|source| self.bucket_error(index, source))?,
                None => {
                    let problem = "no reduction was started".to_owned();
                    return Err(ParallelError::OutOfOrder { problem });
                }
            };
            parts.push(GradientPart {
                elements,
                sum,
                is_owned: true,
            });
        }
        let updated = match update.filter(|_| counts.samples > 0) {
            Some(update) => self.update_parts(&parts, update, counts),
            None => Ok(()),
        };
        for (index, part) in buckets.into_iter().zip(parts) {
            self.buckets[index].recycle(part.sum);
        }
        updated
    }

    fn update_parts(
        &mut self,
        parts: &[GradientPart],
        update: ReplicaUpdate,
        counts: BatchCounts,
    ) -> Result<(), ParallelError> {
        let sums = self.whole_sums(parts, &[])?;
        let number = update.number + 1;
        let factors = self.factors(number, &sums, counts, update.learning_rate)?;
        let trust = self.whole_trust(parts, &factors.update)?;
        self.update(parts, &factors.update, &trust);
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
        self.forms.send(group, to, border, values)
    }

    /// Starts to receive such values.
    pub(crate) fn receive_between(
        &self,
        group: &dyn Group,
        from: GroupRank,
        border: Border,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        let message = Buffer::host(DType::F32, self.forms.message_len(border));
        group.receive(from, self.forms.tag(border), message)
    }

    /// Returns the values of a received message.
    pub(crate) fn read_between(
        &self,
        border: Border,
        message: &Buffer,
    ) -> Result<Option<Activation>, CollectiveError> {
        self.forms.read_received(border, message)
    }
}
