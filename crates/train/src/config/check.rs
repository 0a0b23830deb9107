//! Checks a run for problems that its types cannot exclude. The functions are pure and return all problems at once.

use std::path::Path;

use ronde_core::WorldSize;
use ronde_core::shards::ShardPlan;
use ronde_data::{DataConfig, Dataset};
use ronde_engine::{ModelConfig, OptimizerConfig, RateScaling, ScheduleConfig};
use serde::Serialize;
use toml::{Table, Value};

use super::{
    CommSection, ConfigProblem, LoaderSection, RunConfig, RunSection, TrainSection, WorkersSection,
};

/// The smallest useful bucket. In smaller ones the message headers exceed the gradients.
pub const BUCKET_BYTES_MIN: u64 = 1024;

/// The largest number of logical shards.
pub const LOGICAL_SHARDS_MAX: u32 = 65_536;

/// The longest time limit that can be set, in seconds: one day.
pub const TIMEOUT_S_MAX: f64 = 86_400.0;

/// The shortest silence after which a worker can be considered lost. A busy machine causes shorter ones.
const SILENCE_S_MIN: f64 = 0.2;
/// The shortest lease. With a shorter one, a coordinator loses its lease when the disk is briefly busy.
const LEASE_S_MIN: f64 = 0.5;

/// The largest number of loader threads of a worker.
const LOADER_THREADS_MAX: usize = 1024;

/// The largest number of channels of a convolution.
const CHANNELS_MAX: usize = 65_536;

/// The largest number of units of a layer.
const WIDTH_MAX: usize = 16_777_216;

/// The longest name of a run, in characters.
const NAME_LETTERS_MAX: usize = 100;

/// Returns all problems of a run that can be found without reading data.
#[must_use]
pub fn run(config: &RunConfig) -> Vec<ConfigProblem> {
    let mut problems = Vec::new();
    run_section(&config.run, &mut problems);
    workers(&config.workers, &mut problems);
    data(&config.data, &mut problems);
    train(&config.train, &mut problems);
    rate_scaling(&config.train, &mut problems);
    batch(config, &mut problems);
    model(&config.model, &mut problems);
    section_numbers("model", &config.model, &mut problems);
    optimizer(&config.optimizer, &mut problems);
    section_numbers("schedule", &config.schedule, &mut problems);
    warmup(config, &mut problems);
    comm(&config.comm, &mut problems);
    elastic(config, &mut problems);
    loader(&config.loader, &mut problems);
    at_least_one(
        "events.every_steps",
        config.events.every_steps,
        &mut problems,
    );
    super::checkpoint::check(&config.checkpoint, &mut problems);
    for group in &config.train.parameter_groups {
        if let Err(message) = group.check() {
            let message = format!("parameter group `{}`: {message}", group.tensors);
            problems.push(ConfigProblem::error("train.parameter_groups", message));
        }
    }
    let check = &config.check;
    at_least_one(
        "check.weight_hash_parts",
        check.weight_hash_parts.into(),
        &mut problems,
    );
    at_least_one(
        "check.weight_hash_full_every",
        check.weight_hash_full_every,
        &mut problems,
    );
    problems
}

/// Returns a problem for each data file for which `exists` returns false. Relative paths are resolved against
/// `base`.
#[must_use]
pub fn files(data: &DataConfig, base: &Path, exists: &dyn Fn(&Path) -> bool) -> Vec<ConfigProblem> {
    data.files()
        .into_iter()
        .map(|(key, path)| (key, base.join(path)))
        .filter(|(_, path)| !exists(path))
        .map(|(key, path)| {
            let message = format!("no such file: {}", path.display());
            let hint = "relative paths are resolved against the folder of the run file";
            ConfigProblem::error(format!("data.{key}"), message).hint(hint)
        })
        .collect()
}

/// Returns a problem if a sequence model does not predict as many targets as the samples of the data set have.
#[must_use]
pub fn targets(model: &ModelConfig, dataset: &dyn Dataset) -> Vec<ConfigProblem> {
    let ModelConfig::Transformer { source, .. } = model else {
        return Vec::new();
    };
    let (shape, expected) = (dataset.sample_shape(), dataset.targets_per_sample());
    if model.targets_per_sample(shape) == expected {
        return Vec::new();
    }
    let tokens: usize = shape.iter().product();
    let message = format!(
        "`model.source` is {source}, but samples of this data set have {tokens} tokens and {expected} targets"
    );
    let hint = match tokens.checked_sub(expected) {
        Some(right) if right > 0 => format!("set `model.source` to {right}"),
        _ => "use a data set of source and target texts, such as number_words".to_owned(),
    };
    vec![ConfigProblem::error("model.source", message).hint(hint)]
}

