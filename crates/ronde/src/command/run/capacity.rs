//! Checks that this host has enough disk space and memory for a run.
//!
//! If the run file leaves the layers open that compute their activations again, a prefix of the chain is chosen: the first layers
//! keep their activations longest, and the first stage of a pipeline keeps those of most shards. The process that starts a run
//! chooses, because workers that divide the parts of a layer must compute it again together.

use std::path::Path;

use ronde::engine::{ModelSize, Precision, Recomputation, StepShape};
use ronde::host;
use ronde_core::WorldSize;
use ronde_core::shards::ShardPlan;
use ronde_data::Dataset;
use ronde_schedule::ShardOrder;
use ronde_tracking::render::bytes;
use ronde_train::config::{RecomputedLayers, SyncSection};
use ronde_train::memory::MemoryEstimate;
use ronde_train::{ModelParts, Plan, PredictedStages, TrainError};

use crate::command::run::layouts::LayoutBuilder;
use ronde_engine::LayerExt;

/// Space for the event file and the other records beside the model.
const RECORD_BYTES: u64 = 64 << 10;
/// The largest bucket of a run with a divided state that sets none.
pub(crate) const DIVIDED_BUCKET_BYTES: u64 = 4 << 20;

/// Refuses a disk without enough space for the trained model.
pub(crate) fn check_disk(folder: &Path, parameters: u64) -> Result<(), String> {
    let needed = parameters.saturating_mul(4).saturating_add(RECORD_BYTES);
    match host::free_disk_bytes(folder) {
        Some(free) if free < needed => Err(format!(
            "not enough space in {}: {} free, about {} needed\n  \
             help: free some space, or choose another folder: --set run.output=FOLDER",
            folder.display(),
            bytes(free),
            bytes(needed)
        )),
        _ => Ok(()),
    }
}

/// Refuses a model that does not fit in memory, before anything is allocated, with a layout that would fit.
pub(crate) fn check_memory(
    plan: &Plan,
    size: &ModelSize,
    train: &dyn Dataset,
    world_size: WorldSize,
) -> Result<(), TrainError> {
    let Some(available_bytes) = host::available_memory_bytes() else {
        return Ok(());
    };
    let workers = worker_estimates(plan, size, train);
    let needed_bytes = needed_together(plan, &workers);
    if needed_bytes <= available_bytes {
        return Ok(());
    }
    let Some(&estimate) = workers.iter().max_by_key(|worker| worker.total()) else {
        return Ok(());
    };
    let local_workers = world_size.get();
    // Replicas of local SGD and senders of compressed gradients hold the whole state.
    let fitting = match plan.rounds {
        _ if plan.config.compression.is_on() => None,
        Some(_) => None,
        None => LayoutBuilder::new(plan, size, train)
            .and_then(|mut builder| builder.fitting(world_size, available_bytes)),
    };
    Err(TrainError::DoesNotFit {
        hint: fitting.unwrap_or_else(|| estimate.hint(available_bytes, local_workers)),
        estimate: Box::new(estimate),
        needed_bytes,
        available_bytes,
        local_workers,
    })
}

/// Chooses the layers whose activations are computed again, if the run file leaves them open: as few of the first ones as `fits`
/// needs, and all but the last one if these are not enough. `names` are those of all layers. Returns their number.
pub(crate) fn choose_recomputation(
    plan: &mut Plan,
    names: &[&str],
    fits: impl Fn(&Plan) -> bool,
) -> usize {
    if !plan.config.train.recompute_activations.is_auto() {
        return 0;
    }
    let mut choose = |count: usize| {
        let layers = Recomputation::first(count, names);
        plan.config.train.recompute_activations = RecomputedLayers::Named(layers);
        fits(plan)
    };
    // Each further layer needs less memory.
    let (mut fewest, mut enough) = (0, names.len().saturating_sub(1));
    while fewest < enough {
        let count = usize::midpoint(fewest, enough);
        match choose(count) {
            true => enough = count,
            false => fewest = count + 1,
        }
    }
    choose(fewest);
    fewest
}

/// Returns the bytes for which layers are chosen: a choice must not depend on an estimate that is a little too low.
pub(crate) fn with_margin(needed_bytes: u64) -> u64 {
    needed_bytes.saturating_add(needed_bytes / 8)
}

