//! Checks a run for problems that its types cannot exclude: the sections of the data, the model and the optimizer, and
//! values that depend on each other. The other sections check themselves. The functions are pure and return all
//! problems at once.

use std::path::Path;

use ronde_data::{DataConfig, Dataset, Targets};
use ronde_engine::{ModelConfig, OptimizerConfig, Precision, ScheduleConfig};
use serde::Serialize;
use toml::{Table, Value};

use super::sections::{ShardsTogether, at_least_one};
use super::{ConfigProblem, RunConfig};

/// The largest number of channels of a convolution.
const CHANNELS_MAX: usize = 65_536;

/// The largest number of units of a layer.
const WIDTH_MAX: usize = 16_777_216;

/// Returns all problems of a run that can be found without reading data.
#[must_use]
pub fn run(config: &RunConfig) -> Vec<ConfigProblem> {
    let mut problems = Vec::new();
    config.run.check(&mut problems);
    let is_local = config.sync.facts().replicas.is_some() || config.compression.is_on();
    config
        .workers
        .check(&config.parallel, is_local, &mut problems);
    data(&config.data, &mut problems);
    config.train.check(&mut problems);
    batch(config, &mut problems);
    model(&config.model.config, &mut problems);
    config.model.start.check(&mut problems);
    precision_of_clusters(config, &mut problems);
    masked_letters(config, &mut problems);
    rows_of_ratings(config, &mut problems);
    section_numbers("model", &config.model, &mut problems);
    optimizer(&config.optimizer, &mut problems);
    section_numbers("schedule", &config.schedule, &mut problems);
    warmup(config, &mut problems);
    config.comm.check(&mut problems);
    config.parallel.check(&mut problems);
    section_numbers("sync", &config.sync, &mut problems);
    config.sync.check(config, &mut problems);
    section_numbers("compression", &config.compression, &mut problems);
    config.compression.check(config, &mut problems);
    let limit = match config.parts_limit() {
        (_, _, "workers.logical_shards") if config.parallel.divides_model() => {
            "workers.logical_shards x parallel.pipeline x parallel.tensor"
        }
        (_, _, "workers.logical_shards") if config.parallel.servers > 0 => {
            "workers.logical_shards + parallel.servers"
        }
        (_, _, key) => key,
    };
    let most = (config.workers_max(), limit);
    config
        .elastic
        .check(config.workers.count, most, &mut problems);
    if config.elastic.copy_steps > 0 && !config.has_distributed_vectors() {
        let message = "`elastic.copy_steps` has no effect: no part of the state is on one worker only by its nature";
        let hint = "leave it out; `parallel.copies` sets how many workers hold each slice of a divided state";
        problems.push(ConfigProblem::notice("elastic.copy_steps", message).hint(hint));
    }
    config.loader.check(&mut problems);
    config.events.check(&mut problems);
    config.track.check(&mut problems);
    config.checkpoint.check(&mut problems);
    config.job.check(&mut problems);
    config.check.check(&mut problems);
    problems
}

/// Returns a problem for each data file for which `exists` returns false. Relative paths are resolved against
/// `base`.
#[must_use]
pub fn files(data: &DataConfig, base: &Path, exists: &dyn Fn(&Path) -> bool) -> Vec<ConfigProblem> {
    let missing = |(key, path): (&str, &Path)| {
        // The address is not repeated: it may contain a password.
        let (message, hint) = if path.to_string_lossy().contains("://") {
            (
                "this source reads files, but its value is an address".to_owned(),
                "`source = \"records\"` reads from web servers and object storage",
            )
        } else {
            let path = base.join(path);
            if exists(&path) {
                return None;
            }
            (
                format!("no such file: {}", path.display()),
                "relative paths are resolved against the folder of the run file",
            )
        };
        Some(ConfigProblem::error(format!("data.{key}"), message).hint(hint))
    };
    data.files().into_iter().filter_map(missing).collect()
}

