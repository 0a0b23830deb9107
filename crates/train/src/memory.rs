//! Estimates the memory that one worker needs before anything is allocated.

use ronde_core::shards::ShardPlan;
use ronde_engine::{OptimizerConfig, Precision};
use ronde_parallel::ZeroLevel;
use ronde_parallel::bucket::buckets_in_flight;
use ronde_schedule::ShardOrder;

use crate::config::{CheckpointSection, TrainSection};
use crate::model_copies::ModelCopies;

/// The bytes that one worker needs, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// The weights, which the layers read in place, and their rounded copies in short formats.
    pub parameters: u64,
    /// The gradients: subtrees of the sum over this worker's shards, one being filled or all joined.
    pub gradients: u64,
    /// One copy of the gradient, which is part of `gradients`; 0 once the state is divided.
    gradient_copy: u64,
    /// The order of shards and layers.
    order: ShardOrder,
    /// The state of the optimizer.
    pub optimizer: u64,
    /// The moving average of the weights and the best model, if the run keeps them.
    pub model_copies: u64,
    /// The copy of this worker's share of the state that is written to a checkpoint while training continues.
    pub checkpoint: u64,
    /// The activations at their peak, of the largest shard; of all shards unless they run one after the other.
    pub activations: u64,
    /// The process: code and engine.
    pub process: u64,
    /// Prefetched samples, both as stored in files and decoded.
    pub samples: u64,
    /// The number of samples of the largest shard.
    pub shard_samples: u64,
}

/// The part of a model that one worker has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartMemory {
    /// The share of the model's elements that it computes with, of 1.
    pub elements: f64,
    /// The share of the elements of another worker, if this one holds their second copies.
    pub copied_elements: f64,
    /// The most floats that its layers keep of all shards at any time.
    pub kept_floats_max: u64,
}

/// The parts of a model that workers have which divide its layers or the parts of its layers among themselves.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DividedModel {
    /// Each worker's part.
    pub workers: Vec<PartMemory>,
    /// The floats that all layers keep of one shard for the backward pass.
    pub kept_floats: u64,
}

/// The measured memory of a worker process with a small model.
const PROCESS_BYTES: u64 = 32 << 20;
/// The most memory for the buffers of the kernels of a computing thread, for convolutions of hundreds of channels.
const THREAD_BYTES: u64 = 20 << 20;
const BYTES: u64 = 4;

impl MemoryEstimate {
    /// Estimates the memory of data parallelism. `parameters` is the number of trainable elements, `weight_copies` the
    /// number of those that layers copy rounded, and `batch_samples` the number of samples of the largest step. `step_floats` returns the floats that activations need for shards of a
    /// number of samples, some of them in memory together: `together` of a worker, or all of them in another order than by shard.
    /// Results above the range of `u64` saturate.
    #[must_use]
    pub fn data_parallel(
        [parameters, weight_copies]: [u64; 2],
        step_floats: impl FnOnce(u64, u32) -> u64,
        optimizer: &OptimizerConfig,
        batch_samples: u64,
        shards: &ShardPlan,
        (order, together): (ShardOrder, u32),
    ) -> Self {
        let each = shards.shards().div_ceil(shards.computing());
        let (together, filled) = match order {
            ShardOrder::ByShard => (together.clamp(1, each), 1),
            ShardOrder::ByLayer => (each, 1),
            ShardOrder::LockStep => (each, each),
        };
        let buffers = shards.exact_sum().buffers_max().max(filled.into());
        let samples = batch_samples.div_ceil(u64::from(shards.shards()));
        let copies = |count: u64| parameters.saturating_mul(BYTES).saturating_mul(count);
        Self {
            parameters: copies(1).saturating_add(weight_copies.saturating_mul(BYTES)),
            gradients: copies(buffers),
            gradient_copy: copies(1),
            order,
            optimizer: copies(optimizer.state_names().len() as u64),
            model_copies: 0,
            checkpoint: 0,
            activations: step_floats(samples, together).saturating_mul(BYTES),
            process: PROCESS_BYTES,
            samples: 0,
            shard_samples: samples,
        }
    }

