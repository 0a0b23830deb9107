//! Runs that are stopped, killed or damaged resume from a checkpoint on any number of workers, with the same bits.

#![expect(clippy::unwrap_used, reason = "a test may fail here")]

mod choices;
mod disturbed_store;
mod troubled_store;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ronde_checkpoint::{CheckpointStatus, Lineage, list};
use ronde_comm::ProcessGroup;
use ronde_comm::testing::spawn_ranks;
use ronde_core::{Collectives, Event, Generation, Step, Tracker, WorldSize, weight_hash};
use ronde_data::OpenContext;
use ronde_store::{LocalStore, Store, StoreError};
use ronde_train::checkpoints::{Resume, RunCheckpoints};
use ronde_train::config::{Document, Override};
use ronde_train::{JobGroup, Plan, RunConfig, TrainError, Training};

use disturbed_store::Disturbed;

/// The watchdog's time limit.
const LIMIT: Duration = Duration::from_secs(120);

/// A run with buffers (running statistics), two optimizer states, dropout, and epochs that end between
/// checkpoints.
const RUN: &str = r#"
[data]
source = "synthetic_images"
samples = 37
test_samples = 10
shape = [1, 4, 4]
classes = 3
[model]
kind = "digits_cnn"
channels = 2
[train]
steps = 9
global_batch_size = 10
[workers]
logical_shards = 5
[check]
weight_hash_full_every = 1
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

/// Records all events, and requests a stop after a given step is committed.
#[derive(Default)]
struct Recorder {
    events: Mutex<Vec<Event>>,
    stop_after: Option<u64>,
    stop: Arc<AtomicBool>,
}

impl Tracker for Recorder {
    fn record(&self, event: Event) {
        if let Event::StepCommitted { step, .. } = event
            && Some(step.0) == self.stop_after
        {
            self.stop.store(true, Ordering::SeqCst);
        }
        self.events.lock().unwrap().push(event);
    }
}

/// The settings of a run.
#[derive(Clone)]
struct RunSettings {
    workers: usize,
    sets: Vec<&'static str>,
    resume: Resume,
    stop_after: Option<u64>,
    generation: Generation,
}

impl RunSettings {
    fn new(workers: usize) -> Self {
        Self {
            workers,
            sets: vec![],
            resume: Resume::Never,
            stop_after: None,
            generation: Generation::FIRST,
        }
    }

    fn with(mut self, set: &'static str) -> Self {
        self.sets.push(set);
        self
    }

    fn resuming(mut self) -> Self {
        self.resume = Resume::Required;
        self
    }

    fn stopping(mut self, after: u64) -> Self {
        self.stop_after = Some(after);
        self
    }
}

/// Hash of weights and optimizer state.
type Bits = Vec<u64>;

/// The result of a run: each rank's bits or error, and the events.
struct RunResult {
    ranks: Vec<Result<Bits, TrainError>>,
    events: Vec<Event>,
}

impl RunResult {
    #[track_caller]
    fn bits(&self) -> Bits {
        let first = self.ranks[0]
            .as_ref()
            .unwrap_or_else(|error| panic!("{error}"));
        for rank in &self.ranks {
            assert_eq!(rank.as_ref().unwrap(), first);
        }
        first.clone()
    }

    fn saved(&self) -> Vec<u64> {
        let step = |event: &Event| match event {
            Event::CheckpointSaved { step, .. } => Some(step.0),
            _ => None,
        };
        self.events.iter().filter_map(step).collect()
    }

    fn committed(&self) -> Vec<u64> {
        let step = |event: &Event| match event {
            Event::StepCommitted { step, .. } => Some(step.0),
            _ => None,
        };
        self.events.iter().filter_map(step).collect()
    }

    fn failed(&self) -> Vec<(u64, u32, String)> {
        let failed = |event: &Event| match event {
            Event::CheckpointFailed {
                step,
                rank,
                message,
                ..
            } => Some((step.0, rank.0, message.clone())),
            _ => None,
        };
        self.events.iter().filter_map(failed).collect()
    }

    fn loaded(&self) -> Option<(u64, Vec<String>)> {
        self.events.iter().find_map(|event| match event {
            Event::CheckpointLoaded { step, skipped, .. } => Some((step.0, skipped.clone())),
            _ => None,
        })
    }
}

