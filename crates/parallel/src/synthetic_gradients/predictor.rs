//! [`GradientPredictor`]: a small network that predicts the gradient of the output of a stage.
//!
//! Source: Jaderberg et al., "Decoupled neural interfaces using synthetic gradients", ICML 2017, sections 2.1 and 3.1: the targets are
//! inputs too (cDNI), and the last layer begins with zeros, so that the first predictions are zeros.

use std::sync::Arc;

use ronde_core::seed::SeedTree;
use ronde_core::step_layout::StepLayout;
use ronde_core::{Group, Shard, Step};
use ronde_engine::{
    Activation, Chain, EngineError, GraphBuilder, Initial, OptimizerConfig, SquaredError,
};

use super::{BorderTally, PredictorTargets, SyntheticGradientsConfig};
use crate::error::ParallelError;
use crate::step_method::{MicroBatch, StepMethod};
use crate::synchronous::replica::ReplicaUpdate;
use crate::synchronous::{SynchronousConfig, SynchronousStrategy};

/// The most numbers of the targets that a predictor reads for one row.
const TARGET_WIDTH_MAX: usize = 4096;

/// The inputs and outputs of a predictor for one sample.
///
/// The output of a stage is one row of features, or one row for each token: a predictor maps each row on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PredictorShape {
    /// The rows of a sample.
    rows: usize,
    /// The features of a row.
    features: usize,
    /// The numbers for the targets of a row.
    target_width: usize,
    /// Whether each row has its own target, instead of those of the sample.
    has_row_targets: bool,
    targets: PredictorTargets,
}

impl PredictorShape {
    /// Returns the shape for the output of a stage, of one sample.
    pub(super) fn of(output: &[usize], targets: PredictorTargets) -> Self {
        let (rows, features) = match *output {
            [tokens, width] if tokens > 1 => (tokens, width),
            _ => (1, output.iter().product()),
        };
        let (target_width, has_row_targets) = match targets {
            PredictorTargets::Unused => (0, false),
            PredictorTargets::Classes {
                classes,
                per_sample,
            } => match per_sample {
                1 => (classes, false),
                many if many == rows => (classes, true),
                _ => (0, false),
            },
            PredictorTargets::Values { per_sample } => (per_sample, false),
        };
        Self {
            rows,
            features,
            target_width: Some(target_width)
                .filter(|width| *width <= TARGET_WIDTH_MAX)
                .unwrap_or(0),
            has_row_targets,
            targets,
        }
    }

    fn width(&self) -> usize {
        self.features + self.target_width
    }

    /// Returns the number of weights of a predictor with a hidden layer of `hidden` units, or without one.
    pub(super) fn parameters(&self, hidden: usize) -> u64 {
        let (inputs, outputs, hidden) = (self.width() as u64, self.features as u64, hidden as u64);
        match hidden {
            0 => (inputs + 1) * outputs,
            _ => (inputs + 1) * hidden + (hidden + 1) * outputs,
        }
    }

    /// Returns the rows of the inputs of a predictor: values of the output of a stage, each with the targets.
    fn inputs(&self, values: &[f32], labels: &[u32], samples: usize) -> Vec<f32> {
        let mut inputs = vec![0.0; samples * self.rows * self.width()];
        let per_sample = labels.len().checked_div(samples).unwrap_or(0);
        let rows = inputs.chunks_exact_mut(self.width());
        for (index, (row, values)) in rows.zip(values.chunks_exact(self.features)).enumerate() {
            let (features, targets) = row.split_at_mut(self.features);
            write_normalised(values, features);
            if targets.is_empty() {
                continue;
            }
            let (sample, token) = (index / self.rows, index % self.rows);
            let of_sample = &labels[sample * per_sample..(sample + 1) * per_sample];
            let label = of_sample.get(if self.has_row_targets { token } else { 0 });
            match self.targets {
                PredictorTargets::Unused => {}
                PredictorTargets::Classes { .. } => {
                    let one = label.and_then(|label| targets.get_mut(*label as usize));
                    if let Some(one) = one {
                        *one = 1.0;
                    }
                }
                PredictorTargets::Values { .. } => {
                    for (to, bits) in targets.iter_mut().zip(of_sample) {
                        *to = f32::from_bits(*bits);
                    }
                }
            }
        }
        inputs
    }
}

