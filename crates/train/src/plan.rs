//! [`Plan`]: a validated run, pure, hashed and equal on all workers.

use std::collections::BTreeMap;
use std::time::Duration;

use ronde_core::batch::BatchPlan;
use ronde_core::layout::{Role, StateLayout, TensorEntry};
use ronde_core::order::Shuffle;
use ronde_core::rounds::RoundPlan;
use ronde_core::seed::SeedTree;
use ronde_core::shards::ShardPlan;
use ronde_core::weight_hash::WeightHash;
use ronde_core::{DataSignature, PlanIdentity, Step, WorldSize};
use ronde_data::Dataset;
use ronde_engine::{Chain, EngineError, Layer, LayerExt, LearningRate, Precision};
use ronde_parallel::LossScaling;

use crate::config::{RoundSamples, RunConfig, ShardsTogether};
use crate::error::TrainError;
use crate::evaluate::LOSS;
use crate::model_parts;
use crate::objective::Objective;

/// The most bytes that the layers keep of the shards that pass through them together, unless the run file has their number.
const TOGETHER_BYTES: u64 = 256 << 20;
/// The longest wait for another worker.
const EXCHANGE_TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

/// The kind of a user's own model in the identity.
const OWN: &str = "own";

/// A validated run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The run's settings.
    pub config: RunConfig,
    /// The samples of each step.
    pub batches: BatchPlan,
    /// The assignment of logical shards to ranks with all layers, or to pipelines.
    pub shards: ShardPlan,
    /// The rounds of local SGD, which are steps; `None`: gradients are summed in every step.
    pub rounds: Option<RoundPlan>,
    /// The samples of a step that a worker loads and reports.
    pub samples: RoundSamples,
    /// The number of steps of the whole run.
    pub steps: u64,
    /// The number of epochs of the whole run; the last one may be incomplete.
    pub epochs: u64,
    /// The root of all random numbers.
    pub seeds: SeedTree,
    /// The method of comparing weights.
    pub hashing: WeightHash,
    /// The loss and the metrics.
    pub objective: Objective,
    /// The learning rate of each step.
    pub learning_rate: LearningRate,
    /// All settings that the trained bits depend on.
    pub identity: PlanIdentity,
    /// The names and the units of the features and the targets, on which no bit depends.
    pub signature: DataSignature,
    /// Whether the run may evaluate: there is a test set, or none is known of yet.
    pub evaluates: bool,
    /// The identity of the test data, if there is any.
    pub test_data: Option<String>,
}

/// Returns the error of a run with more workers than it has shards or replicas for.
fn too_many_workers(config: &RunConfig, workers: WorldSize, parts: u32) -> TrainError {
    let (_, what, key) = config.parts_limit();
    let servers = config.parallel.servers_among(workers.get());
    let most = parts.saturating_add(servers);
    let (count, each) = match servers {
        0 => (workers.get(), "worker"),
        _ => (workers.get() - servers, "computing worker"),
    };
    TrainError::Impossible {
        problem: format!("{count} {each}s cannot share {parts} {what}: each needs at least one"),
        hint: format!(
            "use --workers {most} or fewer, or raise {key} (which changes the trained bits)"
        ),
    }
}

