//! [`StepShape`]: the memory of a training step, found by running the code of the layers on a [`PlanningDevice`].
//!
//! The device finds the offset of each block by the code of the host, so the peak includes the free ranges between blocks; a test
//! finds it within 2 % of the memory that a step takes. Evaluations are planned in the same way.

use std::sync::{Arc, Mutex, PoisonError};

use ronde_core::seed::SeedTree;
use ronde_core::{Shard, Step};

use crate::activation::Activation;
use crate::chain::Chain;
use crate::context::{ForwardContext, Mode};
use crate::device::{Device, KernelCall, KernelObserver, ObservedDevice, PlanningDevice};
use crate::error::EngineError;
use crate::evaluation_size::EvaluationSize;
use crate::graph::GraphLayer;
use crate::layer::{BackwardPart, BackwardPass, Layer, LayerExt};
use crate::lock_step::SingleRankSums;
use crate::lock_step::{ShardGradient, ShardInput};
use crate::models::ModelConfig;
use crate::precision::Precision;
use crate::recomputation::Recomputation;
use crate::recomputed::Recomputed;

/// The largest number of samples of a shard that is planned.
const SAMPLES_MAX: usize = 1 << 16;

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
    /// Whether these shards pass through the last layer and the loss one after the other, so that only one has outputs.
    pub is_by_layer: bool,
    /// The layers whose activations are computed again in the backward pass.
    pub recomputation: &'a Recomputation,
    /// The format of the activations.
    pub precision: Precision,
}

impl ModelConfig {
    /// Returns the greatest number of floats that the activations of a training step need at any time: those kept from
    /// forward until backward, those in use by an operation, and free memory between two operations. The gradient of the loss
    /// replaces the outputs, as for cross-entropy. Buffers for the gradients of weights and of the kernels are not counted. Cost: microseconds per operation of the model.
    ///
    /// # Errors
    /// When the model does not accept such samples.
    pub fn step_floats(&self, step: &StepShape<'_>) -> Result<u64, EngineError> {
        let device = Arc::new(PlanningDevice::new());
        let shared: Arc<dyn Device> = device.clone();
        let mut chain = self.planned(step, &shared)?;
        if step.precision == Precision::F32 {
            // The host uses the weights in the state's memory; in short formats, it has rounded copies.
            device.start_slabs();
        }
        let before = device.memory().taken;
        // Larger shards are planned in proportion, because their lengths could be beyond the range of `usize`.
        let planned = StepShape {
            samples: step.samples.min(SAMPLES_MAX),
            ..*step
        };
        run_step(&mut chain, &planned, &device)?;
        let floats = (device.memory().taken - before) as u64;
        let (samples, planned) = (step.samples as u64, planned.samples.max(1) as u64);
        Ok(floats.saturating_mul(samples.div_ceil(planned)))
    }

    /// Returns the greatest number of floats that an evaluation needs at any time, with the outputs of a batch and what a loss
    /// needs of them. Cost: as [`ModelConfig::step_floats`]; only the form of the samples of `step` and its precision count.
    ///
    /// # Errors
    /// When the model does not accept such samples.
    pub fn evaluation_floats(&self, step: &StepShape<'_>) -> Result<u64, EngineError> {
        let device = Arc::new(PlanningDevice::new());
        let shared: Arc<dyn Device> = device.clone();
        let mut chain = self.planned(step, &shared)?;
        let size = EvaluationSize::of(&chain, step.sample);
        let before = device.memory().taken;
        let shape = [&[size.together], step.sample].concat();
        let context = ForwardContext::evaluate();
        let output = chain.forward_shard(Activation::sample(&device, &shape), &context)?;
        let each = output.elements() / size.together;
        drop(output);
        // The outputs of the parts, joined ones, and the gradient that a loss computes with its value.
        let outputs = 3 * (each * size.batch) as u64;
        Ok((device.memory().taken - before) as u64 + outputs)
    }