fn train_in(store: &Arc<dyn Store>, start: &RunSettings) -> RunResult {
    let recorder = Arc::new(Recorder {
        stop_after: start.stop_after,
        ..Recorder::default()
    });
    let (shared, tracker, store) = (start.clone(), recorder.clone(), store.clone());
    let ranks = spawn_ranks(start.workers, LIMIT, move |group| {
        let mut training = training(&shared, &store, &tracker, group)?;
        let ended = training.run();
        let bits = training.vectors();
        let bits = bits
            .iter()
            .map(|vector| weight_hash::hash(vector.values))
            .collect();
        Ok::<_, TrainError>(ended.map(|_| bits))
    });
    let events = std::mem::take(&mut *recorder.events.lock().unwrap());
    RunResult { ranks, events }
}

fn training(
    start: &RunSettings,
    store: &Arc<dyn Store>,
    recorder: &Arc<Recorder>,
    group: ProcessGroup,
) -> Result<Training, TrainError> {
    let config = config(&start.sets);
    let split = ronde_data::open(
        &config.data,
        &OpenContext::new(".".as_ref(), config.run.seed),
    )?;
    let world_size = WorldSize::new(group.size() as u32).unwrap();
    let mut plan = Plan::resolve(&config, world_size, &*split.train)?;
    plan.bind_evaluations(split.test.as_deref())?;
    let (shape, classes) = (
        &*split.train.description().shape,
        split.train.description().classes,
    );
    let chain = config
        .model
        .config
        .build(shape, classes, &plan.seeds)
        .map_err(TrainError::Model)?;
    plan.bind_model(ronde_engine::LayerExt::layout(&chain))?;
    let mut member = JobGroup::of(Arc::new(group), recorder.clone());
    member.generation = start.generation;
    let saving = RunCheckpoints::new(
        &config.checkpoint,
        store.clone(),
        "here".to_owned(),
        config.run.name.clone(),
        (config.to_toml()?, ".".into()),
    );
    let stop = recorder.stop.clone();
    Ok(Training::new(member, plan, chain, split)?.with_checkpoints(
        Some(saving),
        start.resume,
        stop,
    ))
}

fn local(folder: &Path) -> Arc<dyn Store> {
    Arc::new(LocalStore::new(folder))
}

fn undisturbed() -> Bits {
    let folder = tempfile::tempdir().unwrap();
    train_in(&local(folder.path()), &RunSettings::new(1)).bits()
}

#[test]
fn a_checkpoint_of_any_number_of_workers_resumes_on_any_other_number() {
    let whole = undisturbed();
    for saving in 1..=5 {
        // In the middle of the second epoch.
        let folder = tempfile::tempdir().unwrap();
        let store = local(folder.path());
        let end = train_in(&store, &RunSettings::new(saving).stopping(4));
        for rank in &end.ranks {
            let stopped = matches!(rank, Err(TrainError::Stopped { saved: true, .. }));
            assert!(stopped, "{rank:?}");
        }
        let at = *end.saved().last().unwrap();
        assert!((5..9).contains(&at), "{at}");
        assert_eq!(end.committed(), (0..at).collect::<Vec<_>>());
        for resuming in 1..=5 {
            let end = train_in(
                &store,
                &RunSettings::new(resuming)
                    .with("checkpoint.at_end=false")
                    .resuming(),
            );
            assert_eq!(end.bits(), whole, "{saving} to {resuming}");
            assert_eq!(end.loaded(), Some((at, vec![])));
            assert_eq!(end.committed(), (at..9).collect::<Vec<_>>());
            for event in &end.events {
                if let Event::EpochFinished {
                    missing, repeated, ..
                } = event
                {
                    assert_eq!((missing, repeated), (&0, &0), "{event:?}");
                }
            }
        }
    }
}

