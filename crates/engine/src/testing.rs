//! Test support: a model with its arenas, generated samples, and the digits.

use std::io::Read;

use ronde_core::layout::{Arena, Role, TensorEntry};
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::{Shard, Step};
use serde::Deserialize;

use crate::activation::Activation;
use crate::chain::Chain;
use crate::context::{ForwardContext, Mode};
use crate::layer::{Layer, LayerExt};
use crate::loss::{CrossEntropy, Loss, LossOutput};
use crate::metric::{Metric, TopAccuracy};
use crate::models::ModelConfig;
use crate::optimizer::OptimizerConfig;
use crate::predictions::Predictions;

/// Returns numbers in `[-1, 1)`, the same for the same seed.
pub(crate) fn uniform(count: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    let stream = SeedTree::new(seed).stream(Purpose::Synthetic, &[]);
    stream.fill_uniform(&mut values);
    values.into_iter().map(|x| 2.0 * x - 1.0).collect()
}

/// Returns the numbers in `[-1, 1)` that the scripts in `tests/pytorch` generate as well: a hash of
/// the index.
pub(crate) fn hashed(seed: u64, count: usize) -> Vec<f32> {
    let one = |index: u64| {
        let mut x = (index.wrapping_mul(0x9E37_79B1).wrapping_add(seed)) as u32;
        x ^= x >> 16;
        x = x.wrapping_mul(0x85EB_CA6B);
        x ^= x >> 13;
        x = x.wrapping_mul(0xC2B2_AE35);
        x ^= x >> 16;
        (f64::from(x >> 8) / f64::from(1 << 23) - 1.0) as f32
    };
    (0..count as u64).map(one).collect()
}

