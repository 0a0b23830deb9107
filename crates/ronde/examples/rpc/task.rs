//! A small classification task for the examples of remote calls: model, samples, loss, and training on one worker.

use ronde::core::exact::TreeSum;
use ronde::core::seed::{Purpose, SeedTree};
use ronde::core::{Buffer, DType, Shard, Step};
use ronde::engine::{
    Activation, Chain, CrossEntropy, EngineError, ForwardContext, LayerExt, Loss, Mode,
    ModelConfig, OptimizerConfig, Predictions,
};

pub(crate) const STEPS: u64 = 60;
pub(crate) const SHARDS: u32 = 6;
pub(crate) const SAMPLES: u64 = SHARDS as u64 * SHARD_SAMPLES as u64;
pub(crate) const RATE: f64 = 0.01;
const SHARD_SAMPLES: usize = 16;
const FEATURES: usize = 16;
const CLASSES: usize = 4;

pub(crate) fn seeds() -> SeedTree {
    SeedTree::new(2026)
}

pub(crate) fn model() -> Result<Chain, EngineError> {
    let config = ModelConfig::Mlp {
        hidden: vec![64, 32],
        tensor_parts: 1,
    };
    config.build(&[FEATURES], CLASSES as u32, &seeds())
}

pub(crate) fn optimizer() -> OptimizerConfig {
    OptimizerConfig::Adam {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
    }
}

/// Returns the features and classes of a shard: the class is the quarter with the largest sum.
pub(crate) fn samples(step: u64, shard: u32) -> (Activation, Vec<u32>) {
    let mut features = vec![0.0; SHARD_SAMPLES * FEATURES];
    let stream = seeds().stream(Purpose::Synthetic, &[step, shard.into()]);
    stream.fill_uniform(&mut features);
    let class = |sample: &[f32]| {
        let sums = sample
            .chunks(FEATURES / CLASSES)
            .map(|quarter| quarter.iter().sum::<f32>());
        let sums: Vec<f32> = sums.collect();
        (0..CLASSES)
            .max_by(|a, b| sums[*a].total_cmp(&sums[*b]))
            .unwrap_or(0) as u32
    };
    let classes = features.chunks(FEATURES).map(class).collect();
    (
        Activation::from_host(&[SHARD_SAMPLES, FEATURES], features),
        classes,
    )
}

/// Returns the sum of the losses of a shard's outputs and its gradient.
pub(crate) fn loss(output: Activation, classes: &[u32]) -> Result<(f64, Activation), EngineError> {
    let logits = output.into_host();
    let predictions = Predictions::new(&logits, classes, classes.len())?;
    let loss = CrossEntropy { classes: CLASSES }.loss_and_gradient(&predictions)?;
    let gradient = Activation::from_host(&[SHARD_SAMPLES, CLASSES], loss.gradient);
    Ok((loss.loss_sum, gradient))
}

/// The model with its parameters as one vector.
pub(crate) struct FlatModel {
    chain: Chain,
    ranges: Vec<std::ops::Range<usize>>,
    pub(crate) state: Vec<f32>,
}

impl FlatModel {
    pub(crate) fn new() -> Result<Self, EngineError> {
        let chain = model()?;
        let mut end = 0;
        let mut range = |elements: usize| {
            end += elements;
            end - elements..end
        };
        let tensors = &chain.layout().tensors;
        let ranges: Vec<_> = tensors
            .iter()
            .map(|tensor| range(tensor.elements()))
            .collect();
        let mut state = vec![0.0; end];
        chain.save_state(&mut state, &ranges);
        Ok(Self {
            chain,
            ranges,
            state,
        })
    }

    /// Replaces the parameters.
    pub(crate) fn load(&mut self, state: &[f32]) {
        self.state.copy_from_slice(state);
        self.chain.load(&self.state, &self.ranges);
    }

    /// Returns the loss and the gradient of a shard, as sums over its samples.
    pub(crate) fn gradient(&mut self, step: u64, shard: u32) -> Result<(f64, Buffer), EngineError> {
        let (features, classes) = samples(step, shard);
        let context = ForwardContext {
            seeds: seeds(),
            step: Step(step),
            shard: Shard(shard),
            layer: 0,
            mode: Mode::Train,
        };
        let output = self.chain.forward_shard(features, &context)?;
        let (loss, gradient) = loss(output, &classes)?;
        let mut buffer = Buffer::host(DType::F32, self.state.len());
        let gradients = buffer.as_mut_slice();
        self.chain
            .backward_shard(Shard(shard), gradient, gradients, &self.ranges, false)?;
        Ok((loss, buffer))
    }
}

/// Parameters with the state of their optimizer, or a slice of both.
pub(crate) struct Update {
    pub(crate) state: Vec<f32>,
    moments: Vec<Vec<f32>>,
    updates: u64,
}

impl Update {
    pub(crate) fn new(state: Vec<f32>) -> Self {
        let moments = optimizer().state_names().iter();
        let moments = moments.map(|_| vec![0.0; state.len()]).collect();
        Self {
            state,
            moments,
            updates: 0,
        }
    }

    /// Applies the sum of the gradients of all shards.
    pub(crate) fn apply(&mut self, sum: &mut TreeSum) {
        let sum = sum.take().remove(0).1;
        let mean: Vec<f32> = sum
            .as_slice::<f32>()
            .iter()
            .map(|v| v / SAMPLES as f32)
            .collect();
        self.updates += 1;
        let mut moments: Vec<&mut [f32]> = self.moments.iter_mut().map(Vec::as_mut_slice).collect();
        optimizer().step(
            self.updates,
            RATE,
            1.0,
            &mut self.state,
            &mean,
            &mut moments,
        );
    }
}

/// Trains on one worker; returns the parameters.
pub(crate) fn train_alone() -> Result<Vec<f32>, EngineError> {
    let mut model = FlatModel::new()?;
    let mut update = Update::new(model.state.clone());
    for step in 0..STEPS {
        let mut sum = TreeSum::new(SHARDS);
        let mut loss = 0.0;
        for shard in 0..SHARDS {
            let (shard_loss, gradient) = model.gradient(step, shard)?;
            loss += shard_loss;
            sum.add_shard(shard, gradient);
        }
        update.apply(&mut sum);
        model.load(&update.state);
        report(step, loss);
    }
    Ok(update.state)
}

/// Prints the mean loss of a few steps.
#[expect(clippy::print_stdout, reason = "an example prints its result")]
pub(crate) fn report(step: u64, loss: f64) {
    if step == 0 || step + 1 == STEPS {
        println!("step {}: loss {:.4}", step + 1, loss / SAMPLES as f64);
    }
}