/// Writes values divided by their root mean square, so that predictions do not grow with the outputs of a stage. Zeros stay zeros.
fn write_normalised(values: &[f32], to: &mut [f32]) {
    let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    let mean = squares / values.len().max(1) as f64;
    let factor = if mean > 0.0 { mean.sqrt().recip() } else { 0.0 };
    for (to, value) in to.iter_mut().zip(values) {
        *to = (f64::from(*value) * factor) as f32;
    }
}

/// The prediction for one shard, until the gradient arrives.
#[derive(Debug)]
pub(super) struct PredictedShard {
    samples: usize,
    inputs: Vec<f32>,
    predicted: Vec<f32>,
}

/// The predictor after a stage.
pub(super) struct GradientPredictor {
    shape: PredictorShape,
    model: Box<SynchronousStrategy>,
    learning_rate: f64,
}

impl GradientPredictor {
    /// Creates the predictor after a stage whose output has the shape `output`. `layout` has the shards of a batch on one rank.
    ///
    /// # Errors
    /// The output is too large.
    pub(super) fn new(
        stage: usize,
        output: &[usize],
        config: &SyntheticGradientsConfig,
        seeds: SeedTree,
        (group, shards, samples_max): (Arc<dyn Group>, &StepLayout, usize),
    ) -> Result<Self, EngineError> {
        let shape = PredictorShape::of(output, config.targets);
        let mut layer = GraphBuilder::new(&format!("predictor{}", stage + 1), &[shape.width()]);
        let mut x = layer.input();
        if config.hidden > 0 {
            x = layer.linear("hidden", x, config.hidden, true);
            x = layer.relu(x);
        }
        layer.set_initial(Initial::Constant(0.0));
        layer.linear("output", x, shape.features, true);
        let chain = Chain::new(vec![layer.build(&seeds)?])?;
        let adam = OptimizerConfig::Adam {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
        };
        let mut settings = SynchronousConfig::new(adam, Arc::new(SquaredError));
        settings.sample_shape = vec![shape.width()];
        settings.shard_samples_max = samples_max * shape.rows;
        let layout = StepLayout::data_parallel(shards.shards().clone(), 1);
        let model = SynchronousStrategy::new(chain, group, layout, seeds, settings);
        Ok(Self {
            shape,
            model: Box::new(model),
            learning_rate: config.predictor_learning_rate,
        })
    }

    /// Predicts the gradient of the output of a stage for one shard.
    ///
    /// # Errors
    /// The engine failed.
    pub(super) fn predict(
        &mut self,
        output: &Activation,
        labels: &[u32],
    ) -> Result<(PredictedShard, Activation), ParallelError> {
        let (shape, samples) = (output.shape().to_vec(), output.samples());
        let values = output.clone().on_host();
        let inputs = self.shape.inputs(values.as_slice(), labels, samples);
        let mut batch = MicroBatch {
            shard: Shard(0),
            shape: vec![samples * self.shape.rows, self.shape.width()],
            features: inputs.clone(),
            labels: Vec::new(),
        };
        let outputs = self.model.predict(Some(&mut batch))?;
        let predicted = outputs.map_or_else(Vec::new, Activation::into_host);
        let gradient = Activation::from_host(&shape, predicted.clone());
        let shard = PredictedShard {
            samples,
            inputs,
            predicted,
        };
        Ok((shard, gradient))
    }

