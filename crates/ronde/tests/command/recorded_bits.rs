//! The bits of small models, trained in every way, against recorded ones: a change of the code changes no bit without a word. The
//! hashes of each group are in `tests/bits/GROUP.txt`, in a block for each kind of processor and version of the engine. With
//! `UPDATE_SNAPSHOTS=1`, they are recorded again.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Ended, RONDE, TestFolder, send};

/// Texts, with layers in two parts.
const TEXT: &str = r#"
[run]
name = "text"
output = "out"
[workers]
logical_shards = 6
[data]
source = "text"
context = 8
[model]
kind = "gpt"
layers = 2
width = 16
heads = 4
tensor_parts = 2
[train]
steps = 40
global_batch_size = 12
learning_rate = 0.004
clip_norm = 1.0
[optimizer]
kind = "adamw"
[schedule]
kind = "cosine"
warmup_steps = 4
"#;

/// Images, with running statistics, dropout and a last batch that is smaller.
const IMAGES: &str = r#"
[run]
name = "images"
output = "out"
[workers]
logical_shards = 6
[data]
source = "digits"
[model]
kind = "digits_cnn"
channels = 6
dropout = 0.25
[train]
steps = 40
global_batch_size = 50
learning_rate = 0.01
clip_norm = 1.0
[optimizer]
kind = "adamw"
[schedule]
kind = "cosine"
warmup_steps = 4
"#;

/// A run whose bits are recorded.
struct RecordedRun<'a> {
    name: &'a str,
    file: &'a str,
    /// Overrides of the file, separated by spaces.
    sets: String,
    /// The numbers of workers, which all give the same bits.
    workers: &'a [u32],
}

/// Two and three workers.
const FEW: &[u32] = &[2, 3];

fn text<'a>(name: &'a str, workers: &'a [u32], sets: &str) -> RecordedRun<'a> {
    RecordedRun {
        name,
        file: TEXT,
        sets: sets.to_owned(),
        workers,
    }
}

fn images<'a>(name: &'a str, workers: &'a [u32], sets: &str) -> RecordedRun<'a> {
    RecordedRun {
        name,
        file: IMAGES,
        sets: sets.to_owned(),
        workers,
    }
}

/// Trains a model. With `killed`, that worker is killed after some steps. Returns the hash of the model, and the machine that it
/// belongs to; `None` if the processor lacks instructions that the run needs.
fn train(run: &RecordedRun<'_>, workers: u32, killed: Option<u32>) -> Option<(String, String)> {
    let dir = TestFolder::new();
    dir.write("run.toml", run.file);
    let workers = workers.to_string();
    let mut arguments = vec!["train", "run.toml", "--json", "-n", &workers];
    arguments.extend(run.sets.split_whitespace().flat_map(|set| ["--set", set]));
    arguments.extend(["--set", "run.output=out"]);
    let mut running = dir.start(RONDE, &arguments, &[]);
    if let Some(killed) = killed {
        let started = running.after_steps(5);
        send(started[&killed], Signal::KILL);
    }
    let ended = running.wait();
    if ended.code != 0 && ended.stderr.contains("this processor has no") {
        return None;
    }
    let ended: Ended = ended.expect(0, &[]);
    let model = std::fs::read(dir.path().join("out/model.json")).unwrap();
    let model: Value = serde_json::from_slice(&model).unwrap();
    Some((ended.blake3(), machine(&model)))
}

/// Returns the parts of a model's identity that name the processor and the engine.
fn machine(model: &Value) -> String {
    let parts = model["identity"].as_array().unwrap().iter();
    let named = parts.filter(|part| part[0] == "cpu" || part[0] == "engine");
    let texts: Vec<&str> = named.filter_map(|part| part[1].as_str()).collect();
    texts.join(", ")
}