/// Chooses the layers whose activations are computed again so that all workers of a run fit into the memory of this host, if the
/// run file leaves them open. Returns a sentence about them if there are any.
pub(crate) fn choose_recomputation_here(
    plan: &mut Plan,
    size: &ModelSize,
    train: &dyn Dataset,
) -> Result<Option<String>, TrainError> {
    if !plan.config.train.recompute_activations.is_auto() {
        return Ok(None);
    }
    let available_bytes = host::available_memory_bytes().unwrap_or(u64::MAX);
    let chain = plan.chain(train)?;
    let names: Vec<&str> = chain.layers().iter().map(|layer| layer.name()).collect();
    let needed = |plan: &Plan| needed_together(plan, &worker_estimates(plan, size, train));
    let chosen = choose_recomputation(plan, &names, |plan| {
        with_margin(needed(plan)) <= available_bytes
    });
    let last = names[chosen.saturating_sub(1)];
    Ok((chosen > 0).then(|| {
        format!(
            "the backward pass computes the activations of {chosen} of {} layers again, up to `{last}`, because {} are available to the workers",
            names.len(),
            bytes(available_bytes)
        )
    }))
}

/// Returns the bytes that all workers of a plan need together.
fn needed_together(plan: &Plan, workers: &[MemoryEstimate]) -> u64 {
    let replicas = match servers(plan) {
        0 => plan.shards.ranks() as u64,
        _ => 1,
    };
    let totals = workers.iter().map(MemoryEstimate::total);
    totals.fold(0, u64::saturating_add).saturating_mul(replicas)
}

/// Returns how many of the workers of a plan serve instead of computing.
fn servers(plan: &Plan) -> u32 {
    let workers = plan.shards.ranks() as u32;
    plan.config.parallel.servers_among(workers)
}

/// Returns the estimated bytes that each worker needs; the most of any worker of a pipeline.
pub(crate) fn memory_per_worker(plan: &Plan, size: &ModelSize, train: &dyn Dataset) -> u64 {
    let workers = worker_estimates(plan, size, train);
    let totals = workers.iter().map(MemoryEstimate::total);
    totals.max().unwrap_or(0)
}

/// Returns the samples of a step and their shards: of one replica, if replicas train alone.
fn computed_by_one(plan: &Plan) -> (u64, ShardPlan) {
    let samples = plan.config.train.global_batch_size;
    let samples = samples.min(plan.batches.samples());
    let parts = plan.rounds.and_then(|rounds| {
        let parts = ShardPlan::new(rounds.parts(), WorldSize::ONE)?;
        Some((samples.div_ceil(rounds.replicas().into()), parts))
    });
    parts.unwrap_or_else(|| (samples, plan.shards.clone()))
}

/// Adds the memory for compression and for rounds of local SGD, if the run has them, to that of one replica.
fn with_rounds(
    replica: MemoryEstimate,
    plan: &Plan,
    train: &dyn Dataset,
    parameters: u64,
) -> MemoryEstimate {
    let workers = plan.shards.computing();
    let replica = match plan.config.compression.senders() {
        Some(senders) => replica.with_compression(parameters, senders, workers),
        None => replica,
    };
    let replica = with_copies(replica, plan, (parameters, workers));
    if plan.rounds.is_none() {
        return replica;
    }
    let names = plan.config.state_names();
    let states = names.len() as u64;
    let with = |vectors| replica.with_rounds(parameters, &plan.shards, vectors);
    match plan.config.sync {
        SyncSection::EveryStep => replica,
        // A server has slots and copies with their states; a worker has a gradient that it pushes.
        SyncSection::ParameterServer { .. } => with((1 + states, 1)),
        // The state before the round, the weights before an update, and those that other workers average with; then the mean of all.
        SyncSection::Gossip { .. } => with((2 + states, 1 + states)),
        SyncSection::SyntheticGradients { .. } => {
            // The state before the round, and the one at its end.
            let own = with((states, 1 + states));
            let samples = plan.config.train.global_batch_size;
            // The stages were checked before.
            let predicted = PredictedStages::planned(plan, train).ok().flatten();
            own.with_predictors(predicted.map_or(0, |stages| stages.predictor_bytes(samples)))
        }
        SyncSection::LocalSgd { .. } => {
            let averaged = names.iter().filter(|name| name.starts_with("inner"));
            let summed = 1 + averaged.count() as u64;
            // The memory of the replicas of a worker, now and after the round under way.
            let kept = plan.config.sync.kept_vectors(&plan.config.optimizer);
            let replicas = plan.shards.shards().div_ceil(workers.max(1));
            with((states + 2 * kept * u64::from(replicas), summed))
        }
    }
}

/// Adds the memory for copies of the state: two, each of the vectors of this worker and of its part of another one's.
fn with_copies(
    replica: MemoryEstimate,
    plan: &Plan,
    (parameters, workers): (u64, u32),
) -> MemoryEstimate {
    let config = &plan.config;
    if config.elastic.copy_steps == 0 || !config.has_distributed_vectors() || workers < 2 {
        return replica;
    }
    let share = |parts: u32| u64::from(parts.div_ceil(workers));
    let senders = config.compression.senders().map_or(0, share);
    let kept = config.sync.kept_vectors(&config.optimizer);
    let of_replicas = kept * config.sync.facts().replicas.map_or(0, share);
    let vectors = 1 + config.state_names().len() as u64 + 2 * (senders + of_replicas);
    replica.with_vectors(parameters, 2 * vectors)
}