    /// Divides the states of the optimizer among `workers` workers, each slice on `copies` of them, and with
    /// [`ZeroLevel::Gradients`] also the reduced gradient, and with [`ZeroLevel::Weights`] the weights. Sums over earlier shards of a worker stay whole, unless the order is by layer. `bucket_bytes` is
    /// the largest bucket; several are in flight while gradients are reduced and weights gathered.
    #[must_use]
    pub fn divided(
        mut self,
        zero: ZeroLevel,
        (copies, workers): (u32, u32),
        bucket_bytes: u64,
    ) -> Self {
        if !zero.is_sharded() || workers < 2 {
            return self;
        }
        let share = |bytes: u64| {
            let held = u128::from(bytes) * u128::from(copies.min(workers));
            (held / u128::from(workers)) as u64
        };
        self.optimizer = share(self.optimizer);
        let reduced = std::mem::take(&mut self.gradient_copy);
        let buckets = buckets_in_flight(usize::try_from(bucket_bytes).unwrap_or(usize::MAX));
        let in_flight = bucket_bytes.saturating_mul(buckets as u64);
        // A small model has fewer buckets.
        let in_flight = in_flight.min(reduced);
        if zero == ZeroLevel::Weights {
            let gathered = in_flight.min(self.parameters);
            self.parameters = share(self.parameters).saturating_add(gathered);
        }
        if zero >= ZeroLevel::Gradients {
            let divided = share(reduced).saturating_add(in_flight).min(reduced);
            let sums = match self.order {
                // Of the buckets whose layers run their backward pass.
                ShardOrder::ByLayer => {
                    let subtrees = self.gradients / reduced.max(1);
                    subtrees
                        .saturating_mul(bucket_bytes)
                        .min(self.gradients.saturating_sub(reduced))
                }
                ShardOrder::ByShard | ShardOrder::LockStep => {
                    self.gradients.saturating_sub(reduced)
                }
            };
            self.gradients = sums.saturating_add(divided);
        }
        if zero == ZeroLevel::Gradients {
            // Updated weights are gathered in the same memory after the gradients.
            return self;
        }
        if zero == ZeroLevel::OptimizerStates && copies > 1 {
            self.gradients = self.gradients.saturating_add(share(reduced) / 2);
        }
        self.gradients = self.gradients.saturating_add(in_flight);
        self
    }

    /// Returns the memory of each worker, if the last `servers` of `workers` workers divide the state among themselves and the rest is
    /// that of a worker with the whole state: each slice on `copies` workers. There are fewer servers than workers. The other arguments
    /// are those of [`MemoryEstimate::divided`].
    #[must_use]
    pub fn served(
        self,
        zero: ZeroLevel,
        (copies, servers, workers): (u32, u32, u32),
        bucket_bytes: u64,
    ) -> Vec<Self> {
        let computing = workers.saturating_sub(servers) as usize;
        let mut all = vec![self.divided(zero, (0, 2), bucket_bytes); computing];
        // A single server has its copy on a worker that computes.
        if servers == 1
            && copies > 1
            && let Some(first) = all.first_mut()
        {
            *first = self.divided(zero, (2, 2), bucket_bytes);
        }
        let computed = Self {
            // Only the sums that arrive.
            gradients: self.gradient_copy,
            ..self
        };
        let server = match servers {
            1 => computed,
            _ => computed.divided(zero, (copies, servers), bucket_bytes),
        };
        all.resize(computing + servers as usize, server);
        all
    }

    /// Adds a worker's memory for rounds of local SGD, if the rest is that of one replica: the weights at the start of a round,
    /// `states` vectors of the state besides, and the sum over the replicas of its `summed` vectors.
    #[must_use]
    pub fn with_rounds(
        mut self,
        parameters: u64,
        replicas: &ShardPlan,
        (states, summed): (u64, u64),
    ) -> Self {
        let copies = |count: u64| parameters.saturating_mul(BYTES).saturating_mul(count);
        let buffers = replicas.exact_sum().buffers_max();
        self.parameters = self.parameters.saturating_add(copies(1));
        self.optimizer = self.optimizer.saturating_add(copies(states));
        let sums = copies(buffers.saturating_mul(summed));
        self.gradients = self.gradients.saturating_add(sums);
        // The state of a replica is never divided.
        self.gradient_copy = 0;
        self
    }