/// Returns the shards of each worker, or of the replicas of the model if workers divide it.
fn shard_plan(config: &RunConfig, world_size: WorldSize) -> Result<ShardPlan, TrainError> {
    let replicas = model_parts::replicas(config, world_size);
    let parts = config.divided_parts();
    let shards = match config.sync.facts().samples {
        // One rank reports all samples of a round.
        RoundSamples::OnDemand | RoundSamples::AllOnEach => {
            ShardPlan::with_spares(1, replicas, 1).filter(|_| replicas.get() <= parts)
        }
        RoundSamples::OfShards if config.parallel.servers > 0 => {
            let computing = world_size.get() - config.parallel.servers_among(world_size.get());
            ShardPlan::with_spares(parts, world_size, computing)
        }
        RoundSamples::OfShards => ShardPlan::of_groups(parts, config.shards_together(), replicas),
    };
    shards.ok_or_else(|| too_many_workers(config, world_size, parts))
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
        let shards = shard_plan(config, world_size)?;
        let inner_batch = config.train.global_batch_size;
        let batch_size = inner_batch.saturating_mul(config.sync.facts().round_steps);
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
        let rounds = rounds_of(config, batches)?;
        let per_epoch = batches.steps_per_epoch();
        let epochs = config.train.epochs.unwrap_or(1);
        let steps = config.train.steps.map(|steps| match &rounds {
            Some(rounds) => rounds.rounds_of(steps),
            None => steps,
        });
        let steps = steps
            .or_else(|| epochs.checked_mul(per_epoch))
            .ok_or_else(|| TrainError::Impossible {
                problem: format!("{epochs} epochs of {per_epoch} steps are too many"),
                hint: "lower train.epochs".to_owned(),
            })?;
        let identity = identity_of(config, train)?;
        Ok(Self {
            config: config.clone(),
            batches,
            shards,
            rounds,
            samples: config.sync.facts().samples,
            steps,
            epochs: steps.div_ceil(per_epoch),
            seeds: SeedTree::new(config.run.seed),
            hashing: WeightHash {
                parts: config.check.weight_hash_parts.into(),
                full_every: config.check.weight_hash_full_every,
            },
            objective: Objective::of(
                &config.model.config,
                train,
                config.train.loss,
                &config.train.metrics,
            )?,
            learning_rate: config.schedule.learning_rate(
                config.train.base_learning_rate(),
                rounds.map_or(steps, |rounds| rounds.steps_before(Step(steps))),
            ),
            identity,
            signature: train.description().signature.clone(),
            evaluates: true,
            test_data: None,
        })
    }

    /// Checks that the run can start with a number of workers. A run that loses workers may continue with fewer.
    ///
    /// # Errors
    /// [`TrainError::Impossible`] when there are too few workers or logical shards for the pipelines of the run.
    pub fn check_workers(&self, world_size: WorldSize) -> Result<(), TrainError> {
        model_parts::check_workers(&self.config, world_size)
    }

    /// Returns the longest wait for another of `workers` workers in an exchange: `comm.timeout_s`, multiplied with the steps that a
    /// worker makes between two exchanges.
    #[must_use]
    pub fn exchange_timeout(&self, workers: WorldSize) -> Duration {
        let timeout = self.config.comm.timeout();
        let Some(rounds) = &self.rounds else {
            return timeout;
        };
        let replicas = rounds.replicas().div_ceil(workers.get());
        let steps = rounds.inner_steps_max().saturating_mul(replicas.into());
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        timeout.saturating_mul(steps).min(EXCHANGE_TIMEOUT_MAX)
    }

    /// Returns the most samples of a shard; of a micro-batch if a step is a round.
    #[must_use]
    pub fn shard_samples_max(&self) -> usize {
        if let Some(rounds) = &self.rounds {
            return rounds.part_samples_max() as usize;
        }
        let samples = self
            .config
            .train
            .global_batch_size
            .min(self.batches.samples());
        samples.div_ceil(self.shards.shards().into()) as usize
    }

    /// Returns how many logical shards of a worker pass through the layers of a model together, for samples of this shape. All workers
    /// find the same number, and no bit depends on it.
    #[must_use]
    pub fn shards_together(&self, chain: &Chain, sample: &[usize]) -> u32 {
        let shards = self.shards.shards();
        if self.config.parallel.pipeline > 1 {
            return 1;
        }
        if let ShardsTogether::Count(count) = self.config.train.shards_together {
            return count.get();
        }
        let elements = |layer: &dyn Layer| {
            let tensors = layer.facts().layout.tensors.iter();
            tensors.map(TensorEntry::elements).sum::<usize>()
        };
        let layers = || chain.layers().iter().map(|layer| &**layer);
        let joining = layers().filter(|layer| layer.facts().joins_shards());
        if 2 * joining.map(elements).sum::<usize>() < layers().map(elements).sum() {
            return 1;
        }
        let shape = [&[self.shard_samples_max()], sample].concat();
        let each = (chain.cost(&shape).kept_floats as u64)
            .saturating_mul(4)
            .max(1);
        let fitting = u32::try_from(TOGETHER_BYTES / each).unwrap_or(u32::MAX);
        // A power of two is one subtree of the exact sum, where the shards of a worker are.
        let together = 1 << fitting.max(1).ilog2();
        together.min(shards.next_power_of_two())
    }

    /// Returns the loss scaling, which only f16 needs.
    pub(crate) fn loss_scaling(&self) -> Option<LossScaling> {
        let is_scaled = self.config.train.precision == Precision::F16;
        is_scaled.then(LossScaling::default)
    }

    /// Returns the step whose learning rate belongs to a step of the run: the first inner step of a round.
    #[must_use]
    pub fn rate_step(&self, step: Step) -> Step {
        match &self.rounds {
            Some(rounds) => Step(rounds.steps_before(step)),
            None => step,
        }
    }

    /// Returns the number of samples up to a step, including skipped ones.
    #[must_use]
    pub fn planned_samples(&self, step: Step) -> u64 {
        let batch = self.batches.batch(step);
        batch.epoch.0 * self.batches.samples_per_epoch() + batch.positions.end
    }

    /// Returns a model as this run trains it: with its precision, and with recomputation if it is configured.
    ///
    /// # Errors
    /// When a layer does not compute in the precision.
    pub fn prepare(&self, chain: Chain) -> Result<Chain, EngineError> {
        let train = &self.config.train;
        let chain = chain.with_precision(train.precision)?;
        chain.recomputing(train.recompute_activations.layers())
    }

    /// Returns the model of the run file for samples of a data set, as this run trains it. No weights are allocated.
    ///
    /// # Errors
    /// The model does not accept the samples, or a layer does not compute in the precision.
    pub fn chain(&self, train: &dyn Dataset) -> Result<Chain, TrainError> {
        let description = train.description();
        let model = &self.config.model.config;
        let chain = model.build(&description.shape, description.classes, &self.seeds);
        let prepared = chain.and_then(|chain| self.prepare(chain));
        prepared.map_err(TrainError::Model)
    }

    /// Adds the model's tensors to the identity, on which peers must agree.
    ///
    /// # Errors
    /// When a parameter group contains no parameter of the model.
    pub fn bind_model(&mut self, layout: &StateLayout) -> Result<(), TrainError> {
        self.check_groups(layout)?;
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
        Ok(())
    }

    /// Adds the tensors and the engine of a user's own model to the identity, and removes the settings of a built-in
    /// model.
    ///
    /// # Errors
    /// As [`Plan::bind_model`].
    pub fn bind_own_model(&mut self, model: &Chain) -> Result<(), TrainError> {
        self.identity.remove_under("model.");
        self.identity.set("model.kind", OWN);
        self.identity.set("engine", model.engine());
        self.bind_model(model.layout())
    }

    /// Returns whether the model is a user's own one.
    #[must_use]
    pub fn has_own_model(&self) -> bool {
        self.identity.part("model.kind") == Some(OWN)
    }

    /// Checks that each parameter group contains a parameter that no earlier one contains, and has valid numbers. Called before
    /// workers start, and by [`Plan::bind_model`].
    ///
    /// # Errors
    /// [`TrainError::Impossible`] with the names of the parameters.
    pub fn check_groups(&self, layout: &StateLayout) -> Result<(), TrainError> {
        // A group contains all parts of a tensor.
        let whole = layout.whole();
        let parameters = whole.tensors.iter().filter(|t| t.role == Role::Parameter);
        let names: Vec<&str> = parameters.map(|t| t.name.as_str()).collect();
        let groups = &self.config.train.parameter_groups;
        for (number, group) in groups.iter().enumerate() {
            let is_taken = |name: &str| groups[..number].iter().any(|one| one.contains(name));
            let pattern = &group.tensors;
            let problem = match group.check() {
                Err(problem) => format!("invalid parameter group `{pattern}`: {problem}"),
                Ok(())
                    if names
                        .iter()
                        .any(|name| group.contains(name) && !is_taken(name)) =>
                {
                    continue;
                }
                Ok(()) if names.iter().any(|name| group.contains(name)) => format!(
                    "the group `{pattern}` has no effect: an earlier group contains each of its parameters"
                ),
                Ok(()) => format!("no parameter of the model matches the group `{pattern}`"),
            };
            return Err(TrainError::Impossible {
                problem,
                hint: format!(
                    "change train.parameter_groups; the parameters are {}",
                    names.join(", ")
                ),
            });
        }
        Ok(())
    }

    /// Replaces the objective, and adds the name of its loss to the identity.
    ///
    /// # Errors
    /// When the name of a metric is invalid.
    pub fn bind_objective(&mut self, objective: Objective) -> Result<(), TrainError> {
        objective.check()?;
        self.identity.set("train.loss", objective.loss.name());
        self.objective = objective;
        Ok(())
    }

    /// Adds the settings and the test set of evaluations to the identity if the trained bits or the saved model depend on them.
    /// Called after the objective and the model are bound.
    ///
    /// # Errors
    /// When the run acts on evaluations, without a test set or a measured metric.
    pub fn bind_evaluations(&mut self, test: Option<&dyn Dataset>) -> Result<(), TrainError> {
        self.evaluates = test.is_some_and(|test| !test.is_empty());
        self.test_data = test.map(|test| test.description().identity.clone());
        let metrics = self.objective.metrics.iter().map(|metric| metric.name());
        let measured: Vec<&str> = std::iter::once(LOSS).chain(metrics).collect();
        for (key, metric) in self.config.train.evaluation_users() {
            let (problem, hint) = if test.is_none() {
                let hint = "add `data.test`, or remove the key".to_owned();
                (format!("cannot use {key}: there is no test set"), hint)
            } else if !measured.contains(&metric) {
                (
                    format!("cannot use {key}: the metric `{metric}` is not measured"),
                    format!(
                        "use one of {}, or add the metric to train.metrics",
                        measured.join(", ")
                    ),
                )
            } else {
                continue;
            };
            return Err(TrainError::Impossible { problem, hint });
        }
        let is_used = !self.config.train.evaluation_users().is_empty();
        if let (true, Some(test)) = (is_used, test) {
            let every = self.config.train.evaluate_every_epochs.unwrap_or_default();
            let identity = test.description().identity.clone();
            self.identity
                .set("train.evaluate_every_epochs", every.to_string());
            self.identity.set("data.identity.test", identity);
        }
        Ok(())
    }

    /// Replaces the learning rate. In the identity, its name replaces the settings of the schedule.
    pub fn bind_learning_rate(&mut self, learning_rate: LearningRate) {
        self.identity.remove_under("schedule.");
        self.identity.remove_under("train.learning_rate");
        self.identity.set("schedule.own", learning_rate.name());
        self.learning_rate = learning_rate;
    }
}