fn at_least_one(path: &str, value: u64, problems: &mut Vec<ConfigProblem>) {
    if value == 0 {
        problems.push(ConfigProblem::error(
            path,
            format!("`{path}` must be at least 1"),
        ));
    }
}

fn run_section(run: &RunSection, problems: &mut Vec<ConfigProblem>) {
    let name = &run.name;
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !starts || name.len() > NAME_LETTERS_MAX || !name.chars().all(letters) {
        let message = format!("invalid `run.name` {name:?}: it is also the name of a folder");
        let hint = format!(
            "use 1 to {NAME_LETTERS_MAX} letters, digits, `-`, `_` and `.`, starting with a letter or digit"
        );
        problems.push(ConfigProblem::error("run.name", message).hint(hint));
    }
    if run
        .output
        .as_deref()
        .is_some_and(|folder| folder.as_os_str().is_empty())
    {
        let hint = "remove it to use runs/<name>";
        problems.push(ConfigProblem::error("run.output", "`run.output` is empty").hint(hint));
    }
    if i64::try_from(run.seed).is_err() {
        let message = format!(
            "`run.seed` is {}, but must be at most {}",
            run.seed,
            i64::MAX
        );
        problems.push(ConfigProblem::error("run.seed", message));
    }
}

fn workers(workers: &WorkersSection, problems: &mut Vec<ConfigProblem>) {
    let WorkersSection {
        count,
        logical_shards,
        ..
    } = *workers;
    at_least_one("workers.count", count.into(), problems);
    at_least_one("workers.logical_shards", logical_shards.into(), problems);
    if logical_shards > LOGICAL_SHARDS_MAX {
        let message = format!(
            "`workers.logical_shards` is {logical_shards}, but must be at most {LOGICAL_SHARDS_MAX}"
        );
        problems.push(ConfigProblem::error("workers.logical_shards", message));
    }
    if count == 0 || logical_shards == 0 {
        return;
    }
    let plan = WorldSize::new(count).and_then(|size| ShardPlan::new(logical_shards, size));
    let Some(plan) = plan else {
        let message = format!(
            "{logical_shards} logical shards are fewer than {count} workers, so some workers would be idle"
        );
        let hint = format!("set `workers.logical_shards` to {count} or more, or use fewer workers");
        problems.push(ConfigProblem::error("workers.count", message).hint(hint));
        return;
    };
    if plan.efficiency() < 1.0 {
        let message = format!(
            "{count} workers share {logical_shards} logical shards unevenly: they are busy {:.0} % of the time",
            100.0 * plan.efficiency()
        );
        // With a power of two for each worker, each sends a single subtree, which is the fewest bytes.
        let multiple =
            u64::from(logical_shards.div_ceil(count)).next_power_of_two() * u64::from(count);
        let hint = format!(
            "`workers.logical_shards` = {multiple} keeps all workers busy, but changes the trained bits"
        );
        problems.push(ConfigProblem::notice("workers.count", message).hint(hint));
    }
}

fn train(train: &TrainSection, problems: &mut Vec<ConfigProblem>) {
    match (train.epochs, train.steps) {
        (Some(epochs), Some(steps)) => {
            let message =
                format!("both `train.epochs` = {epochs} and `train.steps` = {steps} are given");
            problems.push(ConfigProblem::error("train.steps", message).hint("remove one of them"));
        }
        (None, None) => {
            let message = "neither `train.epochs` nor `train.steps` is given";
            let hint = "add for example `epochs = 10` to [train]";
            problems.push(ConfigProblem::error("train.epochs", message).hint(hint));
        }
        _ => {}
    }
    at_least_one("train.epochs", train.epochs.unwrap_or(1), problems);
    at_least_one("train.steps", train.steps.unwrap_or(1), problems);
    at_least_one("train.global_batch_size", train.global_batch_size, problems);
    let every = train.evaluate_every_epochs.unwrap_or(1);
    at_least_one("train.evaluate_every_epochs", every, problems);
    not_negative("train.learning_rate", train.learning_rate, problems);
    if let Some(clip) = train
        .clip_norm
        .filter(|clip| !(clip.is_finite() && *clip > 0.0))
    {
        let message = format!("`train.clip_norm` is {clip}, but must be above 0");
        let hint = "remove it to train without clipping";
        problems.push(ConfigProblem::error("train.clip_norm", message).hint(hint));
    }
}