/// Compares the bits of runs with the recorded ones of the group.
fn compare(group: &str, runs: &[(RecordedRun<'_>, Option<u32>)]) {
    let path = format!("{}/tests/bits/{group}.txt", env!("CARGO_MANIFEST_DIR"));
    let path = PathBuf::from(path);
    let mut found = BTreeMap::new();
    let mut machine = String::new();
    for (run, killed) in runs {
        for &workers in run.workers {
            let Some((bits, trained_on)) = train(run, workers, *killed) else {
                continue;
            };
            machine = trained_on;
            let first = found.entry(run.name).or_insert_with(|| bits.clone());
            assert_eq!(*first, bits, "{} on {workers} workers", run.name);
        }
    }
    let mut bits = String::new();
    for (name, hash) in &found {
        let _ = writeln!(bits, "{name} {hash}");
    }
    let mut recorded = recorded_bits(&path);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        recorded.insert(machine, bits);
        let blocks = recorded
            .iter()
            .map(|(machine, bits)| format!("{machine}\n{bits}"));
        return std::fs::write(path, blocks.collect::<Vec<_>>().join("\n")).unwrap();
    }
    match recorded.get(&machine) {
        Some(expected) => assert_eq!(&bits, expected, "the bits of {group} have changed"),
        None => {
            let processor = |machine: &str| machine.split(", ").next().map(str::to_owned);
            let has_another = |other: &String| processor(other) == processor(&machine);
            assert!(
                !recorded.keys().any(has_another),
                "{machine} has another version of the engine: `cargo xtask hashes --accept` records its bits"
            );
            ronde_testing::skip(&format!("no bits are recorded for {machine}"));
        }
    }
}

/// Returns the recorded bits of a group for each machine.
fn recorded_bits(path: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let blocks = text
        .split("\n\n")
        .filter_map(|block| block.split_once('\n'));
    let ended = |bits: &str| format!("{}\n", bits.trim_end());
    blocks
        .map(|(machine, bits)| (machine.to_owned(), ended(bits)))
        .collect()
}

/// Returns runs without a death.
fn alive<'a, const N: usize>(runs: [RecordedRun<'a>; N]) -> Vec<(RecordedRun<'a>, Option<u32>)> {
    runs.into_iter().map(|run| (run, None)).collect()
}

#[test]
fn layouts_of_texts() {
    let runs = [
        text("data", &[1, 2, 3], ""),
        text("zero_1", FEW, "parallel.zero=1"),
        text("zero_2", FEW, "parallel.zero=2"),
        text("zero_3", FEW, "parallel.zero=3"),
        text("pipeline", FEW, "parallel.pipeline=2"),
        text("tensor", &[2], "parallel.tensor=2"),
        text(
            "pipeline_of_tensor",
            &[4],
            "parallel.pipeline=2 parallel.tensor=2",
        ),
        text("zero_of_tensor", &[4], "parallel.tensor=2 parallel.zero=3"),
        text(
            "zero_of_pipeline",
            &[4],
            "parallel.pipeline=2 parallel.zero=2",
        ),
        text("servers", &[3], "parallel.servers=1"),
        text("tcp", FEW, "comm.transport=tcp"),
    ];
    compare("layouts_of_texts", &alive(runs));
}

#[test]
fn layouts_of_images() {
    let runs = [
        images("data", &[1, 2, 3], ""),
        images("zero_1", FEW, "parallel.zero=1"),
        images("zero_2", FEW, "parallel.zero=2"),
        images("zero_3", FEW, "parallel.zero=3"),
        images("copies", &[4], "parallel.zero=1 parallel.copies=1"),
        images("pipeline", FEW, "parallel.pipeline=2"),
        images("gpipe", &[3], "parallel.pipeline=3 parallel.schedule=gpipe"),
        images(
            "zero_bubble",
            &[3],
            "parallel.pipeline=3 parallel.schedule=zero_bubble",
        ),
        images("servers", FEW, "parallel.servers=1"),
        images("algorithm", &[3], "comm.algorithm=halving_doubling"),
        images("buckets", FEW, "comm.bucket_bytes_max=1024"),
        images("recomputed", FEW, "train.recompute_activations=true"),
    ];
    compare("layouts_of_images", &alive(runs));
}

