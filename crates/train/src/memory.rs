//! The memory model: what one worker needs, before anything is allocated.

use ronde_core::shards::ShardPlan;
use ronde_engine::OptimizerConfig;

/// Bytes that one worker needs, by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Weights: the flat state and the engine's copy.
    pub parameters: u64,
    /// Gradients: subtrees of the sum over this worker's shards, one being filled or all joined.
    pub gradients: u64,
    /// State of the optimizer.
    pub optimizer: u64,
    /// What forward keeps for backward, for the largest shard; of all shards where they run together.
    pub activations: u64,
    /// The process itself: code, engine, prefetched batches.
    pub process: u64,
    /// Samples of files that wait, as they are stored and decoded.
    pub samples: u64,
    /// Samples of the largest shard.
    pub shard_samples: u64,
}

/// What a worker process takes with a model of no size, measured.
const PROCESS_BYTES: u64 = 48 << 20;
const BYTES: u64 = 4;

impl MemoryEstimate {
    /// The estimate for data parallelism. `parameters` are trainable elements,
    /// `activation_floats` what forward keeps of one sample, `batch_samples` the samples of the
    /// largest step; `runs_together` that a worker's shards are between forward and backward at the same
    /// time. What no `u64` can hold saturates.
    #[must_use]
    pub fn data_parallel(
        parameters: u64,
        activation_floats: u64,
        optimizer: &OptimizerConfig,
        batch_samples: u64,
        shards: &ShardPlan,
        runs_together: bool,
    ) -> Self {
        let together = if runs_together {
            u64::from(shards.shards().div_ceil(shards.computing()))
        } else {
            1
        };
        let buffers = shards.exact_sum().buffers_max().max(together);
        let samples = batch_samples.div_ceil(u64::from(shards.shards()));
        let copies = |count: u64| parameters.saturating_mul(BYTES).saturating_mul(count);
        Self {
            parameters: copies(2),
            gradients: copies(buffers),
            optimizer: copies(optimizer.state_names().len() as u64),
            activations: activation_floats
                .saturating_mul(samples)
                .saturating_mul(together)
                .saturating_mul(BYTES),
            process: PROCESS_BYTES,
            samples: 0,
            shard_samples: samples,
        }
    }

    /// The same with a loader that holds `memory_bytes` of a set of files, and a quarter more for what is decoded; less
    /// of a set of only `stored_bytes`.
    #[must_use]
    pub fn with_loader(mut self, memory_bytes: u64, stored_bytes: u64) -> Self {
        let held = memory_bytes.min(stored_bytes);
        self.samples = held.saturating_add(held / 4);
        self
    }

    /// All bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        [
            self.gradients,
            self.optimizer,
            self.activations,
            self.process,
            self.samples,
        ]
        .into_iter()
        .fold(self.parameters, u64::saturating_add)
    }

    /// What would make it fit.
    #[must_use]
    pub fn hint(&self, available_bytes: u64, local_workers: u32) -> String {
        if local_workers > 1 && self.total() <= available_bytes {
            let fitting = available_bytes / self.total().max(1);
            return format!("{fitting} worker(s) fit on this host: --workers {fitting}");
        }
        let without_activations = self.total() - self.activations;
        if without_activations < available_bytes && self.activations > 0 {
            let share = (available_bytes - without_activations) as f64 / self.activations as f64;
            let samples = (self.shard_samples as f64 * share) as u64;
            if samples > 0 {
                return format!(
                    "shards of at most {samples} samples fit one worker: raise workers.logical_shards \
                     or lower train.global_batch_size"
                );
            }
        }
        "a smaller model, or a host with more memory".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::WorldSize;

    use super::*;

    fn estimate(workers: u32) -> MemoryEstimate {
        estimate_of(workers, false)
    }

    fn estimate_of(workers: u32, runs_together: bool) -> MemoryEstimate {
        let shards = ShardPlan::new(8, WorldSize::new(workers).unwrap()).unwrap();
        let optimizer: OptimizerConfig = serde_json::from_str(r#"{"kind": "adamw"}"#).unwrap();
        MemoryEstimate::data_parallel(1_000_000, 10_000, &optimizer, 64, &shards, runs_together)
    }

    #[test]
    fn the_parts_are_what_the_formula_says() {
        let one = estimate(1);
        assert_eq!(one.parameters, 8_000_000);
        assert_eq!(one.optimizer, 8_000_000);
        assert_eq!(one.activations, 10_000 * 8 * 4);
        assert_eq!(
            one.gradients,
            4_000_000 * 4,
            "8 shards: subtrees of 4, 2 and 1, and the one being filled"
        );
        assert_eq!(estimate(8).gradients, 4_000_000);
        let together = estimate_of(2, true);
        assert_eq!(together.activations, 4 * one.activations, "4 shards");
        assert_eq!(together.gradients, 4_000_000 * 4);
    }

    #[test]
    fn a_loader_holds_what_it_may_or_the_whole_set() {
        let one = estimate(1);
        let with = |memory, stored| one.with_loader(memory, stored).total() - one.total();
        assert_eq!((with(100, 1000), with(100, 40)), (125, 50));
        assert_eq!(with(u64::MAX, u64::MAX), u64::MAX - one.total());
    }

    #[test]
    fn sizes_that_no_number_holds_saturate() {
        let shards = ShardPlan::new(1, WorldSize::ONE).unwrap();
        let optimizer: OptimizerConfig = serde_json::from_str(r#"{"kind": "adamw"}"#).unwrap();
        let estimate = |parameters, batch| {
            MemoryEstimate::data_parallel(parameters, 1 << 40, &optimizer, batch, &shards, false)
        };
        assert_eq!(estimate(u64::MAX / 2, 1).total(), u64::MAX);
        assert_eq!(estimate(1, u64::MAX).total(), u64::MAX);
    }

    #[test]
    fn hints_name_what_would_fit() {
        let one = estimate(1);
        assert!(one.hint(one.total() * 2, 4).contains("--workers 2"));
        assert!(
            one.hint(one.total() - one.activations / 2, 1)
                .contains("at most 4 samples")
        );
        assert!(one.hint(1 << 20, 1).contains("smaller model"));
    }
}