    /// Returns the work of forward and backward of a shard in each layer, as multiply-adds of matrix products that take as
    /// long on a usual processor, in f32 and without recomputation. Cost: microseconds per operation of the model.
    ///
    /// # Errors
    /// When the model does not accept such samples.
    pub fn layer_work(&self, step: &StepShape<'_>) -> Result<Vec<f64>, EngineError> {
        let counter = Arc::new(WorkCounter::default());
        let planning: Arc<dyn Device> = Arc::new(PlanningDevice::new());
        let device = ObservedDevice::new(planning.clone(), counter.clone());
        let device: Arc<dyn Device> = Arc::new(device);
        // Neither changes the shares of the layers much.
        let step = StepShape {
            recomputation: &Recomputation::Off,
            precision: Precision::F32,
            ..*step
        };
        let mut chain = self.planned(&step, &device)?;
        let mut shape = vec![step.samples.min(SAMPLES_MAX)];
        shape.extend_from_slice(step.sample);
        let mut work = vec![0.0; chain.len()];
        let mut values = Activation::unwritten(&*planning, &shape);
        for (index, layer) in chain.layers_mut().iter_mut().enumerate() {
            values = layer.forward_shard(values, &planned_context(0).at_layer(index as u32))?;
            work[index] += counter.take();
        }
        let mut gradient = Some(Activation::unwritten(&*planning, values.shape()));
        let ranges = vec![0..0; chain.layout().tensors.len()];
        for index in (0..chain.len()).rev() {
            let ranges = &ranges[chain.tensors_of(index)];
            let Some(output) = gradient.take() else { break };
            let layer = &mut chain.layers_mut()[index];
            gradient = layer.backward_shard(Shard(0), output, &mut [], ranges, index > 0)?;
            work[index] += counter.take();
        }
        Ok(work)
    }

    /// Builds the model on a device that only plans.
    fn planned(
        &self,
        step: &StepShape<'_>,
        device: &Arc<dyn Device>,
    ) -> Result<Chain, EngineError> {
        let layers = self.outline(step.sample, step.classes)?.into_iter();
        let layers = layers.map(|layer| -> Box<dyn Layer> {
            Box::new(GraphLayer::planned(layer, device, step.precision))
        });
        let chain = Chain::new(layers.collect())?;
        // As `Chain::recomputing`, on the device of the layers.
        let names: Vec<&str> = chain.layers().iter().map(|layer| layer.name()).collect();
        let chosen = step.recomputation.chosen(&names)?;
        Ok(chain.wrapped(|index, layer| {
            if chosen[index] {
                Box::new(Recomputed::on_device(layer, device.clone()))
            } else {
                layer
            }
        }))
    }
}

impl Chain {
    /// Returns the work of forward and backward of a shard of `samples` samples in each layer: see [`Layer::work`]. `None` if a
    /// layer does not know it.
    pub fn layer_work(&mut self, sample: &[usize], samples: usize) -> Option<Vec<f64>> {
        let mut shape = vec![samples.min(SAMPLES_MAX)];
        shape.extend_from_slice(sample);
        let layers = self.layers_mut().iter_mut().enumerate();
        let work = layers.map(|(index, layer)| {
            let work = layer.work(&shape, index > 0);
            shape = layer.cost(&shape).output_shape;
            work
        });
        work.collect()
    }
}

/// The multiply-adds that take as long as one float that a kernel reads or writes.
const WORK_OF_A_FLOAT: f64 = 32.0;

/// Sums the work of the kernels.
#[derive(Debug, Default)]
pub(crate) struct WorkCounter {
    work: Mutex<f64>,
}