/// Checks that a scaled learning rate has a reference batch size, and an unscaled one has none.
fn rate_scaling(train: &TrainSection, problems: &mut Vec<ConfigProblem>) {
    let path = "train.learning_rate_batch_size";
    match (train.learning_rate_scaling, train.learning_rate_batch_size) {
        (RateScaling::None, Some(_)) => {
            let message = format!("`{path}` is set, but the learning rate is not scaled");
            let hint = "add `learning_rate_scaling = \"linear\"` or \"square_root\", or remove it";
            problems.push(ConfigProblem::error(path, message).hint(hint));
        }
        (RateScaling::Linear | RateScaling::SquareRoot, None) => {
            let message = format!("a scaled learning rate needs `{path}`");
            let hint = "add the global batch size for which `train.learning_rate` was chosen";
            problems.push(ConfigProblem::error("train.learning_rate_scaling", message).hint(hint));
        }
        (_, size) => at_least_one(path, size.unwrap_or(1), problems),
    }
}

fn optimizer(optimizer: &OptimizerConfig, problems: &mut Vec<ConfigProblem>) {
    // `section_numbers` reports each number that is out of range.
    let before = problems.len();
    section_numbers("optimizer", optimizer, problems);
    if problems.len() == before
        && let Err(problem) = optimizer.check()
    {
        problems.push(ConfigProblem::error(
            "optimizer",
            format!("[optimizer]: {problem}"),
        ));
    }
}

fn batch(config: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    let (batch, shards) = (
        config.train.global_batch_size,
        u64::from(config.workers.logical_shards),
    );
    if batch > 0 && batch < shards {
        let message = format!(
            "a global batch of {batch} leaves {} of {shards} logical shards empty in every step",
            shards - batch
        );
        let hint = "this is allowed, but workers with empty shards wait";
        problems.push(ConfigProblem::notice("train.global_batch_size", message).hint(hint));
    }
}

fn warmup(config: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    let warmup_steps = config.schedule.warmup_steps();
    if let ScheduleConfig::Step { every_steps, .. } = config.schedule {
        at_least_one("schedule.every_steps", every_steps, problems);
    }
    if let (Some(steps), None) = (config.train.steps, config.train.epochs)
        && warmup_steps > steps
    {
        let message =
            format!("the warmup takes {warmup_steps} steps, but the run has only {steps}");
        problems.push(ConfigProblem::notice("schedule.warmup_steps", message));
    }
}

fn not_negative(path: &str, value: f64, problems: &mut Vec<ConfigProblem>) {
    if !(value.is_finite() && value >= 0.0) {
        let message = format!("`{path}` is {value}, but must be a finite number of 0 or more");
        problems.push(ConfigProblem::error(path, message));
    }
}

fn data(data: &DataConfig, problems: &mut Vec<ConfigProblem>) {
    let (shape, classes) = match data {
        DataConfig::CsvValues { shape, .. } => (shape, 1),
        DataConfig::SyntheticText {
            samples,
            context,
            tokens,
            ..
        } => {
            at_least_one("data.samples", *samples, problems);
            at_least_one("data.context", *context as u64, problems);
            return at_least_one("data.tokens", u64::from(*tokens), problems);
        }
        DataConfig::Text { context, .. } => {
            return at_least_one("data.context", *context as u64, problems);
        }
        DataConfig::NumberWords { samples, .. } => {
            return at_least_one("data.samples", *samples, problems);
        }
        DataConfig::Csv { shape, classes, .. } => (shape, *classes),
        DataConfig::SyntheticImages {
            samples,
            shape,
            classes,
            ..
        } => {
            at_least_one("data.samples", *samples, problems);
            (shape, *classes)
        }
        DataConfig::Records(records) => {
            problems.extend(records.problems().into_iter().map(|(key, problem)| {
                let path = format!("data.{key}");
                ConfigProblem::error(path.clone(), format!("`{path}`: {problem}"))
            }));
            return;
        }
        _ => return,
    };
    at_least_one("data.classes", classes.into(), problems);
    if shape.contains(&0) {
        let message = format!("`data.shape` is {shape:?}, but all dimensions must be at least 1");
        problems.push(ConfigProblem::error("data.shape", message));
    }
    if let DataConfig::Csv {
        scale: Some(scale), ..
    } = data
        && !scale.is_normal()
    {
        let message = format!("`data.scale` is {scale}, but must be a finite number other than 0");
        problems.push(ConfigProblem::error("data.scale", message));
    }
}

fn model(model: &ModelConfig, problems: &mut Vec<ConfigProblem>) {
    let (path, widths, most) = match model {
        ModelConfig::DigitsCnn { channels, .. } => (
            "model.channels",
            std::slice::from_ref(channels),
            CHANNELS_MAX,
        ),
        ModelConfig::Mlp { hidden } => ("model.hidden", hidden.as_slice(), WIDTH_MAX),
        _ => return,
    };
    if let Some(width) = widths.iter().find(|width| !(1..=most).contains(*width)) {
        let message = format!("`{path}` is {width}, but must be 1 to {most}");
        problems.push(ConfigProblem::error(path, message));
    }
}