    /// Adds `count` vectors of as many elements as the weights to the states of the optimizer.
    #[must_use]
    pub fn with_vectors(mut self, parameters: u64, count: u64) -> Self {
        let bytes = parameters.saturating_mul(BYTES).saturating_mul(count);
        self.optimizer = self.optimizer.saturating_add(bytes);
        self
    }

    /// Adds the bytes that predictors of gradients need.
    #[must_use]
    pub fn with_predictors(mut self, bytes: u64) -> Self {
        self.optimizer = self.optimizer.saturating_add(bytes);
        self
    }

    /// Adds the memory for compressed gradients: for each of its senders the residual, and the gradient that becomes the
    /// next one; and the units and the residual of the sum that it encodes, its share of the sum of all `workers`.
    #[must_use]
    pub fn with_compression(mut self, parameters: u64, senders: u32, workers: u32) -> Self {
        let copies = |count: u64| parameters.saturating_mul(BYTES).saturating_mul(count);
        let own = u64::from(senders.div_ceil(workers.max(1)));
        let of_sum = copies(2) / u64::from(workers.max(1));
        self.optimizer = self
            .optimizer
            .saturating_add(copies(own))
            .saturating_add(of_sum);
        self.gradients = self.gradients.saturating_add(copies(own));
        self
    }

    /// Returns the memory of each worker of a divided model.
    #[must_use]
    pub fn of_parts(&self, model: &DividedModel) -> Vec<Self> {
        // Memory in use while a layer computes, besides the kept values.
        let kept = model.kept_floats.saturating_mul(BYTES);
        let working = self.activations.saturating_sub(kept);
        let of_part = |part: &PartMemory| {
            let share = |bytes: u64, share: f64| (bytes as f64 * share) as u64;
            let held = part.elements + part.copied_elements;
            Self {
                parameters: share(self.parameters, held),
                // The second copy is updated from a separate gradient.
                gradients: share(self.gradients, part.elements)
                    .saturating_add(share(self.gradient_copy, part.copied_elements)),
                gradient_copy: share(self.gradient_copy, part.elements),
                optimizer: share(self.optimizer, held),
                model_copies: share(self.model_copies, held),
                checkpoint: share(self.checkpoint, part.elements),
                activations: part
                    .kept_floats_max
                    .saturating_mul(BYTES)
                    .saturating_add(working),
                ..*self
            }
        };
        model.workers.iter().map(of_part).collect()
    }

    /// Adds the copies of the weights that the run keeps besides those that it trains.
    #[must_use]
    pub fn with_model_copies(mut self, parameters: u64, section: &TrainSection) -> Self {
        let bytes = BYTES * ModelCopies::names(section).len() as u64;
        self.model_copies = parameters.saturating_mul(bytes);
        self
    }

    /// Adds the copies for checkpoints, if the run saves any: `workers` workers with the whole model save a share each.
    #[must_use]
    pub fn with_checkpoints(
        mut self,
        parameters: u64,
        (optimizer, train): (&OptimizerConfig, &TrainSection),
        section: &CheckpointSection,
        workers: u32,
    ) -> Self {
        let copies = ModelCopies::names(train).len();
        let vectors = 1 + optimizer.state_names().len() + copies;
        let saved = parameters.saturating_mul(BYTES * vectors as u64);
        if section.is_saving() {
            self.checkpoint = saved / u64::from(workers.max(1));
        }
        self
    }

    /// Adds a loader that prefetches up to `memory_bytes` of a data set of `stored_bytes`, and `decoded_bytes` of decoded
    /// samples.
    #[must_use]
    pub fn with_loader(mut self, memory_bytes: u64, stored_bytes: u64, decoded_bytes: u64) -> Self {
        self.samples = memory_bytes.min(stored_bytes).saturating_add(decoded_bytes);
        self
    }