impl WorkCounter {
    /// Returns the work since the last call.
    pub(crate) fn take(&self) -> f64 {
        std::mem::take(&mut *self.work.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl KernelObserver for WorkCounter {
    fn begin(&self) {}

    fn end(&self, call: KernelCall) {
        let work = call.work.multiply_adds + WORK_OF_A_FLOAT * call.work.floats as f64;
        *self.work.lock().unwrap_or_else(PoisonError::into_inner) += work;
    }
}

/// Returns the context of a shard in the first layer.
pub(crate) fn planned_context(shard: u32) -> ForwardContext {
    ForwardContext {
        seeds: SeedTree::new(0),
        step: Step(0),
        shard: Shard(shard),
        layer: 0,
        mode: Mode::Train,
    }
}

/// Runs the shards of a step layer by layer without values: through the last layer and the loss one after the other, so only
/// one has outputs.
fn run_by_layer(
    chain: &mut Chain,
    inputs: Vec<ShardInput>,
    device: &PlanningDevice,
) -> Result<(), EngineError> {
    let last = chain.len() - 1;
    let mut shards = Vec::with_capacity(inputs.len());
    for ShardInput { input, context } in inputs {
        shards.push((Some(input), context));
    }
    for (index, layer) in chain.layers_mut()[..last].iter_mut().enumerate() {
        for (values, context) in &mut shards {
            let context = context.at_layer(index as u32);
            if let Some(input) = values.take() {
                *values = Some(layer.forward_shard(input, &context)?);
            }
        }
    }
    let ranges = vec![0..0; chain.layout().tensors.len()];
    for (values, context) in &mut shards {
        let ranges = &ranges[chain.tensors_of(last)];
        let layer = &mut chain.layers_mut()[last];
        if let Some(input) = values.take() {
            let mut gradient = layer.forward_shard(input, &context.at_layer(last as u32))?;
            gradient.values_mut(device);
            *values = layer.backward_shard(context.shard, gradient, &mut [], ranges, last > 0)?;
        }
    }
    for index in (0..last).rev() {
        let ranges = &ranges[chain.tensors_of(index)];
        let layer = &mut chain.layers_mut()[index];
        for (gradient, context) in &mut shards {
            if let Some(output) = gradient.take() {
                *gradient =
                    layer.backward_shard(context.shard, output, &mut [], ranges, index > 0)?;
            }
        }
    }
    Ok(())
}

/// Runs forward and backward of the shards of a step without values.
fn run_step(
    chain: &mut Chain,
    step: &StepShape<'_>,
    device: &PlanningDevice,
) -> Result<(), EngineError> {
    let shape = [&[step.samples], step.sample].concat();
    let inputs = (0..step.shards).map(|shard| ShardInput {
        input: Activation::sample(device, &shape),
        context: planned_context(shard),
    });
    let inputs = inputs.collect();
    if step.is_by_layer && step.shards > 1 && !chain.facts().needs_all_shards() {
        return run_by_layer(chain, inputs, device);
    }
    let outputs = chain.forward(inputs, &mut SingleRankSums)?;
    // The gradient of the loss replaces the outputs.
    let mut gradients = outputs;
    for gradient in &mut gradients {
        gradient.values_mut(device);
    }
    // Gradients of tensors go to the buckets, which are counted elsewhere.
    let ranges = vec![0..0; chain.layout().tensors.len()];
    for index in (0..chain.len()).rev() {
        let ranges = &ranges[chain.tensors_of(index)];
        let given = gradients.drain(..).zip(0..);
        let given = given.map(|(grad_output, shard)| ShardGradient {
            shard: Shard(shard),
            grad_output,
            gradients: &mut [],
            added: Vec::new(),
        });
        let layer = &mut chain.layers_mut()[index];
        let found = layer.backward(
            given.collect(),
            BackwardPass {
                part: BackwardPart::Whole,
                ranges,
                needs_input_gradient: index > 0,
            },
            &mut SingleRankSums,
        )?;
        gradients.extend(found.into_iter().flatten());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_a_layer_grows_with_its_matrices() {
        let model = ModelConfig::Mlp {
            hidden: vec![512, 512],
            tensor_parts: 1,
        };
        let step = StepShape {
            sample: &[64],
            classes: 10,
            samples: 16,
            shards: 1,
            is_by_layer: true,
            recomputation: &Recomputation::Off,
            precision: Precision::F32,
        };
        let work = model.layer_work(&step).unwrap();
        assert_eq!(work.len(), 3);
        // The first layer needs no gradient of its input.
        assert!(work[0] >= 2.0 * 16.0 * 64.0 * 512.0, "{work:?}");
        assert!(work[1] >= 3.0 * 16.0 * 512.0 * 512.0, "{work:?}");
        assert!(work[1] > work[0] && work[0] > work[2], "{work:?}");
    }

    #[test]
    fn the_memory_of_attention_grows_with_the_tokens_and_not_with_their_pairs() {
        let floats = |model: &ModelConfig, tokens| {
            let step = StepShape {
                sample: &[tokens],
                classes: 100,
                samples: 1,
                shards: 1,
                is_by_layer: true,
                recomputation: &Recomputation::Off,
                precision: Precision::F32,
            };
            model.step_floats(&step).unwrap() as f64
        };
        let (layers, width, heads, dropout) = (2, 64, 4, 0.0);
        let gpt = ModelConfig::Gpt {
            layers,
            width,
            heads,
            dropout,
            tied: false,
            tensor_parts: 1,
        };
        let bert = ModelConfig::Bert {
            layers,
            width,
            heads,
            dropout,
            tensor_parts: 1,
        };
        for model in [gpt, bert] {
            let [short, long] = [1024, 4096].map(|tokens| floats(&model, tokens));
            assert!(long < 4.1 * short, "{short}, {long}");
            // One matrix of all pairs of one head.
            assert!(long < 4096.0 * 4096.0, "{long}");
        }
    }

    #[test]
    fn what_belongs_to_no_part_takes_memory_for_the_own_tokens_only() {
        let model = ModelConfig::Gpt {
            layers: 8,
            width: 256,
            heads: 8,
            dropout: 0.1,
            tied: false,
            tensor_parts: 4,
        };
        let peak = |own: std::ops::Range<u32>, precision| {
            let step = StepShape {
                sample: &[256],
                classes: 64,
                samples: 4,
                shards: 1,
                is_by_layer: true,
                recomputation: &Recomputation::Off,
                precision,
            };
            let device = Arc::new(PlanningDevice::new());
            let shared: Arc<dyn Device> = device.clone();
            let mut chain = model.planned(&step, &shared).unwrap();
            chain.set_parts(&crate::PartPlace::planned(own, 4));
            let before = device.memory().taken;
            run_step(&mut chain, &step, &device).unwrap();
            (device.memory().taken - before) as f64
        };
        for precision in [Precision::F32, Precision::Bf16] {
            let whole = peak(0..4, precision);
            let shares = [0..2, 1..2].map(|own| peak(own, precision) / whole);
            // In use are a few whole values at a time, whatever the number of layers.
            assert!(
                shares[0] < 0.62 && shares[1] < 0.40,
                "{precision:?}: {shares:?}"
            );
        }
    }

    #[test]
    fn memory_grows_with_samples_and_saturates() {
        let model = ModelConfig::Mlp {
            hidden: vec![4096],
            tensor_parts: 1,
        };
        let floats = |samples| {
            let step = StepShape {
                sample: &[8192],
                classes: 10,
                samples,
                shards: 1,
                is_by_layer: true,
                recomputation: &Recomputation::Off,
                precision: Precision::F32,
            };
            model.step_floats(&step).unwrap()
        };
        assert!(floats(64) >= 64 * (8192 + 4096));
        assert_eq!(floats(4 * SAMPLES_MAX), 4 * floats(SAMPLES_MAX));
        assert_eq!(floats(usize::MAX), u64::MAX);
    }

    #[test]
    fn short_formats_take_at_most_six_tenths_of_the_memory_at_its_peak() {
        let cases: [(&str, &[usize], u32, usize); 7] = [
            (
                r#"{"kind": "gpt", "layers": 4, "width": 256, "heads": 8}"#,
                &[128],
                256,
                16,
            ),
            (
                r#"{"kind": "bert", "layers": 4, "width": 256, "heads": 8}"#,
                &[128],
                256,
                16,
            ),
            (
                r#"{"kind": "unet", "channels": 32, "levels": 4}"#,
                &[3, 128, 128],
                1,
                8,
            ),
            (
                r#"{"kind": "detector", "channels": 32, "levels": 4}"#,
                &[3, 128, 128],
                4,
                32,
            ),
            (r#"{"kind": "resnet18"}"#, &[3, 224, 224], 1000, 8),
            (r#"{"kind": "resnet50"}"#, &[3, 224, 224], 1000, 8),
            (r#"{"kind": "vgg16"}"#, &[3, 224, 224], 1000, 8),
        ];
        for (name, sample, classes, samples) in cases {
            let model: ModelConfig = serde_json::from_str(name).unwrap();
            let floats = |precision| {
                let step = StepShape {
                    sample,
                    classes,
                    samples,
                    shards: 1,
                    is_by_layer: true,
                    recomputation: &Recomputation::Off,
                    precision,
                };
                model.step_floats(&step).unwrap() as f64
            };
            let [plain, short] = [Precision::F32, Precision::Bf16].map(floats);
            assert!(
                short <= 0.6 * plain,
                "{name}: {short} of {plain} floats, {:.3}",
                short / plain
            );
        }
    }
}