/// Returns the floats of the activations of a training step or of an evaluation, whichever needs more.
fn activation_floats(plan: &Plan, train: &dyn Dataset, samples: u64, together: u32) -> u64 {
    let config = &plan.config;
    let step = StepShape {
        sample: &train.description().shape,
        classes: train.description().classes,
        samples: usize::try_from(samples).unwrap_or(usize::MAX),
        shards: together,
        is_by_layer: config.parallel.shard_order() == ShardOrder::ByLayer,
        recomputation: config.train.recompute_activations.layers(),
        precision: config.train.precision,
    };
    // The model was described before.
    let model = &config.model.config;
    let training = model.step_floats(&step).unwrap_or(u64::MAX);
    match plan.evaluates {
        true => training.max(model.evaluation_floats(&step).unwrap_or(u64::MAX)),
        false => training,
    }
}

/// Returns how many logical shards pass through the layers together.
fn shards_together(plan: &Plan, train: &dyn Dataset) -> u32 {
    // The model was described before.
    let chain = plan.chain(train);
    chain.map_or(1, |chain| {
        plan.shards_together(&chain, &train.description().shape)
    })
}

/// Returns the estimated memory of a worker, of each part of the model; with servers, that of all workers.
pub(crate) fn worker_estimates(
    plan: &Plan,
    size: &ModelSize,
    train: &dyn Dataset,
) -> Vec<MemoryEstimate> {
    let config = &plan.config;
    let stored_bytes = train.description().locality.map_or(0, |locality| {
        train.len().saturating_mul(locality.sample_bytes)
    });
    let (batch_samples, shards) = computed_by_one(plan);
    let loader = config.loader.settings(train, 1);
    let of_shard = batch_samples.div_ceil(shards.shards().max(1).into());
    let each = shards.shards().div_ceil(shards.computing().max(1));
    let of_worker = of_shard.saturating_mul(each.into());
    let step_bytes = of_worker.saturating_mul(train.description().decoded_bytes());
    let decoded_bytes = loader.decoded_bytes(step_bytes);
    let copies = match config.train.precision {
        Precision::F32 => 0,
        Precision::Bf16 | Precision::F16 => size.matrix_elements,
    };
    let workers = plan.shards.computing();
    let bucket_bytes = config.comm.bucket_bytes_max.unwrap_or(DIVIDED_BUCKET_BYTES);
    // The parts of a divided model have their second copies.
    let is_whole = !config.parallel.divides_model();
    let is_of_images = train.description().shape.len() == 3;
    let convolved = if is_of_images { size.largest_layer } else { 0 };
    let slice_copies = is_whole.then(|| config.parallel.copies_among(workers));
    let bucket_bytes = size.largest_layer.saturating_mul(4).max(bucket_bytes);
    let whole = MemoryEstimate::data_parallel(
        [size.parameters, copies],
        |samples, together| activation_floats(plan, train, samples, together),
        &config.optimizer,
        batch_samples,
        &shards,
        match config.model.config.runs_shards_together() {
            true => (ShardOrder::LockStep, 1),
            false => (config.parallel.shard_order(), shards_together(plan, train)),
        },
    );
    let zero = config.parallel.zero_level();
    let complete = |estimate: MemoryEstimate| {
        estimate
            .with_model_copies(size.parameters, &config.train)
            .with_checkpoints(
                size.parameters,
                (&config.optimizer, &config.train),
                &config.checkpoint,
                workers,
            )
            .with_loader(loader.memory_bytes, stored_bytes, decoded_bytes)
            .with_kernels(convolved, config.workers.threads, config.train.precision)
    };
    if let servers @ 1.. = servers(plan) {
        let all = plan.shards.ranks() as u32;
        let among = (config.parallel.copies_among(all), servers, all);
        let workers = whole.served(zero, among, bucket_bytes).into_iter();
        return workers.map(complete).collect();
    }
    let among = (slice_copies.unwrap_or(1), workers);
    let whole = complete(whole.divided(zero, among, bucket_bytes));
    let whole = with_rounds(whole, plan, train, size.parameters);
    if !config.parallel.divides_model() {
        return vec![whole];
    }
    // The parts were checked before.
    match ModelParts::memory(plan, train) {
        Ok(parts) => whole.of_parts(&parts),
        Err(_) => vec![whole],
    }
}