/// Copies the files of a folder and of the folders in it.
fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_divided_state_is_saved_by_its_owners_and_loaded_under_any_division() {
    let whole = undisturbed();
    let divisions: [(usize, &[&'static str]); 10] = [
        (1, &[]),
        (2, &["parallel.zero=1"]),
        (3, &["parallel.zero=2"]),
        (4, &["parallel.zero=2", "parallel.copies=1"]),
        (2, &["parallel.zero=2", "parallel.copies=2"]),
        (3, &["parallel.pipeline=3", "parallel.copies=1"]),
        (3, &["parallel.pipeline=2", "parallel.copies=2"]),
        (4, &["parallel.pipeline=2", "parallel.zero=2"]),
        (3, &["parallel.zero=3"]),
        (2, &["parallel.zero=3", "parallel.copies=1"]),
    ];
    let settings = |(workers, sets): (usize, &[&'static str])| {
        sets.iter()
            .fold(RunSettings::new(workers), |settings, set| {
                settings.with(set)
            })
    };
    for saving in divisions {
        let folder = tempfile::tempdir().unwrap();
        let store = local(folder.path());
        let end = train_in(&store, &settings(saving).stopping(4));
        let at = *end.saved().last().unwrap();
        for resuming in divisions {
            let copy = tempfile::tempdir().unwrap();
            copy_folder(folder.path(), copy.path());
            let store = local(copy.path());
            let end = train_in(&store, &settings(resuming).resuming());
            assert_eq!(
                end.loaded(),
                Some((at, vec![])),
                "{saving:?} to {resuming:?}"
            );
            let is_part = |set: &&str| set.contains("pipeline") || set.contains("zero=3");
            let has_parts = resuming.1.iter().any(is_part);
            if has_parts {
                // One worker then loads what all of them have.
                let again = train_in(&store, &RunSettings::new(1).resuming());
                assert!(again.committed().is_empty());
                assert_eq!(again.bits(), whole, "{saving:?} to {resuming:?}");
            }
            for rank in end.ranks {
                let bits = rank.unwrap();
                assert!(
                    has_parts || bits[0] == whole[0],
                    "{saving:?} to {resuming:?}"
                );
                // A worker that holds everything also has the states of the optimizer.
                let is_whole = resuming.1.is_empty();
                assert!(!is_whole || bits == whole, "{saving:?} to {resuming:?}");
            }
        }
    }
}

#[test]
fn checkpoints_are_saved_at_the_configured_interval_and_old_ones_removed() {
    let whole = undisturbed();
    for overlap in ["checkpoint.overlap=false", "checkpoint.overlap=true"] {
        let folder = tempfile::tempdir().unwrap();
        let store = local(folder.path());
        let start = RunSettings::new(3)
            .with("checkpoint.every_steps=3")
            .with(overlap);
        let end = train_in(&store, &start.with("checkpoint.keep=1"));
        assert_eq!(end.bits(), whole);
        let saved = end.saved();
        if overlap.ends_with("false") {
            assert_eq!(saved, [3, 6, 9]);
        }
        assert!(!saved.is_empty(), "{:?}", end.failed());
        for event in &end.events {
            if let Event::CheckpointSaved {
                held_up_s, bytes, ..
            } = event
            {
                assert!(*held_up_s >= 0.0 && *bytes > 0, "{event:?}");
            }
        }
        let kept = list(&*store).unwrap();
        let steps: Vec<u64> = kept.iter().map(|listed| listed.step.0).collect();
        assert_eq!(steps, [*saved.last().unwrap()]);
        assert_eq!(kept[0].status, CheckpointStatus::Complete);
        assert_eq!(kept[0].manifest.as_ref().unwrap().world_size, 3);
    }
}

#[test]
fn a_damaged_checkpoint_is_reported_and_the_previous_one_is_loaded() {
    let whole = undisturbed();
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let sets = RunSettings::new(2)
        .with("checkpoint.every_steps=3")
        .with("checkpoint.overlap=false");
    let end = train_in(&store, &sets.clone().stopping(6));
    assert_eq!(end.saved()[..2], [3, 6]);
    let newest = *end.saved().last().unwrap();
    let slice = list(&*store).unwrap()[0].manifest.as_ref().unwrap().files[1]
        .name
        .clone();
    let path = folder.path().join(&slice);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let end = train_in(&store, &sets.resuming());
    assert_eq!(end.bits(), whole);
    let (step, skipped) = end.loaded().unwrap();
    assert_eq!(step, 6);
    assert_eq!(skipped.len(), 1);
    for words in [
        &format!("step {newest}"),
        slice.rsplit('/').next().unwrap(),
        "weight of ",
    ] {
        assert!(skipped[0].contains(words), "{words} in {skipped:?}");
    }
}

#[test]
fn another_plan_and_an_empty_store_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let end = train_in(&store, &RunSettings::new(2).resuming());
    assert!(matches!(end.ranks[0], Err(TrainError::NoCheckpoint { .. })));
    // Either that nothing was loaded or that the peer was lost, whichever it notices first.
    assert!(end.ranks[1].as_ref().unwrap_err().is_secondary());
    train_in(&store, &RunSettings::new(2).stopping(4));
    for (set, part) in [
        ("run.seed=7", "run.seed changed from 42 to 7"),
        ("model.channels=3", "model.channels changed from 2 to 3"),
        ("data.samples=38", "data"),
    ] {
        let end = train_in(&store, &RunSettings::new(2).with(set).resuming());
        let error = end.ranks[0].as_ref().unwrap_err();
        assert!(error.is_user_error(), "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(end.ranks[1].as_ref().unwrap_err().is_secondary());
    }
}

#[test]
fn when_all_holders_of_the_state_are_lost_the_next_generation_loads_it() {
    let whole = undisturbed();
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let end = train_in(&store, &RunSettings::new(3).stopping(4));
    let at = *end.saved().last().unwrap();
    let next = RunSettings {
        generation: Generation(7),
        ..RunSettings::new(2)
    };
    let end = train_in(&store, &next);
    assert_eq!(end.loaded(), Some((at, vec![])));
    assert_eq!(end.bits(), whole);
}

#[test]
fn a_save_that_fails_on_one_rank_is_reported_and_the_next_one_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let mut refuses = true;
    let store = Disturbed::over(&local(folder.path()), move |name| {
        if !name.as_str().ends_with(".slice") || !std::mem::take(&mut refuses) {
            return Ok(());
        }
        Err(StoreError::Disk {
            operation: "write",
            location: name.to_string(),
            source: std::io::Error::from(std::io::ErrorKind::StorageFull),
        })
    });
    let start = RunSettings::new(3)
        .with("checkpoint.every_steps=3")
        .with("checkpoint.overlap=false");
    let end = train_in(&store, &start);
    assert_eq!(end.bits(), undisturbed());
    assert_eq!(end.saved(), [6, 9]);
    let failed = end.failed();
    assert_eq!((failed.len(), failed[0].0), (1, 3), "{failed:?}");
    assert!(failed[0].2.contains("write"), "{failed:?}");
}

#[test]
fn files_of_a_failed_save_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let full = Disturbed::over(&store, |name| match name.as_str().contains("cursor") {
        false => Ok(()),
        true => Err(StoreError::Disk {
            operation: "write",
            location: name.to_string(),
            source: std::io::Error::from(std::io::ErrorKind::StorageFull),
        }),
    });
    let start = RunSettings::new(3).with("checkpoint.at_end=false");
    let end = train_in(&full, &start.with("checkpoint.every_steps=9"));
    assert_eq!(end.bits(), undisturbed());
    assert_eq!((end.saved().len(), end.failed().len()), (0, 1));
    assert_eq!(list(&*store).unwrap(), []);
}

#[test]
fn of_two_runs_with_one_store_the_newer_one_saves_and_the_older_one_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    // The other run claims a term while the second checkpoint is being published.
    let (other, mut publishings) = (store.clone(), 0);
    let first = Disturbed::over(&store, move |name| {
        publishings += u32::from(name.as_str().contains("cursor"));
        if publishings == 2 {
            publishings += 1;
            Lineage::claim_next(&*other, Generation(0), Step(3), "run `test`").unwrap();
        }
        Ok(())
    });
    let start = RunSettings::new(2)
        .with("checkpoint.every_steps=3")
        .with("checkpoint.overlap=false");
    let end = train_in(&first, &start);
    assert_eq!(end.bits(), undisturbed());
    let failed = end.failed();
    assert!(!failed.is_empty());
    assert!(failed[0].2.contains("term"), "{failed:?}");
    let end = train_in(&store, &start.resuming());
    assert_eq!(end.bits(), undisturbed());
}
