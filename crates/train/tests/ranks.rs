//! Ranks as threads: a rank with another plan is rejected, a damaged weight is detected, and every option gives
//! the same bits on any number of ranks.

#![expect(clippy::unwrap_used, reason = "a test may fail here")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ronde_comm::ProcessGroup;
use ronde_comm::testing::spawn_ranks;
use ronde_core::{Collectives, Generation, GroupRank, NullTracker, Rank, Step, WorldSize};
use ronde_data::{DataConfig, Loader, LoaderPlan, LoaderSettings, OpenContext};
use ronde_parallel::HeldVector;
use ronde_protocol::{Assignment, GenerationPurpose, MembershipPolicy};
use ronde_train::checkpoints::ProcessContext;
use ronde_train::config::{Document, Override};
use ronde_train::{JobGroup, Plan, RunConfig, TrainError, Training, WorkerTask, worker};

/// The watchdog's time limit.
const LIMIT: Duration = Duration::from_secs(60);

const RUN: &str = r#"
[data]
source = "synthetic_images"
samples = 60
test_samples = 20
shape = [1, 4, 4]
classes = 3
[model]
kind = "mlp"
hidden = [8]
[train]
steps = 40
global_batch_size = 16
"#;

fn config(sets: &[&str]) -> RunConfig {
    parse(RUN, sets)
}

fn parse(text: &str, sets: &[&str]) -> RunConfig {
    let sets: Vec<Override> = sets
        .iter()
        .map(|set| Override::Set((*set).to_owned()))
        .collect();
    match Document::load(text, "test", &[], &sets) {
        Ok((config, _)) => config,
        Err(error) => panic!("{}", error.render(false)),
    }
}