/// Returns a problem if a model needs more samples than the data set has, or does not predict as many targets as they have.
#[must_use]
pub fn samples(model: &ModelConfig, dataset: &dyn Dataset) -> Vec<ConfigProblem> {
    if let ModelConfig::KMeans { clusters } = model {
        return clusters_problem(*clusters, dataset.len())
            .into_iter()
            .collect();
    }
    if !model.uses_targets() {
        return Vec::new();
    }
    let description = dataset.description();
    let (shape, expected) = (&description.shape, description.targets_per_sample);
    if description.targets == Targets::Boxes || matches!(model, ModelConfig::Detector { .. }) {
        return boxes(model, description.targets).into_iter().collect();
    }
    // A model of whole samples predicts one class, or all values.
    let predicted = match (model.targets_per_sample(shape), description.targets) {
        (1, Targets::Values) => description.classes as usize,
        (predicted, _) => predicted,
    };
    if predicted == expected {
        return Vec::new();
    }
    let ModelConfig::Transformer { source, .. } = model else {
        let kind = model.kind();
        let message = format!(
            "the model `{kind}` predicts {predicted} targets of a sample of shape {shape:?}, but this data set has {expected}"
        );
        let hint = match model {
            ModelConfig::UNet { .. } => {
                "use a data set with a mask for each pixel, such as synthetic_shapes"
            }
            ModelConfig::Gpt { .. } | ModelConfig::Bert { .. } => {
                "use a data set with a target for each position, such as text"
            }
            _ => {
                "use a model that predicts a target for each position or pixel, such as gpt or unet"
            }
        };
        return vec![ConfigProblem::error("model.kind", message).hint(hint)];
    };
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

/// Returns a problem if there are more clusters than samples to choose their initial centres from.
fn clusters_problem(clusters: usize, samples: u64) -> Option<ConfigProblem> {
    if clusters as u64 <= samples {
        return None;
    }
    let message = format!(
        "`model.clusters` is {clusters}, but the data set has {samples} samples: each cluster starts at another one"
    );
    let hint = format!("set `model.clusters` to {samples} or less");
    Some(ConfigProblem::error("model.clusters", message).hint(hint))
}

/// Returns a problem if only one of a model and a data set has boxes.
fn boxes(model: &ModelConfig, targets: Targets) -> Option<ConfigProblem> {
    let kind = model.kind();
    let (message, hint) = match (model, targets) {
        (ModelConfig::Detector { .. }, Targets::Boxes) => return None,
        (ModelConfig::Detector { .. }, _) => (
            format!("the model `{kind}` predicts boxes, but this data set has none"),
            "use a data set with boxes, such as synthetic_objects",
        ),
        _ => (
            format!("the model `{kind}` predicts no boxes, which are the targets of this data set"),
            "use the model detector",
        ),
    };
    Some(ConfigProblem::error("model.kind", message).hint(hint))
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
    if let ShardsTogether::Count(count) = config.train.shards_together
        && u64::from(count.get()) > shards
    {
        let message =
            format!("`train.shards_together` is {count}, but there are {shards} logical shards");
        let hint = "write at most `workers.logical_shards`, or leave the key out";
        problems.push(ConfigProblem::error("train.shards_together", message).hint(hint));
    }
}

fn warmup(config: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    let warmup_steps = config.schedule.warmup_steps();
    if let ScheduleConfig::Step { every_steps, .. } = config.schedule {
        at_least_one("schedule.every_steps", every_steps, problems);
    }
    if let Err(message) = config.schedule.check() {
        problems.push(ConfigProblem::error("schedule", message));
    }
    if let (Some(steps), None) = (config.train.steps, config.train.epochs)
        && warmup_steps > steps
    {
        let message =
            format!("the warmup takes {warmup_steps} steps, but the run has only {steps}");
        problems.push(ConfigProblem::notice("schedule.warmup_steps", message));
    }
}

fn data(data: &DataConfig, problems: &mut Vec<ConfigProblem>) {
    problems.extend(data.problems().into_iter().map(|(key, problem)| {
        let path = format!("data.{key}");
        ConfigProblem::error(path.clone(), format!("`{path}`: {problem}"))
    }));
}

fn model(model: &ModelConfig, problems: &mut Vec<ConfigProblem>) {
    let (path, widths, most) = match model {
        ModelConfig::DigitsCnn { channels, .. } => (
            "model.channels",
            std::slice::from_ref(channels),
            CHANNELS_MAX,
        ),
        ModelConfig::Mlp { hidden, .. } => ("model.hidden", hidden.as_slice(), WIDTH_MAX),
        ModelConfig::KMeans { clusters } => {
            ("model.clusters", std::slice::from_ref(clusters), WIDTH_MAX)
        }
        _ => return,
    };
    if let Some(width) = widths.iter().find(|width| !(1..=most).contains(*width)) {
        let message = format!("`{path}` is {width}, but must be 1 to {most}");
        problems.push(ConfigProblem::error(path, message));
    }
}

/// Refuses rounded distances: the nearest centre of a sample would differ between the loss and the counts.
fn precision_of_clusters(config: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    let is_short = config.train.precision != Precision::F32;
    if is_short && matches!(config.model.config, ModelConfig::KMeans { .. }) {
        let message = "the model `kmeans` computes in f32 only";
        let hint = "leave `train.precision` out";
        problems.push(ConfigProblem::error("train.precision", message).hint(hint));
    }
}

/// Refuses an encoder that reads the letters that it should predict, and a decoder of letters that are hidden.
fn masked_letters(config: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    let DataConfig::Text { masked, .. } = config.data else {
        return;
    };
    let (message, hint) = match (&config.model.config, masked) {
        (ModelConfig::Bert { .. }, None) => (
            "the model `bert` needs `data.masked`: it reads all letters, so it would copy the next ones",
            "set `data.masked = 0.15`, or use the model gpt to predict the next letters",
        ),
        (ModelConfig::Gpt { .. }, Some(_)) => (
            "the model `gpt` does not accept `data.masked`: it predicts the next letters, not hidden ones",
            "remove `data.masked`, or use the model bert to predict hidden letters",
        ),
        _ => return,
    };
    problems.push(ConfigProblem::error("data.masked", message).hint(hint));
}

/// Refuses a factorisation with fewer users or items than the synthetic ratings have.
fn rows_of_ratings(config: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    let (DataConfig::SyntheticRatings(data), ModelConfig::MatrixFactorisation { users, items, .. }) =
        (&config.data, &config.model.config)
    else {
        return;
    };
    for (name, rows, found) in [("users", *users, data.users), ("items", *items, data.items)] {
        if rows < found as usize {
            let path = format!("model.{name}");
            let message = format!("`{path}` is {rows}, but the data has {found} {name}");
            let hint = format!("set `{path}` to {found} or more");
            problems.push(ConfigProblem::error(path, message).hint(hint));
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

#[cfg(test)]
mod tests {
    use ronde_data::{OpenContext, open};

    use super::*;

    #[test]
    fn clusters_need_as_many_samples() {
        let split = open(&DataConfig::default(), &OpenContext::new(Path::new("."), 1)).unwrap();
        let found = |clusters| samples(&ModelConfig::KMeans { clusters }, &*split.train);
        assert!(found(1437).is_empty());
        let problems = found(1438);
        let [problem] = &problems[..] else {
            panic!("{problems:?}");
        };
        assert_eq!(problem.path, "model.clusters");
        assert!(problem.message.contains("1437 samples"), "{problem:?}");
    }

    #[test]
    fn only_a_detector_fits_boxes() {
        let objects = "source = 'synthetic_objects'\nsamples = 2\nside = 16";
        let shapes = "source = 'synthetic_shapes'\nsamples = 2\nside = 16";
        for (data, model, expected) in [
            (objects, "detector", None),
            (objects, "unet", Some("predicts no boxes")),
            (objects, "linear", Some("predicts no boxes")),
            (shapes, "detector", Some("this data set has none")),
            (shapes, "unet", None),
        ] {
            let data: DataConfig = toml::from_str(data).unwrap();
            let split = open(&data, &OpenContext::new(Path::new("."), 1)).unwrap();
            let config: ModelConfig = toml::from_str(&format!("kind = '{model}'")).unwrap();
            let found = samples(&config, &*split.train);
            let messages: Vec<&str> = found.iter().map(|found| found.message.as_str()).collect();
            match expected {
                None => assert!(messages.is_empty(), "{model}: {messages:?}"),
                Some(words) => assert!(messages[0].contains(words), "{model}: {messages:?}"),
            }
        }
    }
}