    /// Adds the buffers of the kernels of the worker's computing threads, for a largest layer of `convolved` weights if the samples are
    /// images; 0: nothing is convolved. In short formats, gradients of weights are sums over blocks of samples.
    #[must_use]
    pub fn with_kernels(mut self, convolved: u64, threads: u32, precision: Precision) -> Self {
        let thread = convolved.saturating_mul(2 * BYTES).min(THREAD_BYTES);
        let of_block = match precision {
            Precision::F32 => 0,
            Precision::Bf16 | Precision::F16 => convolved.saturating_mul(BYTES).min(THREAD_BYTES),
        };
        let all = thread.saturating_mul(threads.max(1).into());
        let all = all.saturating_add(of_block);
        self.process = self.process.saturating_add(all);
        self
    }

    /// Returns the total number of bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        [
            self.gradients,
            self.optimizer,
            self.model_copies,
            self.checkpoint,
            self.activations,
            self.process,
            self.samples,
        ]
        .into_iter()
        .fold(self.parameters, u64::saturating_add)
    }

    /// Returns a hint for making the run fit.
    #[must_use]
    pub fn hint(&self, available_bytes: u64, local_workers: u32) -> String {
        let copies = if local_workers > 2 { 2 } else { 1 };
        let levels = [
            (
                ZeroLevel::Gradients,
                "the states of the optimizer and the gradients fit if they are",
                2,
            ),
            (
                ZeroLevel::Weights,
                "the model fits if its weights, gradients and states of the optimizer are",
                3,
            ),
        ];
        for (zero, what, number) in levels {
            let divided = self.divided(zero, (copies, local_workers), 4 << 20);
            let needed = divided.total().saturating_mul(local_workers.into());
            if self.gradient_copy > 0 && local_workers > 1 && needed <= available_bytes {
                return format!("{what} divided among the workers: --set parallel.zero={number}");
            }
        }
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
                    "shards of at most {samples} samples fit: raise workers.logical_shards \
                     or lower train.global_batch_size"
                );
            }
        }
        "use a smaller model, or a host with more memory".to_owned()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_worker_of_a_pipeline_with_the_most_decides() {
        let whole = MemoryEstimate {
            parameters: 1000,
            gradients: 1000,
            gradient_copy: 1000,
            order: ShardOrder::ByShard,
            optimizer: 2000,
            model_copies: 0,
            checkpoint: 0,
            activations: 500,
            process: 0,
            samples: 0,
            shard_samples: 1,
        };
        let part = |elements, kept_floats_max| PartMemory {
            elements,
            copied_elements: 0.0,
            kept_floats_max,
        };
        let of = |workers: [PartMemory; 2]| {
            let model = DividedModel {
                workers: workers.into(),
                kept_floats: 100,
            };
            let totals = whole.of_parts(&model).into_iter();
            totals.map(|worker| worker.total()).max()
        };
        // 100 of the 500 bytes are in use while a layer computes.
        assert_eq!(
            of([part(0.75, 100), part(0.25, 50)]),
            Some(3000 + 400 + 100)
        );
        assert_eq!(of([part(0.5, 360), part(0.5, 10)]), Some(2000 + 1440 + 100));
    }

    #[test]
    fn servers_hold_what_workers_that_compute_do_not() {
        let whole = estimate(2);
        let optimizer = whole.optimizer;
        let of = |copies, servers| {
            let among = (copies, servers, servers + 2);
            let each = whole.served(ZeroLevel::Gradients, among, 0);
            let each = each.iter().map(|worker| worker.optimizer);
            each.collect::<Vec<_>>()
        };
        assert_eq!(of(1, 1), [0, 0, optimizer]);
        assert_eq!(of(2, 1), [optimizer, 0, optimizer]);
        assert_eq!(of(1, 2), [0, 0, optimizer / 2, optimizer / 2]);
        assert_eq!(of(2, 4)[..3], [0, 0, optimizer / 2]);
        let weights = whole.served(ZeroLevel::Weights, (1, 2, 3), 0);
        let weights = weights.iter().map(|worker| worker.parameters);
        let half = whole.parameters / 2;
        assert_eq!(weights.collect::<Vec<_>>(), [0, half, half]);
    }

    use ronde_core::WorldSize;

    use super::*;

    fn estimate(workers: u32) -> MemoryEstimate {
        estimate_of(workers, ShardOrder::ByShard)
    }

    fn estimate_of(workers: u32, order: ShardOrder) -> MemoryEstimate {
        let shards = ShardPlan::new(8, WorldSize::new(workers).unwrap()).unwrap();
        let optimizer: OptimizerConfig = serde_json::from_str(r#"{"kind": "adamw"}"#).unwrap();
        let floats = |samples, together: u32| 10_000 * samples * u64::from(together);
        MemoryEstimate::data_parallel([1_000_000, 0], floats, &optimizer, 64, &shards, (order, 1))
    }

    #[test]
    fn by_layer_only_the_gradients_of_some_buckets_are_whole() {
        let of = |order| {
            let estimate = estimate_of(2, order);
            estimate.divided(ZeroLevel::Gradients, (1, 2), 40_000)
        };
        let (by_shard, by_layer) = (of(ShardOrder::ByShard), of(ShardOrder::ByLayer));
        // 4 shards of a worker: subtrees of 2 and 1 and the one being filled, here of one bucket each.
        assert_eq!(by_layer.gradients, 2_000_000 + 3 * 40_000 + 3 * 40_000);
        assert!(by_shard.gradients > 2 * 4_000_000);
        // Those of all 4 shards instead of one.
        assert_eq!(by_layer.activations, 4 * by_shard.activations);
    }

    #[test]
    fn a_checkpoint_needs_a_copy_of_the_share_that_is_written() {
        let optimizer: OptimizerConfig = serde_json::from_str(r#"{"kind": "adamw"}"#).unwrap();
        let of = |section: &CheckpointSection| {
            let settings = (&optimizer, &TrainSection::default());
            let one = estimate(4);
            let with = one.with_checkpoints(1_000_000, settings, section, 4);
            with.total() - one.total()
        };
        // The weights and the two states of AdamW.
        assert_eq!(of(&CheckpointSection::default()), 3 * 4_000_000 / 4);
        let none = CheckpointSection {
            at_end: false,
            every_minutes: 0.0,
            ..CheckpointSection::default()
        };
        assert_eq!(of(&none), 0);
    }

    #[test]
    fn the_parts_match_the_formula() {
        let one = estimate(1);
        assert_eq!(one.parameters, 4_000_000);
        assert_eq!(one.optimizer, 8_000_000);
        assert_eq!(one.activations, 10_000 * 8 * 4);
        assert_eq!(
            one.gradients,
            4_000_000 * 4,
            "8 shards: subtrees of 4, 2 and 1, and the one being filled"
        );
        assert_eq!(estimate(8).gradients, 4_000_000);
        let together = estimate_of(2, ShardOrder::LockStep);
        assert_eq!(together.activations, 4 * one.activations, "4 shards");
        assert_eq!(together.gradients, 4_000_000 * 4);
    }

    #[test]
    fn a_divided_state_needs_a_share_of_the_states_and_gradients() {
        let bucket = 100_000;
        let whole = estimate(8);
        let of = |zero, copies| whole.divided(zero, (copies, 8), bucket);
        assert_eq!(of(ZeroLevel::Off, 1), whole);
        let states = of(ZeroLevel::OptimizerStates, 1);
        assert_eq!(states.optimizer, whole.optimizer / 8);
        assert_eq!(states.gradients, whole.gradients + 3 * bucket);
        assert_eq!(
            of(ZeroLevel::OptimizerStates, 2).optimizer,
            whole.optimizer / 4
        );
        let weights = of(ZeroLevel::Weights, 1);
        assert_eq!(weights.parameters, whole.parameters / 8 + 3 * bucket);
        let gradients = of(ZeroLevel::Gradients, 1);
        assert_eq!(gradients.gradients, whole.gradients / 8 + 3 * bucket);
        assert_eq!(whole.divided(ZeroLevel::Gradients, (1, 1), bucket), whole);
    }

    #[test]
    fn a_loader_holds_its_limit_or_the_whole_data_set() {
        let one = estimate(1);
        let with = |memory, stored| one.with_loader(memory, stored, 20).total() - one.total();
        assert_eq!((with(100, 1000), with(100, 40)), (120, 60));
        assert_eq!(with(u64::MAX, u64::MAX), u64::MAX - one.total());
    }

    #[test]
    fn an_average_and_the_best_model_take_the_memory_of_the_weights_each() {
        let one = estimate(1);
        let section = TrainSection {
            average_decay: Some(0.9),
            keep_best: Some("loss".to_owned()),
            ..TrainSection::default()
        };
        let more = one.with_model_copies(1_000_000, &section).total() - one.total();
        assert_eq!(more, 2 * one.parameters);
        let none = one.with_model_copies(1_000_000, &TrainSection::default());
        assert_eq!(none, one);
    }

    #[test]
    fn rounds_add_their_start_their_states_and_the_sum_over_replicas() {
        let replicas = ShardPlan::new(4, WorldSize::new(2).unwrap()).unwrap();
        let one = estimate(1);
        let rounds = one.with_rounds(1_000_000, &replicas, (1, 2));
        assert_eq!(rounds.parameters, 2 * one.parameters);
        assert_eq!(rounds.optimizer, one.optimizer + one.parameters);
        let buffers = replicas.exact_sum().buffers_max();
        assert_eq!(
            rounds.gradients,
            one.gradients + 2 * buffers * one.parameters
        );
        assert_eq!(
            one.with_rounds(u64::MAX, &replicas, (1, 2)).total(),
            u64::MAX
        );
    }

    #[test]
    fn compression_adds_residuals_and_the_gradients_that_replace_them() {
        let plain = estimate(2);
        let compressed = plain.with_compression(1_000_000, 4, 2);
        assert_eq!(compressed.total() - plain.total(), 4_000_000 * (2 + 2 + 1));
        let most = plain.with_compression(u64::MAX, 4, 2);
        assert_eq!(most.total(), u64::MAX);
    }

    #[test]
    fn each_thread_has_buffers_for_convolutions() {
        let one = estimate(1);
        let with = |convolved, threads, precision| {
            one.with_kernels(convolved, threads, precision).total() - one.total()
        };
        let more = |convolved, threads| with(convolved, threads, Precision::F32);
        assert_eq!(with(1000, 1, Precision::Bf16), 12_000);
        assert_eq!(more(0, 4), 0);
        assert_eq!(more(1_000, 2), 16_000);
        assert_eq!(more(u64::MAX, 3), 3 * THREAD_BYTES);
        assert!(more(1, u32::MAX) > 0);
    }

    #[test]
    fn sizes_above_the_range_of_u64_saturate() {
        let shards = ShardPlan::new(1, WorldSize::ONE).unwrap();
        let optimizer: OptimizerConfig = serde_json::from_str(r#"{"kind": "adamw"}"#).unwrap();
        let estimate = |parameters, batch| {
            let floats = |samples: u64, _| samples.saturating_mul(1 << 40);
            MemoryEstimate::data_parallel(
                [parameters, 0],
                floats,
                &optimizer,
                batch,
                &shards,
                (ShardOrder::ByShard, 1),
            )
        };
        assert_eq!(estimate(u64::MAX / 2, 1).total(), u64::MAX);
        assert_eq!(estimate(1, u64::MAX).total(), u64::MAX);
    }

    #[test]
    fn hints_suggest_settings_that_fit() {
        let one = estimate(1);
        assert!(one.hint(one.total() * 2, 4).contains("--workers 2"));
        assert!(
            one.hint(one.total() - one.activations / 2, 1)
                .contains("at most 4 samples")
        );
        assert!(one.hint(1 << 20, 1).contains("smaller model"));
        let large = estimate(8);
        let large = MemoryEstimate {
            optimizer: large.optimizer * 100,
            ..large
        };
        assert!(large.hint(large.total() * 5, 8).contains("parallel.zero=2"));
        assert!(large.hint(large.total(), 8).contains("--workers 1"));
        let wide = MemoryEstimate {
            parameters: large.parameters * 100,
            gradients: large.gradients * 100,
            gradient_copy: large.gradient_copy * 100,
            ..large
        };
        let divided = wide.divided(ZeroLevel::Weights, (2, 8), 4 << 20);
        assert!(
            wide.hint(divided.total() * 8, 8)
                .contains("parallel.zero=3")
        );
    }
}
