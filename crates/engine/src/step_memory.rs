//! [`StepShape`]: the memory of a training step, found by running the code of the layers on a [`PlanningDevice`].

use std::sync::Arc;

use ronde_core::seed::SeedTree;
use ronde_core::{Shard, Step};

use crate::lock_step::SingleRankSums;
use crate::{
    Activation, Chain, Device, EngineError, ForwardContext, GraphLayer, Layer, LockStep, Mode,
    ModelConfig, PlanningDevice, Precision, ShardGradient, ShardInput,
};

/// The parts of a training step on which its memory depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepShape<'a> {
    /// The shape of a sample.
    pub sample: &'a [usize],
    /// The number of outputs of the model.
    pub classes: u32,
    /// The number of samples of a shard.
    pub samples: usize,
    /// The number of shards whose activations are in memory together.
    pub shards: u32,
    /// Whether activations are computed again in the backward pass.
    pub recomputes: bool,
    /// The format of the activations.
    pub precision: Precision,
}

impl ModelConfig {
    /// Returns the greatest number of floats that the activations of a training step need at any time: those kept from
    /// forward until backward, those in use by an operation, and free memory between two operations. Buffers for the
    /// gradients of weights are not counted. Cost: microseconds per operation of the model.
    ///
    /// # Errors
    /// When the model does not accept such samples.
    pub fn step_floats(&self, step: &StepShape<'_>) -> Result<u64, EngineError> {
        let device = Arc::new(PlanningDevice::new());
        let shared: Arc<dyn Device> = device.clone();
        let layers = self.outline(step.sample, step.classes)?.into_iter();
        let layers = layers.map(|layer| -> Box<dyn Layer> {
            Box::new(GraphLayer::planned(layer, &shared, step.precision))
        });
        let chain = Chain::new(layers.collect())?;
        let mut chain = if step.recomputes {
            chain.with_recomputation()
        } else {
            chain
        };
        let before = device.memory().taken;
        run_step(&mut chain, step, &device)?;
        Ok((device.memory().peak - before) as u64)
    }
}

/// Runs forward and backward of the shards of a step without values.
fn run_step(
    chain: &mut Chain,
    step: &StepShape<'_>,
    device: &PlanningDevice,
) -> Result<(), EngineError> {
    let shape = [&[step.samples], step.sample].concat();
    let inputs = (0..step.shards).map(|shard| ShardInput {
        input: Activation::unwritten(device, &shape),
        context: ForwardContext {
            seeds: SeedTree::new(0),
            step: Step(0),
            shard: Shard(shard),
            layer: 0,
            mode: Mode::Train,
        },
    });
    let outputs = chain.forward_shards(inputs.collect(), &mut SingleRankSums)?;
    let gradients = outputs
        .iter()
        .map(|output| Activation::unwritten(device, output.shape()));
    let gradients: Vec<Activation> = gradients.collect();
    drop(outputs);
    let mut gradients: Vec<Activation> = gradients;
    // Gradients of tensors go to the buckets, which are counted elsewhere.
    let ranges = vec![0..0; chain.layout().tensors.len()];
    for index in (0..chain.len()).rev() {
        let ranges = &ranges[chain.tensors_of(index)];
        let given = gradients.drain(..).zip(0..);
        let given = given.map(|(grad_output, shard)| ShardGradient {
            shard: Shard(shard),
            grad_output,
            gradients: &mut [],
        });
        let layer = &mut chain.layers_mut()[index];
        let found =
            layer.backward_shards(given.collect(), ranges, index > 0, &mut SingleRankSums)?;
        gradients.extend(found.into_iter().flatten());
    }
    Ok(())
}