/// Returns the rounds of a run whose steps are the batches of a plan; `None`: gradients are summed in every step.
fn rounds_of(config: &RunConfig, batches: BatchPlan) -> Result<Option<RoundPlan>, TrainError> {
    let facts = config.sync.facts();
    let Some(replicas) = facts.replicas else {
        return Ok(None);
    };
    let (inner_batch, inner_steps) = (config.train.global_batch_size, facts.round_steps);
    let of_epoch = batches.samples().div_ceil(inner_batch.max(1));
    let (key, what) = (facts.round_key, facts.round_unit);
    if inner_steps > of_epoch {
        return Err(TrainError::Impossible {
            problem: format!(
                "rounds of {inner_steps} {what} are longer than an epoch, which has {of_epoch} {what} of {inner_batch} samples"
            ),
            hint: format!("lower {key} to {of_epoch} or less, or train.global_batch_size"),
        });
    }
    let parts = config.workers.logical_shards / replicas.max(1);
    let rounds = RoundPlan::new(batches, (inner_batch, inner_steps), replicas, parts);
    rounds.map(Some).ok_or_else(|| TrainError::Impossible {
        problem: format!("{replicas} replicas cannot make rounds of {inner_steps} {what}"),
        hint: format!(
            "set {key} and sync.replicas to 1 or more, and workers.logical_shards to a multiple of sync.replicas"
        ),
    })
}

