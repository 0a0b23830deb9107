//! Ranks as threads: one with another plan is refused, one with a damaged weight is found.

#![expect(clippy::unwrap_used, reason = "a test may fail here")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ronde_comm::ProcessGroup;
use ronde_comm::testing::spawn_ranks;
use ronde_core::{
    Assignment, Collectives, Generation, GroupRank, NullTracker, Rank, Step, Tracker, WorldSize,
};
use ronde_data::Loader;
use ronde_train::checkpoints::Surroundings;
use ronde_train::config::{Document, Override};
use ronde_train::{Place, Plan, RunConfig, Task, TrainError, Training, worker};

/// A watchdog, not a measure.
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
    let sets: Vec<Override> = sets
        .iter()
        .map(|set| Override::Set((*set).to_owned()))
        .collect();
    match Document::load(RUN, "test", &[], &sets) {
        Ok((config, _)) => config,
        Err(error) => panic!("{}", error.render(false)),
    }
}

/// Runs one worker a thread over TCP, each with its own settings, to the errors of all.
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
            // Not even root can make a folder there.
            let output = PathBuf::from("/dev/null/nowhere");
            let task = Task::new(&config(sets), ".".into(), output).unwrap();
            let assignment = Assignment {
                job: "job".to_owned(),
                generation: Generation(0),
                rank: Rank(rank as u32),
                world_size,
                local_rank: rank as u32,
                local_world_size: world_size.get(),
                peers: peers.clone(),
                task: task.encode(),
            };
            std::thread::spawn(move || {
                let tracker: Arc<dyn Tracker> = Arc::new(NullTracker);
                let secure = worker::on_one_host();
                let flights = Arc::default();
                let surroundings = Surroundings::default();
                worker::run(
                    &assignment,
                    Some(listener),
                    None,
                    &secure,
                    &tracker,
                    &flights,
                    &surroundings,
                )
                .err()
            })
        })
        .collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

#[test]
fn a_rank_with_another_plan_is_refused_by_what_differs() {
    for (other, difference) in [
        (&["run.seed=43"][..], "run.seed"),
        (&["train.learning_rate=0.5"], "train.learning_rate"),
        (&["model.hidden=[9]"], "model.hidden"),
        (&["data.samples=61"], "data"),
    ] {
        let errors = run_workers(&[&[], other, &[]]);
        let told: Vec<String> = errors.iter().flatten().map(TrainError::to_string).collect();
        assert!(errors[1].is_some(), "{told:?}");
        let named = |text: &String| text.contains("has another plan") && text.contains(difference);
        assert!(told.iter().any(named), "{difference}: {told:?}");
        let hint = errors.iter().flatten().find_map(TrainError::hint);
        assert!(
            hint.is_some_and(|hint| hint.contains("the same program, run and data")),
            "{told:?}"
        );
    }
}

#[test]
fn what_the_bits_do_not_depend_on_may_differ() {
    // Rank 0 fails at the very end, as its folder does not exist; training itself went well, and the
    // other one hears of it.
    let errors = run_workers(&[&["train.steps=3"], &["train.steps=3", "run.name=other"]]);
    assert!(
        matches!(
            errors[..],
            [Some(TrainError::File { .. }), Some(TrainError::Farewell(_))]
        ),
        "{errors:?}"
    );
}

/// One rank's training of `config`, and its loader.
fn training(config: &RunConfig, group: ProcessGroup) -> Result<(Training, Loader), TrainError> {
    let split = ronde_data::open(&config.data, ".".as_ref(), config.run.seed)?;
    let world_size = WorldSize::new(group.size() as u32).expect("a group has members");
    let plan = Plan::resolve(config, world_size, &*split.train)?;
    let chain = config
        .model
        .build(
            split.train.sample_shape(),
            split.train.classes(),
            &plan.seeds,
        )
        .map_err(TrainError::Model)?;
    let loader = Loader::start(
        split.train.clone(),
        plan.batches,
        plan.shards,
        plan.shards.run(group.rank()),
        0..plan.steps,
        2,
    )?;
    let place = Place {
        rank: Rank(group.rank().0),
        group: Arc::new(group),
        generation: Generation(0),
        tracker: Arc::new(NullTracker),
        seat: None,
    };
    Ok((Training::new(place, plan, chain, split), loader))
}

/// Trains on three ranks; rank 2 changes one bit of a weight after a step. What each rank saw.
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
                let state = training.strategy_mut().state_mut();
                let at = state.places()[1].range.start;
                let weight = &mut state.values_mut()[at];
                // Not the last bit: rounding of the next update may mend that one.
                *weight = f32::from_bits(weight.to_bits() ^ (1 << 20));
            }
        }
        Err(TrainError::Impossible {
            problem: "the damage was not seen".to_owned(),
            hint: String::new(),
        })
    })
}

#[test]
fn one_bit_of_one_weight_is_found_and_its_rank_and_tensor_are_named() {
    for (sets, latest) in [
        // Everything is hashed after the step that follows the damage; the vote after it sees it.
        (&["check.weight_hash_full_every=1"][..], 6),
        // In parts it takes as long as a turn over all parts.
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
            let seen = Step(6)..=Step(latest);
            assert!(seen.contains(step), "rank {rank}: {step}");
            assert!(
                report.contains("rank 2 differs in "),
                "rank {rank}: {report}"
            );
            assert!(!report.contains("rank 0"), "rank {rank}: {report}");
            assert!(report.contains("hint: "), "{report}");
            assert!(!error.is_secondary() && !error.is_user_error());
        }
    }
}
