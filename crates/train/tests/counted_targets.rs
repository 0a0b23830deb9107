//! Texts of different lengths, also a shard and a whole batch without a counted target: the weights are those of a loop in
//! PyTorch whose loss is a mean over the counted targets of the whole batch (`pytorch/counted_targets.py`), with the same bits on
//! any number of ranks and in every layout.

#![expect(clippy::unwrap_used, reason = "a test may fail here")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ronde_comm::ProcessGroup;
use ronde_comm::testing::spawn_ranks;
use ronde_core::layout::{Role, TensorEntry};
use ronde_core::{Collectives, Epoch, Event, SkippedUpdate, Step, Tracker, WorldSize};
use ronde_data::decode::DecodeScratch;
use ronde_data::{
    DataError, Dataset, DatasetDescription, FetchedSamples, IGNORED, MemoryDataset, Split,
};
use ronde_engine::{Chain, LayerExt};
use ronde_train::config::{Document, Override};
use ronde_train::{JobGroup, Plan, RunConfig, TrainError, Training};
use serde::Deserialize;

const LIMIT: Duration = Duration::from_secs(120);

const STEPS: usize = 20;
const BATCH: usize = 10;
const TOKENS: usize = 512;
const CLASSES: u32 = 23;
/// The step whose batch has no counted target.
const WITHOUT_TARGETS: usize = 7;

const RUN: &str = r#"
[data]
source = "text"
context = 512
[model]
kind = "gpt"
layers = 2
width = 16
heads = 2
[workers]
logical_shards = 5
[train]
steps = 20
global_batch_size = 10
shuffle = false
learning_rate = 0.2
clip_norm = 0.5
[optimizer]
kind = "sgd"
momentum = 0.9
"#;

const ADAM: &[&str] = &[
    "optimizer={kind = \"adam\", epsilon = 0.001}",
    "train.learning_rate=0.003",
];