/// Returns how a data set is shuffled. Samples that are stored together stay near each other.
pub(crate) fn shuffle(shuffle: bool, dataset: &dyn Dataset) -> Shuffle {
    match dataset.description().locality {
        Some(locality) if shuffle => Shuffle::Blocks {
            block: locality.block_samples,
            window: locality.window_blocks,
        },
        _ => shuffle.into(),
    }
}

/// Returns the identity of a run with a data set.
fn identity_of(config: &RunConfig, train: &dyn Dataset) -> Result<PlanIdentity, TrainError> {
    let mut identity = PlanIdentity::default();
    for (name, value) in config.identity_parts()? {
        identity.set(name, value);
    }
    set_data(&mut identity, train);
    set_order(&mut identity, shuffle(config.train.shuffle, train));
    set_engine(&mut identity, config)?;
    identity.set("ronde", env!("CARGO_PKG_VERSION"));
    Ok(identity)
}

/// Adds the contents of a data set to the identity, and those of each of its files.
fn set_data(identity: &mut PlanIdentity, dataset: &dyn Dataset) {
    let description = dataset.description();
    identity.set("data.identity", description.identity.clone());
    for (number, file) in description.files.iter().enumerate() {
        let name = format!("data.identity.file-{number:02}");
        identity.set_labelled(name, format!("data file {}", file.name), file.hash.clone());
    }
}

/// Adds the engine and the properties of the processor to the identity.
fn set_engine(identity: &mut PlanIdentity, config: &RunConfig) -> Result<(), TrainError> {
    identity.set("engine", ronde_engine::engine_name());
    let threads = config.workers.threads as usize;
    let train = &config.train;
    let products = train
        .engine
        .products(threads, train.precision, train.products);
    if let Some(products) = products.map_err(TrainError::Engine)? {
        identity.set("engine.products", products);
    }
    identity.set("cpu", ronde_engine::cpu_features());
    Ok(())
}

fn set_order(identity: &mut PlanIdentity, shuffle: Shuffle) {
    if let Shuffle::Blocks { block, window } = shuffle {
        let order = format!("windows of {window} blocks of {block} samples");
        identity.set("data.order", order);
    }
}