#[test]
fn kinds_of_synchronisation() {
    let local =
        |more: &str| format!("sync.kind=local_sgd sync.inner_steps=4 sync.replicas=3 {more}");
    let alone = "sync.round_updates=10";
    let runs = [
        images("local_sgd", FEW, &local("")),
        images("local_sgd_average", FEW, &local("sync.inner_state=average")),
        images("local_sgd_keep", FEW, &local("sync.inner_state=keep")),
        images(
            "local_sgd_int8",
            FEW,
            &local("sync.outer_format=int8_blocks"),
        ),
        images(
            "local_sgd_fragments",
            FEW,
            &local("sync.fragments=2 sync.inner_state=keep"),
        ),
        // One worker computes, so that no order of arrival counts.
        images(
            "parameter_server",
            &[2],
            &format!("sync.kind=parameter_server {alone}"),
        ),
        images("gossip", &[1], &format!("sync.kind=gossip {alone}")),
    ];
    compare("kinds_of_synchronisation", &alive(runs));
}

#[test]
fn precisions() {
    let runs = [
        text("text_bf16", FEW, "train.precision=bf16"),
        text("text_f16", FEW, "train.precision=f16"),
        images("images_bf16", FEW, "train.precision=bf16"),
        images("images_f16", FEW, "train.precision=f16"),
        images("split_products", FEW, "train.products=split"),
        images(
            "f16_products",
            FEW,
            "train.products=f16 train.precision=f16",
        ),
    ];
    compare("precisions", &alive(runs));
}

#[test]
fn compressed_gradients() {
    let codecs = ["bf16", "f16", "int8_blocks", "top_k", "power_sgd"];
    let runs = codecs.map(|codec| {
        let sets = format!("compression.codec={codec} compression.senders=3");
        images(codec, FEW, &sets)
    });
    compare("compressed_gradients", &alive(runs));
}

#[test]
fn optimizers_and_averages() {
    let runs = [
        images("sgd", &[2], "optimizer.kind=sgd optimizer.momentum=0.9"),
        images("adam", &[2], "optimizer.kind=adam"),
        images("lars", &[2], "optimizer.kind=lars"),
        images("lamb", &[2], "optimizer.kind=lamb"),
        images("average", FEW, "train.average_decay=0.9"),
        images(
            "best",
            FEW,
            "train.keep_best=accuracy train.evaluate_every_epochs=1",
        ),
    ];
    compare("optimizers_and_averages", &alive(runs));
}

/// Returns a run of an example for a few steps.
fn example<'a>(name: &'a str, file: &'a str, sets: &str) -> RecordedRun<'a> {
    RecordedRun {
        name,
        file,
        sets: sets.to_owned(),
        workers: &[2],
    }
}

#[test]
fn kinds_of_models() {
    let folder = format!("{}/../../examples", env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("{folder}/{name}.toml")).unwrap();
        // The length is given in steps.
        let lines = text.lines().filter(|line| !line.starts_with("epochs"));
        let text = lines.collect::<Vec<_>>().join("\n");
        text.replace("\"data/", &format!("\"{folder}/data/"))
    };
    let names = [
        "bert",
        "detector",
        "inception_v3",
        "kmeans",
        "linear_regression",
        "logistic_regression",
        "matrix_factorisation",
        "mlp",
        "synthetic_gradients",
        "transformer",
        "unet",
    ];
    let files = names.map(read);
    let few = "train.steps=4";
    let runs = names.iter().zip(&files);
    let runs = runs.map(|(name, file)| (example(name, file, few), None));
    let mut runs: Vec<_> = runs.collect();
    // They have the bits of `mlp`.
    let mlp = names.iter().position(|name| *name == "mlp").unwrap();
    for (name, together) in [("mlp_one_by_one", 1), ("mlp_three_together", 3)] {
        let sets = format!("{few} train.shards_together={together}");
        runs.push((example(name, &files[mlp], &sets), None));
    }
    compare("kinds_of_models", &runs);
}

#[test]
fn runs_with_a_death() {
    let long = |layout: &str| format!("train.steps=400 {layout}");
    let runs = [
        (images("data", &[3], &long("")), Some(1)),
        (images("zero_3", &[3], &long("parallel.zero=3")), Some(0)),
        (
            text("pipeline", &[4], &long("parallel.pipeline=2")),
            Some(2),
        ),
        (text("tensor", &[2], &long("parallel.tensor=2")), Some(1)),
    ];
    compare("runs_with_a_death", &runs);
}