/// The numbers in `[-1, 1)` that the script generates as well: a hash of a name and the index.
fn hashed(name: &str, count: usize) -> Vec<f32> {
    let step = |seed: u32, byte: u8| (seed ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let seed = name.bytes().fold(0x811C_9DC5, step);
    let one = |index: u32| {
        let mut x = index.wrapping_mul(0x9E37_79B1).wrapping_add(seed);
        x ^= x >> 16;
        x = x.wrapping_mul(0x85EB_CA6B);
        x ^= x >> 13;
        x = x.wrapping_mul(0xC2B2_AE35);
        x ^= x >> 16;
        (f64::from(x >> 8) / f64::from(1 << 23) - 1.0) as f32
    };
    (0..count as u32).map(one).collect()
}

/// Returns whole numbers below a limit.
fn numbers(name: &str, count: usize, below: u32) -> Vec<u32> {
    let of = |x: f32| ((f64::from(x) * 0.5 + 0.5) * f64::from(below)) as u32;
    hashed(name, count).into_iter().map(of).collect()
}

/// Returns the number of counted targets of a sample.
fn length(sample: usize) -> usize {
    match (sample / BATCH, sample % BATCH) {
        (WITHOUT_TARGETS, _) => 0,
        (step, 4 | 5) if step % 3 == 0 => 0,
        (_, 0) => 1,
        (_, 1) => TOKENS,
        _ => 1 + numbers(&format!("length{sample}"), 1, TOKENS as u32)[0] as usize,
    }
}

/// The texts; their features and description are those of a set with one target.
struct Texts {
    features: MemoryDataset,
    description: DatasetDescription,
}

impl Texts {
    fn new() -> Self {
        let samples = STEPS * BATCH;
        let tokens = (0..samples).flat_map(|row| numbers(&format!("tokens{row}"), TOKENS, CLASSES));
        let tokens = tokens.map(|token| token as f32).collect();
        let features = MemoryDataset::new(tokens, vec![0; samples], vec![TOKENS], CLASSES).unwrap();
        let mut description = features.description().clone();
        description.targets_per_sample = TOKENS;
        Self {
            features,
            description,
        }
    }
}

/// Some of the texts, with their numbers.
struct FetchedTexts(Vec<u64>, Box<dyn FetchedSamples>);

impl FetchedSamples for FetchedTexts {
    fn decode(
        &self,
        index: usize,
        epoch: Epoch,
        scratch: &mut DecodeScratch,
        out: &mut [f32],
        targets: &mut [u32],
    ) -> Result<(), DataError> {
        self.1.decode(index, epoch, scratch, out, &mut [0])?;
        let row = self.0[index] as usize;
        targets.copy_from_slice(&numbers(&format!("labels{row}"), TOKENS, CLASSES));
        targets[length(row)..].fill(IGNORED);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.1.bytes()
    }
}

impl Dataset for Texts {
    fn len(&self) -> u64 {
        self.features.len()
    }

    fn description(&self) -> &DatasetDescription {
        &self.description
    }

    fn fetch(&self, samples: &[u64]) -> Result<Box<dyn FetchedSamples>, DataError> {
        let fetched = self.features.fetch(samples)?;
        Ok(Box::new(FetchedTexts(samples.to_vec(), fetched)))
    }
}

/// Returns the initial values of a tensor, as the script makes them.
fn initial(name: &str, shape: &[usize]) -> Vec<f32> {
    let mut values = hashed(name, shape.iter().product());
    if shape.len() >= 2 && !name.starts_with("embedding.") {
        let scale = (3.0 / shape[0] as f64).sqrt() as f32;
        values.iter_mut().for_each(|x| *x *= scale);
    } else if name.ends_with("gamma") {
        values.iter_mut().for_each(|x| *x = 1.0 + 0.125 * *x);
    } else if shape.len() == 1 {
        values.iter_mut().for_each(|x| *x *= 0.125);
    }
    values
}

/// Returns the name and the shape of the whole tensor.
fn whole(entry: &TensorEntry) -> (&str, &[usize]) {
    let shape = entry.part.as_ref().map_or(&entry.shape, |part| &part.shape);
    (entry.whole_name(), shape)
}

fn load_initial(chain: &mut Chain) {
    let mut values = Vec::new();
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for entry in &chain.layout().tensors {
        assert_eq!(entry.role, Role::Parameter);
        let (name, shape) = whole(entry);
        let mut own = initial(name, shape);
        if let Some(part) = &entry.part {
            let all = std::mem::take(&mut own);
            own.resize(part.own_shape().iter().product(), 0.0);
            part.take(&all, &mut own);
        }
        ranges.push(values.len()..values.len() + own.len());
        values.extend(own);
    }
    chain.load(&values, &ranges);
}

#[derive(Default)]
struct Recorder(Mutex<Vec<Event>>);

impl Tracker for Recorder {
    fn record(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

/// The state of a rank at the end of a run.
struct RankOutcome {
    /// The weights that it holds, by the element of the flat state with which a range starts.
    held: Vec<(usize, Vec<f32>)>,
    tensors: Vec<(Range<usize>, TensorEntry)>,
    events: Vec<Event>,
}

fn train(config: &RunConfig, group: ProcessGroup) -> Result<RankOutcome, TrainError> {
    let train: Arc<dyn Dataset> = Arc::new(Texts::new());
    let world_size = WorldSize::new(group.size() as u32).unwrap();
    let mut plan = Plan::resolve(config, world_size, &*train)?;
    let chain = config.model.config.build(&[TOKENS], CLASSES, &plan.seeds);
    let mut chain = chain.map_err(TrainError::Model)?;
    load_initial(&mut chain);
    plan.bind_model(chain.layout())?;
    let recorder = Arc::new(Recorder::default());
    let member = JobGroup::of(Arc::new(group), recorder.clone());
    let split = Split { train, test: None };
    let mut training = Training::new(member, plan, chain, split)?;
    training.run()?;
    let weights = &training.vectors()[0];
    let mut rest = weights.values;
    let held = weights.held.ranges().iter().map(|range| {
        let (own, after) = rest.split_at(range.len());
        rest = after;
        (range.start, own.to_vec())
    });
    let held = held.collect();
    let tensors = training.state().tensors().iter();
    Ok(RankOutcome {
        held,
        tensors: tensors
            .map(|t| (t.range.clone(), t.entry.clone()))
            .collect(),
        events: std::mem::take(&mut *recorder.0.lock().unwrap()),
    })
}

/// The outcome of a run on all ranks: the whole tensors, and the loss of each step.
#[derive(PartialEq)]
struct Outcome {
    tensors: BTreeMap<String, Vec<f32>>,
    losses: Vec<Option<u64>>,
}

fn config(ranks: usize, sets: &[&str]) -> RunConfig {
    let count = format!("workers.count={ranks}");
    let sets = sets.iter().copied().chain([count.as_str()]);
    let sets: Vec<Override> = sets.map(|set| Override::Set(set.to_owned())).collect();
    match Document::load(RUN, "test", &[], &sets) {
        Ok((config, _)) => config,
        Err(error) => panic!("{}", error.render(false)),
    }
}

fn run(ranks: usize, sets: &[&str]) -> Outcome {
    let config = config(ranks, sets);
    let each = spawn_ranks(ranks, LIMIT, move |group| train(&config, group));
    let mut flat = BTreeMap::new();
    for (start, values) in each.iter().flat_map(|rank| &rank.held) {
        for (at, value) in (*start..).zip(values) {
            let other = flat.insert(at, *value).unwrap_or(*value);
            assert_eq!(other.to_bits(), value.to_bits(), "two ranks differ at {at}");
        }
    }
    let mut tensors = BTreeMap::new();
    for (range, entry) in &each[0].tensors {
        let own: Vec<f32> = range.clone().map(|at| flat[&at]).collect();
        let (name, shape) = whole(entry);
        let empty = || vec![f32::NAN; shape.iter().product()];
        let whole: &mut Vec<f32> = tensors.entry(name.to_owned()).or_insert_with(empty);
        match &entry.part {
            Some(part) => part.place(&own, whole),
            None => *whole = own,
        }
    }
    let losses = each[0].events.iter().filter_map(|event| match event {
        Event::StepCommitted {
            step,
            loss,
            samples,
            targets,
            skipped_update,
            ..
        } => {
            let first = step.0 as usize * BATCH;
            let counted: usize = (first..first + BATCH).map(length).sum();
            assert_eq!((*samples, *targets), (BATCH as u64, counted as u64));
            let is_skipped = *skipped_update == Some(SkippedUpdate::NoTargets);
            assert_eq!((is_skipped, loss.is_nan()), (counted == 0, counted == 0));
            assert_eq!(is_skipped, *step == Step(WITHOUT_TARGETS as u64));
            Some((!is_skipped).then_some(loss.to_bits()))
        }
        _ => None,
    });
    let losses: Vec<Option<u64>> = losses.collect();
    assert_eq!(losses.len(), STEPS);
    Outcome { tensors, losses }
}

#[derive(Deserialize)]
struct Reference {
    losses: Vec<Option<f64>>,
    /// The products of the change of a tensor with three rows of fixed numbers, and its norm.
    tensors: BTreeMap<String, [f64; 4]>,
}

fn reference(name: &str) -> Reference {
    let text = include_str!("pytorch/counted_targets.json");
    let mut all: BTreeMap<String, Reference> = serde_json::from_str(text).unwrap();
    all.remove(name).unwrap()
}

/// Compares losses and changes of weights with PyTorch's, in double precision. `bounds` are the greatest errors of a loss, and of
/// the change of a tensor as a part of its norm.
fn compare(name: &str, found: &Outcome, expected: &Reference, bounds: [f64; 2]) {
    let losses = found.losses.iter().zip(&expected.losses).enumerate();
    for (step, (found, expected)) in losses {
        assert_eq!(found.is_some(), expected.is_some(), "{name}, step {step}");
        let (Some(found), Some(expected)) = (found, expected) else {
            continue;
        };
        let error = (f64::from_bits(*found) - expected).abs();
        assert!(
            error < bounds[0],
            "{name}, step {step}: loss differs by {error}"
        );
    }
    assert!(found.tensors.keys().eq(expected.tensors.keys()));
    for (tensor, values) in &found.tensors {
        let [products @ .., norm] = expected.tensors[tensor];
        let start = match expected_shape(tensor) {
            Some(shape) => initial(tensor, &shape),
            None => initial(tensor, &[values.len()]),
        };
        let changes = || {
            values
                .iter()
                .zip(&start)
                .map(|(a, b)| f64::from(*a) - f64::from(*b))
        };
        for (row, expected) in products.into_iter().enumerate() {
            let row = hashed(&format!("dot{row}"), values.len());
            let product: f64 = changes().zip(&row).map(|(c, r)| c * f64::from(*r)).sum();
            // The product of a vector of length 1 with such a row is about 0.58.
            let error = (product - expected).abs() / (0.58 * norm);
            assert!(
                error < bounds[1],
                "{name}: {tensor} differs by {error} of its change"
            );
        }
    }
}

/// Returns the shape of a matrix; `None` for a vector.
fn expected_shape(tensor: &str) -> Option<[usize; 2]> {
    Some(match tensor.rsplit_once('.').unwrap() {
        ("embedding", "token") => [CLASSES as usize, 16],
        ("embedding", _) => [TOKENS, 16],
        ("head.output", _) => [16, CLASSES as usize],
        (_, "bias" | "gamma" | "beta") => return None,
        (layer, _) if layer.ends_with("key_value") => [16, 32],
        (layer, _) if layer.ends_with("up") => [16, 64],
        (layer, _) if layer.ends_with("down") => [64, 16],
        _ => [16, 16],
    })
}

/// Trains in all layouts, which must give the same bits, and compares one with PyTorch.
fn check(
    name: &str,
    reference_of: &str,
    sets: &[&str],
    bounds: [f64; 2],
    layouts: &[(usize, &[&str])],
) {
    let expected = reference(reference_of);
    let mut first: Option<Outcome> = None;
    for (ranks, layout) in layouts {
        let found = run(*ranks, &[sets, layout].concat());
        match &first {
            None => compare(name, &found, &expected, bounds),
            Some(first) => assert!(*first == found, "{name}: {ranks} ranks with {layout:?}"),
        }
        first.get_or_insert(found);
    }
}

const ZERO: &[&str] = &["parallel.zero=3"];
const PIPELINE_2: &[&str] = &["parallel.pipeline=2"];
const PIPELINE_4: &[&str] = &["parallel.pipeline=4", "parallel.schedule=\"zero_bubble\""];

#[test]
fn weights_are_those_of_pytorch_in_every_layout() {
    let layouts: &[(usize, &[&str])] = &[
        (1, &[]),
        (2, &[]),
        (3, &[]),
        (5, &[]),
        (2, ZERO),
        (4, ZERO),
        (2, PIPELINE_2),
        (4, PIPELINE_4),
        (4, &["parallel.pipeline=2", "parallel.zero=2"]),
    ];
    check("f32", "sgd", &[], [1e-5, 1e-4], layouts);
}

#[test]
fn optimizers_count_the_steps_with_targets_only() {
    let layouts: &[(usize, &[&str])] = &[(1, &[]), (3, ZERO), (2, PIPELINE_2)];
    check("adam", "adam", ADAM, [1e-5, 1e-4], layouts);
}

#[test]
fn weights_of_layers_in_parts_are_those_of_pytorch() {
    let layouts: &[(usize, &[&str])] = &[
        (1, &[]),
        (2, &["parallel.tensor=2"]),
        (4, &["parallel.tensor=2"]),
        (4, &["parallel.tensor=2", "parallel.pipeline=2"]),
        (3, ZERO),
    ];
    let parts = &["model.tensor_parts=2"];
    check("tensor parts", "sgd", parts, [1e-5, 1e-4], layouts);
}

#[test]
fn weights_in_short_formats_are_near_those_of_pytorch() {
    let layouts: &[(usize, &[&str])] = &[(1, &[]), (5, &[]), (2, ZERO), (3, PIPELINE_2)];
    let f16 = &["train.precision=\"f16\""];
    check("f16", "sgd", f16, [2e-3, 2e-2], layouts);
    let bf16 = &["train.precision=\"bf16\""];
    check("bf16", "sgd", bf16, [2e-2, 1e-1], layouts);
}
