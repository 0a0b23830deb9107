//! Shards in lock step: all shards of a rank pass through a layer before any enters the next one, because a layer
//! needs sums over all shards within its pass.
//!
//! Statistics are added along the same fixed tree as gradients, so their bits do not depend on the assignment of
//! shards to ranks. Cost: the activations of all shards of the rank are stored, and each sum waits for all
//! ranks. A bucket is sent when its layers have finished the backward pass of all shards.

use ronde_core::exact::TreeSum;
use ronde_core::shards::ShardPlan;
use ronde_core::{Buffer, CollectiveError, Collectives, DType, Operation, Shard};
use ronde_engine::{
    Activation, BackwardPart, BackwardPass, EngineError, Layer, Mode, NotSummed, ShardGradient,
    ShardInput, ShardSums,
};

use super::passes::Passes;
use super::program::RunningStep;
use super::timer::ComputeClock;
use crate::bucket::joined;
use crate::error::ParallelError;

/// Sums over the shards of all ranks of a group.
struct GroupSums<'a> {
    group: &'a dyn Collectives,
    shards: &'a ShardPlan,
    clock: Option<ComputeClock>,
    /// The seconds that this rank has waited for sums.
    waited_s: f64,
    failed: Option<CollectiveError>,
}

impl<'a> GroupSums<'a> {
    fn new(group: &'a dyn Collectives, shards: &'a ShardPlan, clock: Option<ComputeClock>) -> Self {
        Self {
            group,
            shards,
            clock,
            waited_s: 0.0,
            failed: None,
        }
    }

    /// Returns the error behind a failed layer.
    fn cause(&mut self, shard: Shard, source: EngineError) -> ParallelError {
        match (source, self.failed.take()) {
            (EngineError::NotSummed { layer }, Some(source)) => {
                ParallelError::LayerSum { layer, source }
            }
            (source, _) => ParallelError::Engine { shard, source },
        }
    }
}

impl ShardSums for GroupSums<'_> {
    fn sum(&mut self, len: usize, parts: Vec<(Shard, Vec<f64>)>) -> Result<Vec<f64>, NotSummed> {
        let mut tree = TreeSum::new(self.shards.shards());
        for (shard, values) in parts {
            let mut buffer = Buffer::host(DType::F64, len);
            buffer.as_mut_slice::<f64>().copy_from_slice(&values);
            tree.add_shard(shard.0, buffer);
        }
        let subtrees = tree.take();
        let buffer = if subtrees.is_empty() {
            Ok(Buffer::host(DType::F64, 0))
        } else {
            joined(self.group, subtrees, len, &mut Vec::new())
        };
        let operation = Operation::ExactSum(self.shards.exact_sum());
        let now = || self.clock.map_or(0.0, |clock| clock());
        let begun = now();
        let sum = buffer.and_then(|buffer| self.group.start_and_wait(operation, buffer));
        self.waited_s += now() - begun;
        match sum {
            Ok(sum) => Ok(sum.as_slice::<f64>().to_vec()),
            Err(error) => {
                self.failed = Some(error);
                Err(NotSummed)
            }
        }
    }
}