fn comm(comm: &CommSection, problems: &mut Vec<ConfigProblem>) {
    if let Some(bytes) = comm
        .bucket_bytes_max
        .filter(|&bytes| bytes < BUCKET_BYTES_MIN)
    {
        let message =
            format!("`comm.bucket_bytes_max` is {bytes}, but must be at least {BUCKET_BYTES_MIN}");
        let hint = "remove it to let the first steps choose a size";
        problems.push(ConfigProblem::error("comm.bucket_bytes_max", message).hint(hint));
    }
    let timeout = comm.timeout_s;
    if !(timeout > 0.0 && timeout <= TIMEOUT_S_MAX) {
        let message = format!(
            "`comm.timeout_s` is {timeout}, but must be above 0 and at most {TIMEOUT_S_MAX}"
        );
        problems.push(ConfigProblem::error("comm.timeout_s", message));
    }
}

fn loader(loader: &LoaderSection, problems: &mut Vec<ConfigProblem>) {
    at_least_one("loader.memory_mib", loader.memory_mib, problems);
    let Some(threads) = loader.threads else {
        return;
    };
    at_least_one("loader.threads", threads as u64, problems);
    if threads > LOADER_THREADS_MAX {
        let message =
            format!("`loader.threads` is {threads}, but must be at most {LOADER_THREADS_MAX}");
        problems.push(ConfigProblem::error("loader.threads", message));
    }
}

fn elastic(config: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    let elastic = &config.elastic;
    at_least_one("elastic.min_workers", elastic.min_workers.into(), problems);
    let count = config.workers.count;
    if elastic.min_workers > count {
        let message = format!(
            "`elastic.min_workers` is {}, but the run has {count} worker{}",
            elastic.min_workers,
            if count == 1 { "" } else { "s" }
        );
        problems.push(ConfigProblem::error("elastic.min_workers", message));
    }
    let most = config.workers.logical_shards;
    if elastic.max_workers > most || (1..count).contains(&elastic.max_workers) {
        let message = format!(
            "`elastic.max_workers` is {}, but must be 0, or between {count} (workers.count) and {most} (workers.logical_shards)",
            elastic.max_workers,
        );
        problems.push(ConfigProblem::error("elastic.max_workers", message));
    }
    for (path, value, least) in [
        ("elastic.silence_s", elastic.silence_s, SILENCE_S_MIN),
        ("elastic.lease_s", elastic.lease_s, LEASE_S_MIN),
        ("elastic.restart_window_s", elastic.restart_window_s, 0.0),
        ("elastic.wait_s", elastic.wait_s, 0.0),
    ] {
        if !(value >= least && value <= TIMEOUT_S_MAX) {
            let message =
                format!("`{path}` is {value}, but must be {least} to {TIMEOUT_S_MAX} seconds");
            problems.push(ConfigProblem::error(path, message));
        }
    }
}

/// Checks the numbers of a section of any kind by their names: probabilities and decay rates must be in
/// `[0, 1)`, all other numbers finite and not negative.
fn section_numbers(section: &str, config: &impl Serialize, problems: &mut Vec<ConfigProblem>) {
    match Table::try_from(config) {
        Ok(table) => table_numbers(section, &table, problems),
        Err(cause) => problems.push(ConfigProblem::error(
            section,
            format!("[{section}]: {cause}"),
        )),
    }
}

fn table_numbers(prefix: &str, table: &Table, problems: &mut Vec<ConfigProblem>) {
    for (key, value) in table {
        let path = super::text::join(prefix, key);
        match value {
            Value::Table(inner) => table_numbers(&path, inner, problems),
            Value::Array(values) => {
                for value in values.iter().filter_map(Value::as_float) {
                    number(key, &path, value, problems);
                }
            }
            Value::Float(value) => number(key, &path, *value, problems),
            _ => {}
        }
    }
}

fn number(key: &str, path: &str, value: f64, problems: &mut Vec<ConfigProblem>) {
    let is_fraction = ["dropout", "momentum", "beta"]
        .iter()
        .any(|word| key.contains(word));
    if is_fraction && !(0.0..1.0).contains(&value) {
        let message = format!("`{path}` is {value}, but must be in [0, 1)");
        problems.push(ConfigProblem::error(path, message));
    } else if !(value.is_finite() && value >= 0.0) {
        let message = format!("`{path}` is {value}, but must be a finite number of 0 or more");
        problems.push(ConfigProblem::error(path, message));
    }
}