/// Runs one worker per thread over TCP, each with its own settings, and returns their errors.
fn run_workers(sets: &[&[&str]]) -> Vec<Option<TrainError>> {
    let world_size = WorldSize::new(sets.len() as u32).unwrap();
    let bound: Vec<_> = sets
        .iter()
        .map(|_| ronde_comm::bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap())
        .collect();
    let peers: Vec<_> = bound.iter().map(|(_, address)| *address).collect();
    let threads: Vec<_> = bound
        .into_iter()
        .zip(sets)
        .enumerate()
        .map(|(rank, ((listener, _), sets))| {
            // Not even root can create a folder there.
            let output = PathBuf::from("/dev/null/nowhere");
            let task = WorkerTask::new(&config(sets), ".".into(), output).unwrap();
            let assignment = Assignment {
                job: "job".to_owned(),
                generation: Generation::FIRST,
                policy: MembershipPolicy::Fixed,
                rank: Rank(rank as u32),
                world_size,
                local_rank: rank as u32,
                local_world_size: world_size.get(),
                peers: peers.clone(),
                purpose: GenerationPurpose::Train,
                awaited: 0,
                task: task.encode().unwrap(),
            };
            std::thread::spawn(move || {
                let access = worker::JobAccess {
                    assignment,
                    listener: Some(listener),
                    ..worker::JobAccess::alone()
                };
                worker::run(access, &ProcessContext::default()).err()
            })
        })
        .collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

#[test]
fn a_rank_with_another_plan_is_rejected_with_the_difference() {
    for (other, difference) in [
        (&["run.seed=43"][..], "run.seed"),
        (&["train.learning_rate=0.5"], "train.learning_rate"),
        (&["model.hidden=[9]"], "model.hidden"),
        (&["data.samples=61"], "data"),
    ] {
        let errors = run_workers(&[&[], other, &[]]);
        let messages: Vec<String> = errors.iter().flatten().map(TrainError::to_string).collect();
        assert!(errors[1].is_some(), "{messages:?}");
        let named = |text: &String| text.contains("has another plan") && text.contains(difference);
        assert!(messages.iter().any(named), "{difference}: {messages:?}");
        let hint = errors.iter().flatten().find_map(TrainError::hint);
        assert!(
            hint.is_some_and(|hint| hint.contains("the same program, run and data")),
            "{messages:?}"
        );
    }
}

#[test]
fn settings_that_do_not_change_the_bits_may_differ() {
    // Rank 0 fails at the end because its folder does not exist. Training succeeded, and rank 1 reports the lost
    // peer.
    let errors = run_workers(&[&["train.steps=3"], &["train.steps=3", "run.name=other"]]);
    assert!(
        matches!(
            errors[..],
            [Some(TrainError::File { .. }), Some(TrainError::Farewell(_))]
        ),
        "{errors:?}"
    );
}

/// Returns one rank's training of `config`, and its loader.
fn training(config: &RunConfig, group: ProcessGroup) -> Result<(Training, Loader), TrainError> {
    let split = ronde_data::open(
        &config.data,
        &OpenContext::new(".".as_ref(), config.run.seed),
    )?;
    let world_size = WorldSize::new(group.size() as u32).expect("a group has members");
    let plan = Plan::resolve(config, world_size, &*split.train)?;
    let chain = config
        .model
        .config
        .build(
            &split.train.description().shape,
            split.train.description().classes,
            &plan.seeds,
        )
        .map_err(TrainError::Model)?;
    let load = LoaderPlan {
        batches: plan.batches,
        shards: plan.shards.clone(),
        run: plan.shards.run(group.rank()),
        steps: 0..plan.steps,
        stride: 1,
    };
    let loader = Loader::start(split.train.clone(), load, LoaderSettings::default())?;
    let member = JobGroup::of(Arc::new(group), Arc::new(NullTracker));
    Ok((Training::new(member, plan, chain, split)?, loader))
}

/// Trains on three ranks, where rank 2 changes one bit of a weight after a step. Returns the error of each rank.
fn damaged(sets: &[&str], after: u64) -> Vec<TrainError> {
    let config = config(sets);
    spawn_ranks(3, LIMIT, move |group| {
        let damages = group.rank() == GroupRank(2);
        let (mut training, mut loader) = training(&config, group)?;
        for step in 0..training.plan().steps {
            if let Err(error) = training.step(&mut loader) {
                return Ok(error);
            }
            if step == after && damages {
                let mut edit = training.edit();
                let at = edit.model().tensors()[1].range.start;
                let weight = edit.model().values()[at];
                // Not the last bit, because the rounding of the next update might undo its change.
                let damaged = f32::from_bits(weight.to_bits() ^ (1 << 20));
                edit.write(&(at..at + 1), &[damaged]);
                edit.reload();
            }
        }
        Err(TrainError::Impossible {
            problem: "the damage was not detected".to_owned(),
            hint: String::new(),
        })
    })
}

#[test]
fn one_flipped_bit_is_detected_and_its_rank_and_tensor_are_reported() {
    for (sets, latest) in [
        // All weights are hashed after the step that follows the damage; the next vote detects it.
        (&["check.weight_hash_full_every=1"][..], 6),
        // In parts, detection takes up to one turn over all parts.
        (
            &[
                "check.weight_hash_parts=4",
                "check.weight_hash_full_every=1000",
            ],
            9,
        ),
    ] {
        for (rank, error) in damaged(sets, 5).into_iter().enumerate() {
            let TrainError::Diverged { step, report } = &error else {
                panic!("rank {rank}: {error}");
            };
            let expected = Step(6)..=Step(latest);
            assert!(expected.contains(step), "rank {rank}: {step}");
            assert!(
                report.contains("rank 2 differs in "),
                "rank {rank}: {report}"
            );
            assert!(!report.contains("rank 0"), "rank {rank}: {report}");
            assert!(report.contains("help: "), "{report}");
            assert!(!error.is_secondary() && !error.is_user_error());
        }
    }
}

/// Returns the final weights, optimizer state and loss scale of a run on some ranks, and its last loss.
fn trained(config: &RunConfig, ranks: usize) -> (Vec<Vec<u32>>, f64) {
    let config = config.clone();
    let each = spawn_ranks(ranks, LIMIT, move |group| {
        let (mut training, mut loader) = training(&config, group)?;
        let mut loss = f64::NAN;
        for _ in 0..training.plan().steps {
            loss = training.step(&mut loader)?.loss;
        }
        let bits = |run: &HeldVector<'_>| run.values.iter().map(|x| x.to_bits()).collect();
        let replica = training.vectors();
        Ok::<_, TrainError>((replica.iter().map(bits).collect::<Vec<_>>(), loss))
    });
    let mut each = each.into_iter();
    let first = each.next().unwrap();
    assert!(each.all(|other| other.0 == first.0), "ranks differ");
    first
}

const GPT: &str = r#"
[data]
source = "text"
context = 16
[model]
kind = "gpt"
layers = 1
width = 16
heads = 2
dropout = 0.1
[train]
steps = 3
global_batch_size = 16
"#;

const TRANSFORMER: &str = r#"
[data]
source = "number_words"
samples = 64
[model]
kind = "transformer"
source = 9
layers = 1
width = 16
heads = 2
[train]
steps = 3
global_batch_size = 16
"#;

#[test]
fn every_option_gives_the_same_bits_on_any_number_of_ranks() {
    let layerwise = [
        "optimizer.kind=lamb",
        "train.weight_decay_on=matrices",
        "train.clip_norm=0.01",
        "train.learning_rate_scaling=square_root",
        "train.learning_rate_batch_size=4",
        "schedule.kind=step",
        "schedule.every_steps=2",
    ];
    let lars = ["optimizer.kind=lars", "train.learning_rate=1.0"];
    let bf16 = ["train.precision=bf16", "train.recompute_activations=true"];
    for (text, sets) in [
        (RUN, &layerwise[..]),
        (RUN, &lars),
        (RUN, &bf16),
        (GPT, &[]),
        (GPT, &["model.tied=true", "train.clip_norm=0.1"]),
        (TRANSFORMER, &["train.precision=f16"]),
        (TRANSFORMER, &["model.padding=0", "train.precision=bf16"]),
    ] {
        let config = parse(text, &[sets, &["train.steps=5"]].concat());
        let one = trained(&config, 1);
        assert!(one.1.is_finite(), "{sets:?}");
        for ranks in [2, 3] {
            let other = trained(&config, ranks);
            assert!(other.0 == one.0, "{sets:?} on {ranks} ranks");
            assert_eq!(other.1.to_bits(), one.1.to_bits());
        }
    }
}

/// Models of images and of hidden letters, with samples for an evaluation in several batches.
const EVALUATED: [(&str, &str, &str); 4] = [
    (
        "inception_v3",
        "source = 'digits'",
        "small_input = true\nwidth_divisor = 16",
    ),
    (
        "detector",
        "source = 'synthetic_objects'\nsamples = 64\ntest_samples = 130\nside = 16",
        "channels = 4\nlevels = 2",
    ),
    (
        "unet",
        "source = 'synthetic_shapes'\nsamples = 64\ntest_samples = 130\nside = 8",
        "channels = 2\nlevels = 1",
    ),
    (
        "bert",
        "source = 'text'\ncontext = 16\nmasked = 0.2",
        "layers = 1\nwidth = 16\nheads = 2",
    ),
];

#[test]
fn models_and_their_evaluations_are_the_same_on_any_number_of_ranks() {
    for (kind, data, model) in EVALUATED {
        let text = format!(
            "[data]\n{data}\n[model]\nkind = '{kind}'\n{model}\n[train]\nsteps = 4\nglobal_batch_size = 16\n\
             learning_rate = 0.02\n[workers]\nlogical_shards = 4\n"
        );
        let of_masks: &[&str] = match kind {
            "unet" => &["train.loss=dice"],
            _ => &[],
        };
        let config = parse(&text, of_masks);
        let run = |ranks| {
            let config = config.clone();
            let mut each = spawn_ranks(ranks, LIMIT, move |group| {
                let (mut training, _) = training(&config, group)?;
                let evaluation = training.run()?.evaluation.expect("a test set");
                let bits = |run: &HeldVector<'_>| run.values.iter().map(|x| x.to_bits()).collect();
                let replica = training.vectors();
                let state: Vec<Vec<u32>> = replica.iter().map(bits).collect();
                Ok::<_, TrainError>((state, evaluation))
            });
            let first = each.swap_remove(0);
            assert!(
                each.iter().all(|other| *other == first),
                "{kind}: ranks differ"
            );
            first
        };
        let one = run(1);
        let metrics = &one.1.metrics;
        assert!(
            !metrics.is_empty() && one.1.loss.is_finite(),
            "{kind}: {metrics:?}"
        );
        assert!(
            metrics.values().all(|value| value.is_finite()),
            "{kind}: {metrics:?}"
        );
        for ranks in [2, 3] {
            assert!(run(ranks) == one, "{kind} on {ranks} ranks");
        }
    }
}

#[test]
fn recomputation_preserves_the_bits_and_rounding_does_not() {
    let with = |sets: &[&str]| trained(&parse(GPT, sets), 1).0;
    let plain = with(&[]);
    for layers in [
        "true",
        "\"auto\"",
        "[\"block1\"]",
        "[\"embedding..block1\", \"head\"]",
    ] {
        let set = format!("train.recompute_activations={layers}");
        assert!(with(&[&set]) == plain, "{layers}");
    }
    assert!(with(&["train.precision=bf16"]) != plain);
    let tied = with(&["model.tied=true"]);
    assert!(tied[0].len() < plain[0].len());
    let again = ["model.tied=true", "train.recompute_activations=true"];
    assert!(with(&again) == tied);
}

#[test]
fn accumulated_shards_equal_the_larger_batch() {
    // The same samples in one shard and in sixteen: different orders of addition, nearly equal sums.
    let with = |shards| {
        let sets = ["optimizer.kind=sgd", "train.learning_rate=0.1", shards];
        trained(&config(&sets), 1)
    };
    let one = with("workers.logical_shards=1");
    let many = with("workers.logical_shards=16");
    assert!(
        (one.1 - many.1).abs() < 1e-4 * one.1,
        "{} {}",
        one.1,
        many.1
    );
    for (one, many) in one.0[0].iter().zip(&many.0[0]) {
        let (one, many) = (f32::from_bits(*one), f32::from_bits(*many));
        assert!((one - many).abs() < 1e-4, "{one} {many}");
    }
}

#[test]
fn steps_with_an_overflowing_scaled_gradient_are_skipped_on_all_ranks() {
    let sets = [
        "train.precision=f16",
        "train.global_batch_size=60",
        "train.steps=12",
        // Certain and wrong predictions, whose gradients have the size of the loss scale.
        "train.learning_rate=8",
    ];
    let config = config(&sets);
    let one = trained(&config, 1);
    let scale: Vec<f32> = one
        .0
        .last()
        .unwrap()
        .iter()
        .map(|&x| f32::from_bits(x))
        .collect();
    let [scale, in_a_row, skipped] = scale[..] else {
        panic!("the loss scale has three elements");
    };
    assert!(skipped > 0.0 && in_a_row > 0.0, "{skipped} of 12 skipped");
    assert_eq!(scale, 65_536.0 / 2.0_f32.powf(skipped));
    assert!(in_a_row + skipped <= 12.0);
    for ranks in [2, 3] {
        assert!(trained(&config, ranks).0 == one.0, "{ranks} ranks");
    }
}

#[test]
fn the_run_files_of_the_examples_are_valid_and_their_models_can_be_built() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"));
    let mut found = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let config = parse(&text, &[]);
        found += 1;
        if matches!(config.data, DataConfig::Records(_)) {
            // The data files of one are the user's, and a test of the command checks those of the other. `parse` has
            // checked everything else.
            assert!(
                ["imagenet.toml", "gpt_tokens.toml"]
                    .iter()
                    .any(|name| path.ends_with(name))
            );
            continue;
        }
        let split =
            ronde_data::open(&config.data, &OpenContext::new(&folder, config.run.seed)).unwrap();
        let world_size = WorldSize::new(config.workers.count).unwrap();
        Plan::resolve(&config, world_size, &*split.train).unwrap();
        let shape = &split.train.description().shape;
        let size = config
            .model
            .config
            .size(shape, split.train.description().classes)
            .unwrap();
        assert!(size.parameters > 0, "{}", path.display());
        assert!(split.test.is_some(), "{}", path.display());
    }
    assert_eq!(found, 23);
}