impl Passes<'_> {
    /// Returns whether a layer needs sums over all shards within its pass.
    pub(super) fn in_lock_step(&mut self) -> bool {
        self.model.chain.facts().needs_all_shards()
    }

    /// Runs the forward pass of all shards of this rank through the layers of a bucket.
    pub(super) fn forward_together(
        &mut self,
        index: usize,
        running: &mut RunningStep,
    ) -> Result<(), ParallelError> {
        let group = self.mesh.same_layers()?.clone();
        let layers = self.reducer.unit(index).layers.clone();
        let shards: Vec<u32> = running.batches.keys().copied().collect();
        let mut values = Vec::with_capacity(shards.len());
        for shard in &shards {
            values.extend(match (layers.start, running.batches.get_mut(shard)) {
                // Shards without samples take part, too.
                (0, Some(batch)) => {
                    let features = std::mem::take(&mut batch.features);
                    Some(Activation::from_host(&batch.shape, features))
                }
                _ => running.outputs.remove(&(0, *shard)).flatten(),
            });
        }
        let mut sums = GroupSums::new(&*group, self.mesh.layout.shards(), self.timer.clock);
        let first = Shard(shards.first().copied().unwrap_or(0));
        for layer in layers {
            let inputs = values
                .into_iter()
                .zip(&shards)
                .map(|(input, &shard)| ShardInput {
                    input,
                    context: self
                        .model
                        .context((running.step, Shard(shard)), layer, Mode::Train),
                });
            let inputs = inputs.collect();
            let outputs = self.model.chain.layers_mut()[layer].forward(inputs, &mut sums);
            values = outputs.map_err(|source| sums.cause(first, source))?;
        }
        self.timer.times.waited_s += sums.waited_s;
        for (shard, output) in shards.into_iter().zip(values) {
            running.outputs.insert((0, shard), Some(output));
        }
        Ok(())
    }

    /// Runs the backward pass of all shards of this rank through the layers of a bucket, and adds their gradients.
    pub(super) fn backward_together(
        &mut self,
        index: usize,
        running: &mut RunningStep,
    ) -> Result<(), ParallelError> {
        let batches: Vec<(u32, usize)> = running
            .batches
            .iter()
            .map(|(&shard, batch)| (shard, batch.samples()))
            .collect();
        let buffers = batches.iter().map(|_| self.reducer.take_buffer(index));
        let mut buffers = buffers.collect::<Result<Vec<Buffer>, _>>()?;
        let outputs = batches.iter().filter_map(|&(shard, _)| {
            let gradient = running.gradients.remove(&(0, shard));
            gradient.flatten()
        });
        let outputs = outputs.collect();
        let gradients = self.bucket_together(index, &batches, outputs, &mut buffers)?;
        for (&(shard, _), gradient) in batches.iter().zip(gradients) {
            running.gradients.insert((0, shard), Some(gradient));
        }
        for ((shard, _), buffer) in batches.into_iter().zip(buffers) {
            self.reducer.add_shard(index, shard, buffer);
        }
        Ok(())
    }

    /// Runs backward of the layers of one bucket and returns the gradients of their inputs.
    fn bucket_together(
        &mut self,
        index: usize,
        batches: &[(u32, usize)],
        mut outputs: Vec<Activation>,
        buffers: &mut [Buffer],
    ) -> Result<Vec<Activation>, ParallelError> {
        let (group, shards) = (
            self.mesh.same_layers()?.clone(),
            self.mesh.layout.shards().clone(),
        );
        let mut sums = GroupSums::new(&*group, &shards, self.timer.clock);
        let first = Shard(batches.first().map_or(0, |batch| batch.0));
        let layers = self.reducer.unit(index).layers.clone();
        for layer in layers.rev() {
            let ranges = self.reducer.unit_ranges(index, layer);
            let given = batches.iter().zip(outputs).zip(&mut *buffers);
            let given = given.map(|((batch, grad_output), buffer)| ShardGradient {
                shard: Shard(batch.0),
                grad_output,
                gradients: buffer.as_mut_slice(),
                added: Vec::new(),
            });
            let given = given.collect();
            let layers = self.model.chain.layers_mut();
            let inputs = layers[layer].backward(
                given,
                BackwardPass {
                    part: BackwardPart::Whole,
                    ranges: &ranges,
                    needs_input_gradient: layer > 0,
                },
                &mut sums,
            );
            let inputs = inputs.map_err(|source| sums.cause(first, source))?;
            for (batch, buffer) in batches.iter().zip(&mut *buffers) {
                let gradients = buffer.as_mut_slice();
                self.model.weigh_buffers(layer, batch.1, &ranges, gradients);
            }
            outputs = inputs.into_iter().flatten().collect();
        }
        self.timer.times.waited_s += sums.waited_s;
        Ok(outputs)
    }
}
