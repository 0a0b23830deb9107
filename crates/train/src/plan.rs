//! [`Plan`]: a validated run, pure, hashed and equal on all workers.

use std::collections::BTreeMap;

use ronde_core::batch::BatchPlan;
use ronde_core::layout::StateLayout;
use ronde_core::order::Shuffle;
use ronde_core::seed::SeedTree;
use ronde_core::shards::ShardPlan;
use ronde_core::weight_hash::WeightHash;
use ronde_core::{PlanIdentity, WorldSize};
use ronde_data::Dataset;

use crate::{RunConfig, TrainError};

/// A validated run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The run's settings.
    pub config: RunConfig,
    /// The samples of each step.
    pub batches: BatchPlan,
    /// The assignment of logical shards to ranks.
    pub shards: ShardPlan,
    /// The number of steps of the whole run.
    pub steps: u64,
    /// The number of epochs of the whole run; the last one may be incomplete.
    pub epochs: u64,
    /// The root of all random numbers.
    pub seeds: SeedTree,
    /// The method of comparing weights.
    pub hashing: WeightHash,
    /// All settings that the trained bits depend on.
    pub identity: PlanIdentity,
}

impl Plan {
    /// Validates a run for a world size.
    ///
    /// # Errors
    /// [`TrainError::Impossible`] with the values and a hint.
    pub fn resolve(
        config: &RunConfig,
        world_size: WorldSize,
        train: &dyn Dataset,
    ) -> Result<Self, TrainError> {
        let shards = ShardPlan::new(config.workers.logical_shards, world_size).ok_or_else(|| {
            TrainError::Impossible {
                problem: format!(
                    "{world_size} workers cannot share {} logical shards: each worker needs at least one",
                    config.workers.logical_shards
                ),
                hint: format!(
                    "use --workers {} or fewer, or raise workers.logical_shards (which changes the trained bits)",
                    config.workers.logical_shards
                ),
            }
        })?;
        let batch_size = config.train.global_batch_size;
        let batches = BatchPlan::new(
            train.len(),
            batch_size,
            config.train.drop_last,
            shuffle(config.train.shuffle, train),
            config.run.seed,
        )
        .ok_or_else(|| TrainError::Impossible {
            problem: format!(
                "an epoch of {} samples in batches of {batch_size} contains no step",
                train.len()
            ),
            hint: "lower train.global_batch_size, or set train.drop_last = false".to_owned(),
        })?;
        let per_epoch = batches.steps_per_epoch();
        let epochs = config.train.epochs.unwrap_or(1);
        let steps = config
            .train
            .steps
            .or_else(|| epochs.checked_mul(per_epoch))
            .ok_or_else(|| TrainError::Impossible {
                problem: format!("{epochs} epochs of {per_epoch} steps are too many"),
                hint: "lower train.epochs".to_owned(),
            })?;
        let mut identity = PlanIdentity::default();
        for (name, value) in config.identity_parts()? {
            identity.set(name, value);
        }
        identity.set("data.identity", train.identity());
        for (number, (file, hash)) in train.files().into_iter().enumerate() {
            let name = format!("data.identity.file-{number:02}");
            identity.set_labelled(name, format!("data file {file}"), hash);
        }
        set_order(&mut identity, shuffle(config.train.shuffle, train));
        identity.set("engine", ronde_engine::engine_name());
        identity.set("cpu", ronde_engine::cpu_features());
        identity.set("ronde", env!("CARGO_PKG_VERSION"));
        Ok(Self {
            config: config.clone(),
            batches,
            shards,
            steps,
            epochs: steps.div_ceil(per_epoch),
            seeds: SeedTree::new(config.run.seed),
            hashing: WeightHash {
                parts: config.check.weight_hash_parts.into(),
                full_every: config.check.weight_hash_full_every,
            },
            identity,
        })
    }

    /// Adds the model's tensors to the identity, on which peers must agree.
    pub fn bind_model(&mut self, layout: &StateLayout) {
        let shapes: BTreeMap<&str, &[usize]> = layout
            .tensors
            .iter()
            .map(|t| (t.name.as_str(), t.shape.as_slice()))
            .collect();
        let text = format!("{shapes:?}");
        let hash = blake3::hash(text.as_bytes()).to_hex();
        let elements: usize = layout
            .tensors
            .iter()
            .map(ronde_core::layout::TensorEntry::elements)
            .sum();
        self.identity.set(
            "model.tensors",
            format!(
                "{} tensors, {elements} elements, {}",
                layout.tensors.len(),
                &hash[..16]
            ),
        );
    }

    /// Adds the tensors of a user's own model to the identity, and removes the settings of a built-in model.
    pub fn bind_own_model(&mut self, layout: &StateLayout) {
        self.identity.remove_under("model.");
        self.identity.set("model.kind", "own");
        self.bind_model(layout);
    }

    /// Returns the learning rate of a step, counted from 0.
    #[must_use]
    pub fn learning_rate(&self, step: u64) -> f64 {
        self.config
            .schedule
            .rate(self.config.train.base_learning_rate(), step, self.steps)
    }
}

/// Returns how a data set is shuffled. Samples that are stored together stay near each other.
fn shuffle(shuffle: bool, dataset: &dyn Dataset) -> Shuffle {
    match dataset.locality() {
        Some(locality) if shuffle => Shuffle::Blocks {
            block: locality.block_samples,
            window: locality.window_blocks,
        },
        _ => shuffle.into(),
    }
}

fn set_order(identity: &mut PlanIdentity, shuffle: Shuffle) {
    if let Shuffle::Blocks { block, window } = shuffle {
        let order = format!("windows of {window} blocks of {block} samples");
        identity.set("data.order", order);
    }
}
