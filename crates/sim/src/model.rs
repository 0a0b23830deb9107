//! A model small enough to train thousands of times: real numbers, real sums, real optimizer state.

use ronde_core::batch::BatchPlan;
use ronde_core::exact::TreeSum;
use ronde_core::shards::even_range;
use ronde_core::weight_hash;
use ronde_core::{Buffer, Step};

/// Parameters of the model.
pub const PARAMETERS: usize = 6;
/// Samples of the data set.
pub const SAMPLES: u64 = 40;
/// Samples of a step: the last one of an epoch is smaller.
pub const GLOBAL_BATCH: u64 = 9;

/// What a run is about; equal on all workers.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Which samples make up which step.
    pub batches: BatchPlan,
    /// Logical shards.
    pub shards: u32,
    /// Steps in all.
    pub end: Step,
}

/// Weights, then momentum.
#[derive(Debug, Clone, PartialEq)]
pub struct State(pub Vec<f32>);

impl State {
    /// The initial weights.
    #[must_use]
    pub fn initial() -> Self {
        let weights = (0..PARAMETERS).map(|i| 0.3 - 0.17 * i as f32);
        Self(weights.chain([0.0; PARAMETERS]).collect())
    }

    /// Hash of all bits.
    #[must_use]
    pub fn hash(&self) -> u64 {
        weight_hash::hash(&self.0)
    }

    /// The gradient of one shard, summed over its samples.
    #[must_use]
    pub fn gradient(&self, ids: &[u64]) -> Vec<f32> {
        let mut gradient = vec![0.0_f32; PARAMETERS];
        for &id in ids {
            for (j, sum) in gradient.iter_mut().enumerate() {
                let feature = ((id * 7 + j as u64 * 13) % 17) as f32 * 0.113 - 0.9;
                *sum += feature * (self.0[j] * feature - 0.37) + 0.013 * self.0[j];
            }
        }
        gradient
    }

    /// One optimizer update with the mean gradient.
    pub fn apply(&mut self, gradient: &[f32], samples: u64) {
        for (j, sum) in gradient.iter().enumerate() {
            let momentum = 0.9 * self.0[PARAMETERS + j] + sum / samples as f32;
            self.0[PARAMETERS + j] = momentum;
            self.0[j] -= 0.05 * momentum;
        }
    }
}

impl Run {
    /// The samples of a shard in a step.
    #[must_use]
    pub fn shard(&self, step: Step, shard: u32) -> Vec<u64> {
        let batch = self.batches.batch(step);
        let order = self.batches.order(batch.epoch);
        let part = even_range(batch.samples(), self.shards.into(), shard.into());
        part.map(|within| order.sample(batch.positions.start + within))
            .collect()
    }

    /// The samples of a step.
    #[must_use]
    pub fn samples(&self, step: Step) -> Vec<u64> {
        (0..self.shards)
            .flat_map(|shard| self.shard(step, shard))
            .collect()
    }

    /// The hash of the state before each step and after the last, of a run that nothing disturbs.
    #[must_use]
    pub fn undisturbed(&self) -> Vec<u64> {
        let mut state = State::initial();
        let mut hashes = vec![state.hash()];
        for step in (0..self.end.0).map(Step) {
            let mut sum = TreeSum::new(self.shards);
            for shard in 0..self.shards {
                let gradient = state.gradient(&self.shard(step, shard));
                sum.add_shard(shard, Buffer::copy_of(&gradient));
            }
            let gradient = sum.take().remove(0).1;
            state.apply(gradient.as_slice(), self.batches.batch(step).samples());
            hashes.push(state.hash());
        }
        hashes
    }
}