    /// Trains the predictor with the gradients that it predicted, one for each shard; `None` for one without samples.
    /// `number` is the number of earlier updates.
    ///
    /// # Errors
    /// The engine failed, or [`ParallelError::NotFinite`].
    pub(super) fn train(
        &mut self,
        (number, random): (u64, Step),
        shards: Vec<(Option<PredictedShard>, Option<Activation>)>,
        tally: &mut BorderTally,
    ) -> Result<(), ParallelError> {
        let mut batches = Vec::with_capacity(shards.len());
        for (shard, (predicted, gradient)) in (0..).zip(shards) {
            let mut batch = MicroBatch {
                shard: Shard(shard),
                shape: vec![0, self.shape.width()],
                features: Vec::new(),
                labels: Vec::new(),
            };
            if let (Some(predicted), Some(gradient)) = (predicted, gradient) {
                let gradient = gradient.on_host();
                let values = gradient.as_slice();
                if values.len() != predicted.predicted.len() {
                    let problem = "a gradient does not belong to the batch of a predictor";
                    return Err(ParallelError::OutOfOrder {
                        problem: problem.to_owned(),
                    });
                }
                tally.add(&predicted.predicted, values);
                batch.shape[0] = predicted.samples * self.shape.rows;
                batch.features = predicted.inputs;
                batch.labels = values.iter().map(|value| value.to_bits()).collect();
            }
            batches.push(batch);
        }
        let update = ReplicaUpdate {
            random,
            number,
            learning_rate: self.learning_rate,
        };
        self.model.update_replica(update, batches).map(drop)
    }

    /// Returns the number of elements of each vector of the state.
    pub(super) fn len(&self) -> usize {
        self.model.weights().len()
    }

    /// Returns the weights, then each state of the optimizer.
    pub(super) fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        let weights = std::iter::once(self.model.weights().values());
        weights.chain(self.model.optimizer_states().iter().map(Vec::as_slice))
    }

    /// Replaces the same vectors.
    pub(super) fn restore(&mut self, weights: &[f32], states: &[Vec<f32>]) {
        let states: Vec<&[f32]> = states.iter().map(Vec::as_slice).collect();
        self.model.restore(weights, Some(&states));
    }

    /// Returns the network.
    pub(super) fn model(&mut self) -> &mut SynchronousStrategy {
        &mut self.model
    }

    /// Drops the step in flight.
    pub(super) fn abort(&mut self) {
        self.model.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_features_and_their_targets() {
        let classes = |per_sample| PredictorTargets::Classes {
            classes: 3,
            per_sample,
        };
        let of_sample = PredictorShape::of(&[2], classes(1));
        let inputs = of_sample.inputs(&[0.5, -0.5, 0.0, 0.0], &[2, 0], 2);
        assert_eq!(inputs, [1.0, -1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        let of_tokens = PredictorShape::of(&[2, 1], classes(2));
        let inputs = of_tokens.inputs(&[7.0, 8.0], &[1, 2], 1);
        assert_eq!(inputs, [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
        let image = PredictorShape::of(&[1, 1, 2], PredictorTargets::Values { per_sample: 1 });
        let inputs = image.inputs(&[-7.0, 7.0], &[2.5_f32.to_bits()], 1);
        assert_eq!(inputs, [-1.0, 1.0, 2.5]);
        let without = PredictorShape::of(&[1], PredictorTargets::Unused);
        assert_eq!(without.inputs(&[7.0], &[1], 1), [1.0]);
        assert!(without.inputs(&[], &[], 0).is_empty());
    }

    #[test]
    fn targets_that_do_not_belong_to_rows_or_are_too_wide_are_left_out() {
        let classes = |classes, per_sample| PredictorTargets::Classes {
            classes,
            per_sample,
        };
        for (output, targets, width) in [
            (&[4][..], classes(10, 1), 14),
            (&[4], classes(10, 4), 4),
            (&[4, 8], classes(10, 4), 18),
            (&[4, 8], classes(10, 1), 18),
            (&[4, 8], classes(50_000, 4), 8),
            (&[4], PredictorTargets::Values { per_sample: 5000 }, 4),
        ] {
            assert_eq!(PredictorShape::of(output, targets).width(), width);
        }
    }

    #[test]
    fn the_number_of_weights_is_that_of_the_layers() {
        let shape = PredictorShape::of(&[4], PredictorTargets::Unused);
        assert_eq!(shape.parameters(0), 5 * 4);
        assert_eq!(shape.parameters(3), 5 * 3 + 4 * 4);
    }
}