/// Returns the seed of a name, FNV-1a, as the scripts in `tests/pytorch` do.
pub(crate) fn name_seed(name: &str) -> u64 {
    let step = |seed: u32, byte: u8| (seed ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    name.bytes().fold(0x811C_9DC5, step).into()
}

/// Returns the weights that the scripts generate.
fn named_weights(name: &str, shape: &[usize]) -> Vec<f32> {
    let mut values = hashed(name_seed(name), shape.iter().product());
    if shape.len() >= 2 && !name.starts_with("embedding.") {
        let fan_in: usize = match shape {
            [inputs, _] => *inputs,
            _ => shape[1..].iter().product(),
        };
        let scale = (3.0 / fan_in as f64).sqrt() as f32;
        values.iter_mut().for_each(|value| *value *= scale);
    } else if name.ends_with("gamma") {
        values.iter_mut().for_each(|x| *x = 1.0 + 0.125 * *x);
    } else if shape.len() == 1 {
        values.iter_mut().for_each(|x| *x *= 0.125);
    }
    values
}

/// Loads the scripts' weights into a model.
pub(crate) fn load_named_weights(chain: &mut Chain) {
    let tensors = chain.layout().tensors.clone();
    let (mut values, arena) = state(chain);
    for (index, tensor) in tensors.iter().enumerate() {
        if tensor.role == Role::Parameter {
            let weights = named_weights(&tensor.name, &tensor.shape);
            values[arena.range(index)].copy_from_slice(&weights);
        }
    }
    chain.load(&values, arena.ranges());
}

/// The products of a tensor with two rows of fixed numbers, and its norm, as in `tests/pytorch/operations.json`.
#[derive(Debug, Deserialize)]
pub(crate) struct TensorChecksums([f64; 3]);

impl TensorChecksums {
    /// Returns the greatest deviation of the figures of a tensor, as a share of its norm.
    pub(crate) fn error(&self, values: &[f32]) -> f64 {
        let product = |row: &str| {
            let fixed = hashed(name_seed(row), values.len());
            let products = values.iter().zip(&fixed);
            products
                .map(|(x, f)| f64::from(*x) * f64::from(*f))
                .sum::<f64>()
        };
        let square: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
        let found = [product("first"), product("second"), square.sqrt()];
        let errors = found.iter().zip(&self.0).map(|(a, b)| (a - b).abs());
        // NaN is the greatest in this order.
        let greatest = errors.max_by(f64::total_cmp).unwrap_or(f64::NAN);
        greatest / (self.0[2] + 1e-6)
    }
}

pub(crate) fn samples(shape: &[usize], seed: u64) -> Activation {
    Activation::from_host(shape, uniform(shape.iter().product(), seed))
}

pub(crate) fn training(step: u64, shard: u32) -> ForwardContext {
    ForwardContext {
        seeds: SeedTree::new(42),
        step: Step(step),
        shard: Shard(shard),
        layer: 0,
        mode: Mode::Train,
    }
}

pub(crate) fn arena<S: Layer + ?Sized>(layer: &S) -> Arena {
    let tensors = &layer.layout().tensors;
    Arena::new(tensors.iter().map(TensorEntry::elements))
}

/// Returns the state of a layer as a flat arena.
pub(crate) fn state<S: Layer + ?Sized>(layer: &S) -> (Vec<f32>, Arena) {
    let arena = arena(layer);
    let mut state = vec![0.0; arena.len()];
    layer.save_state(&mut state, arena.ranges());
    (state, arena)
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Returns the cross-entropy of samples of one label each.
pub(crate) fn cross_entropy(logits: &[f32], classes: usize, labels: &[u32]) -> LossOutput {
    let predictions = Predictions::new(logits, labels, labels.len()).unwrap();
    CrossEntropy { classes }
        .loss_and_gradient(&predictions)
        .unwrap()
}

/// Runs forward, cross-entropy and backward of one shard of a model; returns the arena and the
/// loss.
pub(crate) fn gradients<S: Layer + ?Sized>(
    layer: &mut S,
    input: Activation,
    labels: &[u32],
    context: &ForwardContext,
) -> (Vec<f32>, LossOutput) {
    let logits = layer.forward_shard(input, context).unwrap();
    let shape = logits.shape().to_vec();
    let classes = *shape.last().unwrap();
    let loss = cross_entropy(logits.as_slice(), classes, labels);
    let arena = arena(layer);
    let mut gradients = vec![f32::NAN; arena.len()];
    let gradient = Activation::from_host(&shape, loss.gradient.clone());
    layer
        .backward_shard(
            context.shard,
            gradient,
            &mut gradients,
            arena.ranges(),
            false,
        )
        .unwrap();
    (gradients, loss)
}

/// Returns the 1,797 digits: pixels in `0..=1`, 64 per sample, and labels.
pub(crate) fn digits() -> (Vec<f32>, Vec<u32>) {
    let packed = include_bytes!("../../data/assets/digits.csv.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_string(&mut text)
        .unwrap();
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let row: Vec<f32> = line.split(',').map(|x| x.parse().unwrap()).collect();
        pixels.extend(row[..64].iter().map(|x| x / 16.0));
        labels.push(row[64] as u32);
    }
    (pixels, labels)
}

/// A run over the first 1,437 digits with 8 shards per step; the last 360 are the test set.
pub(crate) struct DigitsRun {
    pub(crate) optimizer: OptimizerConfig,
    pub(crate) schedule: crate::ScheduleConfig,
    pub(crate) learning_rate: f64,
    pub(crate) batch: usize,
    pub(crate) epochs: u64,
    pub(crate) seed: u64,
}

const TRAIN: usize = 1437;
const SHARDS: u64 = 8;

impl DigitsRun {
    /// Trains, and returns the accuracy on the test digits after each epoch.
    pub(crate) fn accuracies(&self, model: &ModelConfig) -> Vec<f64> {
        let (pixels, labels) = digits();
        let seeds = SeedTree::new(self.seed);
        let mut chain = model.build(&[1, 8, 8], 10, &seeds).unwrap();
        let (mut state, arena) = state(&chain);
        let mut optimizer = vec![vec![0.0; arena.len()]; self.optimizer.state_names().len()];
        let plan = ronde_core::batch::BatchPlan::new(
            TRAIN as u64,
            self.batch as u64,
            false,
            true,
            self.seed,
        )
        .unwrap();
        let steps = plan.steps_per_epoch() * self.epochs;
        let mut accuracies = Vec::new();
        for step in 0..steps {
            let batch = plan.batch(Step(step));
            let order = plan.order(batch.epoch);
            let chosen: Vec<usize> = batch
                .positions
                .clone()
                .map(|p| order.sample(p) as usize)
                .collect();
            chain.load(&state, arena.ranges());
            let mut sum = vec![0.0; arena.len()];
            for shard in 0..SHARDS {
                let part = ronde_core::shards::even_range(chosen.len() as u64, SHARDS, shard);
                let part = &chosen[part.start as usize..part.end as usize];
                let context = ForwardContext {
                    seeds,
                    ..training(step, shard as u32)
                };
                let (gradient, _) = gradients(
                    &mut chain,
                    pick(&pixels, part),
                    &part.iter().map(|&i| labels[i]).collect::<Vec<_>>(),
                    &context,
                );
                add_weighted(&chain, &arena, &mut sum, &gradient, part.len());
            }
            let rate = self.schedule.rate(self.learning_rate, step, steps);
            self.commit(
                &chain,
                &arena,
                step,
                rate,
                &mut state,
                &mut sum,
                &mut optimizer,
                chosen.len(),
            );
            if batch.ends_epoch {
                chain.load(&state, arena.ranges());
                accuracies.push(accuracy(&mut chain, &pixels, &labels));
            }
        }
        accuracies
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one update, for tests only"
    )]
    fn commit(
        &self,
        chain: &Chain,
        arena: &Arena,
        step: u64,
        rate: f64,
        state: &mut [f32],
        sum: &mut [f32],
        optimizer: &mut [Vec<f32>],
        samples: usize,
    ) {
        for value in sum.iter_mut() {
            *value /= samples as f32;
        }
        for (index, tensor) in chain.layout().tensors.iter().enumerate() {
            let range = arena.range(index);
            if tensor.role == Role::Buffer {
                state[range.clone()].copy_from_slice(&sum[range]);
                continue;
            }
            let mut states: Vec<&mut [f32]> = optimizer
                .iter_mut()
                .map(|state| &mut state[range.clone()])
                .collect();
            self.optimizer.step_tensor(
                step + 1,
                rate,
                &mut state[range.clone()],
                &sum[range],
                &mut states,
            );
        }
    }
}

fn pick(pixels: &[f32], samples: &[usize]) -> Activation {
    let values = samples.iter().flat_map(|i| &pixels[64 * i..64 * i + 64]);
    Activation::from_host(&[samples.len(), 1, 8, 8], values.copied().collect())
}

/// Adds the gradients, which are sums already; weights buffers by the number of samples of the
/// shard.
fn add_weighted(chain: &Chain, arena: &Arena, sum: &mut [f32], shard: &[f32], samples: usize) {
    for (index, tensor) in chain.layout().tensors.iter().enumerate() {
        let weight = match tensor.role {
            Role::Buffer => samples as f32,
            _ => 1.0,
        };
        for at in arena.range(index) {
            sum[at] += weight * shard[at];
        }
    }
}

fn accuracy(chain: &mut Chain, pixels: &[f32], labels: &[u32]) -> f64 {
    let test: Vec<usize> = (TRAIN..labels.len()).collect();
    let logits = chain.evaluate(pick(pixels, &test)).unwrap();
    let predictions = Predictions::new(logits.as_slice(), &labels[TRAIN..], test.len()).unwrap();
    let accuracy = TopAccuracy::new(10, 1);
    let mut sums = [0.0; 2];
    accuracy.add(&predictions, 0.0, &mut sums).unwrap();
    accuracy.value(&sums)
}
