//! A model that is small enough to train thousands of times, with real sums and real optimizer state.

use ronde_core::batch::BatchPlan;
use ronde_core::exact::TreeSum;
use ronde_core::shards::even_range;
use ronde_core::weight_hash;
use ronde_core::{Buffer, Step};

/// The number of parameters of the model.
pub const PARAMETERS: usize = 6;
/// The number of samples of the data set.
pub const SAMPLES: u64 = 40;
/// The number of samples of a step; the last step of an epoch is smaller.
pub const GLOBAL_BATCH: u64 = 9;

/// The settings of a run, equal on all workers.
#[derive(Debug, Clone, Copy)]
pub struct SimulatedRun {
    /// The samples of each step.
    pub batches: BatchPlan,
    /// The number of logical shards.
    pub shards: u32,
    /// The number of steps.
    pub end: Step,
}

/// The state: weights, then momentum.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedState(pub Vec<f32>);

impl SimulatedState {
    /// Returns the initial state.
    #[must_use]
    pub fn initial() -> Self {
        let weights = (0..PARAMETERS).map(|i| 0.3 - 0.17 * i as f32);
        Self(weights.chain([0.0; PARAMETERS]).collect())
    }

    /// Returns the hash of all bits.
    #[must_use]
    pub fn hash(&self) -> u64 {
        weight_hash::hash(&self.0)
    }

    /// Returns the gradient of one shard, summed over its samples.
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

    /// Makes one optimizer update with the mean gradient.
    pub fn apply(&mut self, gradient: &[f32], samples: u64) {
        for (j, sum) in gradient.iter().enumerate() {
            let momentum = 0.9 * self.0[PARAMETERS + j] + sum / samples as f32;
            self.0[PARAMETERS + j] = momentum;
            self.0[j] -= 0.05 * momentum;
        }
    }
}

impl SimulatedRun {
    /// Returns the samples of a shard in a step.
    #[must_use]
    pub fn shard(&self, step: Step, shard: u32) -> Vec<u64> {
        let batch = self.batches.batch(step);
        let order = self.batches.order(batch.epoch);
        let part = even_range(batch.samples(), self.shards.into(), shard.into());
        part.map(|within| order.sample(batch.positions.start + within))
            .collect()
    }

    /// Returns the samples of a step.
    #[must_use]
    pub fn samples(&self, step: Step) -> Vec<u64> {
        (0..self.shards)
            .flat_map(|shard| self.shard(step, shard))
            .collect()
    }

    /// Returns the hashes of the state before each step and after the last one, of a run without faults.
    #[must_use]
    pub fn undisturbed(&self) -> Vec<u64> {
        let mut state = SimulatedState::initial();
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
