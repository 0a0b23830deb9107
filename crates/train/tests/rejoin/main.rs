//! Workers as threads that die at every operation of a step; the remaining ones continue with the same bits.

#![expect(clippy::unwrap_used, reason = "a test may fail here")]

mod choices;
mod compressed;
mod divided;
mod faulty_group;
mod gossip;
mod initial;
mod local;
mod predicted;
mod served;
mod stopped;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use faulty_group::{FaultyGroup, InjectedFault};
use ronde_core::{Collectives, Event, Generation, GroupRank, Rank, Tracker, WorldSize};
use ronde_data::OpenContext;
use ronde_parallel::ZeroLevel;
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::{
    Assignment, Departure, GenerationPurpose, JobMember, MembershipError, MembershipPolicy,
    Milestone,
};
use ronde_store::{LocalStore, Store};
use ronde_train::callback::{Actions, StepReport};
use ronde_train::checkpoints::{Resume, RunCheckpoints};
use ronde_train::config::{Document, Override};
use ronde_train::initial_weights::InitialWeightFile;
use ronde_train::worker::{JobAccess, join_job};
use ronde_train::{Callback, Plan, RunConfig, TrainError, Training};

/// The watchdog's time limit.
const LIMIT: Duration = Duration::from_secs(60);

const RUN: &str = r#"
[data]
source = "synthetic_images"
samples = 61
test_samples = 20
shape = [1, 4, 4]
classes = 3
[model]
kind = "mlp"
hidden = [32, 16]
[train]
steps = 9
global_batch_size = 16
[workers]
logical_shards = 5
[comm]
bucket_bytes_max = 1024
"#;

fn config(steps: u64, sets: &[&str]) -> RunConfig {
    let sets: Vec<Override> = sets
        .iter()
        .map(|set| Override::Set((*set).to_owned()))
        .collect();
    let run = RUN.replace("steps = 9", &format!("steps = {steps}"));
    Document::load(&run, "test", &[], &sets).unwrap().0
}

/// The members of the job, as a supervisor knows them.
#[derive(Default)]
struct Members {
    generation: u64,
    /// The listening address of each worker, in the order of ranks.
    present: Vec<(u32, SocketAddr)>,
    /// The members of the previous generation.
    before: Vec<u32>,
    /// The generation that each worker has entered.
    entered: BTreeMap<u32, Generation>,
    /// Whether a new generation begins when a worker requests one.
    begins_on_request: bool,
    /// Whether the first worker that leaves its generation has to save the state alone.
    saves_alone: bool,
}

#[derive(Default)]
struct Job {
    members: Mutex<Members>,
    changed: Condvar,
    events: Mutex<Vec<Event>>,
    recorded: Condvar,
    run: RunSettings,
    /// The folder of the checkpoints, if the run saves any.
    checkpoints: Option<tempfile::TempDir>,
}

/// The settings of a run.
#[derive(Debug, Clone, Copy)]
struct RunSettings {
    steps: u64,
    sets: &'static [&'static str],
}

impl Default for RunSettings {
    fn default() -> Self {
        PLAIN
    }
}

/// The settings of most runs.
const PLAIN: RunSettings = RunSettings {
    steps: STEPS,
    sets: &[],
};

impl Job {
    /// Returns a job without members.
    fn of(run: RunSettings) -> Arc<Self> {
        let saves = run.sets.iter().any(|set| set.starts_with("checkpoint."));
        Arc::new(Self {
            run,
            checkpoints: saves.then(|| tempfile::tempdir().unwrap()),
            ..Self::default()
        })
    }

    /// Changes the members and begins another generation.
    fn change(&self, change: impl FnOnce(&mut Members)) {
        let mut members = self.members.lock().unwrap();
        members.before = members.present.iter().map(|(id, _)| *id).collect();
        change(&mut members);
        members.generation += 1;
        self.changed.notify_all();
    }
}

impl Tracker for Job {
    fn record(&self, event: Event) {
        self.events.lock().unwrap().push(event);
        self.recorded.notify_all();
    }
}

/// One worker's membership.
struct TestMember {
    job: Arc<Job>,
    id: u32,
}

impl TestMember {
    fn assignment(&self, members: &Members) -> Option<Assignment> {
        let rank = members.present.iter().position(|(id, _)| *id == self.id)?;
        let world_size = WorldSize::new(members.present.len() as u32)?;
        Some(Assignment {
            job: "job".to_owned(),
            generation: Generation(members.generation),
            policy: MembershipPolicy::Elastic,
            rank: Rank(rank as u32),
            world_size,
            local_rank: rank as u32,
            local_world_size: world_size.get(),
            peers: members.present.iter().map(|(_, at)| *at).collect(),
            purpose: GenerationPurpose::Train,
            awaited: 0,
            task: String::new(),
        })
    }
}

impl JobMember for TestMember {
    fn pending(&self) -> Option<Generation> {
        let members = self.job.members.lock().unwrap();
        let newest = Generation(members.generation);
        (members.entered.get(&self.id).is_some_and(|g| *g < newest)
            && members.present.iter().any(|(id, _)| *id == self.id))
        .then_some(newest)
    }

    fn entered(&self, generation: Generation, _group: Arc<dyn Collectives>) {
        let mut members = self.job.members.lock().unwrap();
        members.entered.insert(self.id, generation);
    }

    fn drops_members(&self) -> bool {
        self.job.members.lock().unwrap().drops_members()
    }

    fn reached(&self, _milestone: Milestone) {}

    fn drain(&self) {}

    fn farewell(&self) -> bool {
        true
    }

    fn next(&self, departure: Option<Departure>) -> Result<Assignment, MembershipError> {
        let Departure { left, cause, .. } = departure.expect("the first assignment is given");
        let mut members = self.job.members.lock().unwrap();
        if std::mem::take(&mut members.saves_alone) {
            let generation = Generation(members.generation);
            return Err(MembershipError::CheckpointRequested { generation });
        }
        if members.begins_on_request && members.generation <= left.0 {
            members.generation += 1;
            self.job.changed.notify_all();
        }
        let waits = |members: &mut Members| members.generation <= left.0;
        let (mut members, late) = self
            .job
            .changed
            .wait_timeout_while(members, LIMIT, waits)
            .unwrap();
        if late.timed_out() {
            return Err(MembershipError::Timeout {
                left,
                cause,
                limit_s: LIMIT.as_secs(),
            });
        }
        let newest = Generation(members.generation);
        members.entered.insert(self.id, newest);
        self.assignment(&members)
            .ok_or_else(|| MembershipError::Ended {
                reason: "not a member".to_owned(),
            })
    }
}

/// The number of steps of most runs.
const STEPS: u64 = 9;

/// A planned number of steps of runs that a callback ends after [`STEPS`].
const ENDED_BY_CALLBACK: u64 = 50;

/// The settings of runs that a callback ends.
const ENDED: RunSettings = RunSettings {
    steps: ENDED_BY_CALLBACK,
    sets: &[],
};

/// Ends a run after [`STEPS`].
struct EndsRun;

impl Callback for EndsRun {
    fn after_step(&mut self, report: &StepReport, actions: &mut Actions) {
        if report.step.0 + 2 == STEPS {
            actions.stop();
        }
    }
}

/// The bits of weights and states of the optimizer, of the elements that a worker holds.
#[derive(Debug)]
struct Bits(Vec<(HeldRanges, Vec<u32>)>);

impl Bits {
    /// Returns whether all elements have the bits of a worker that holds everything.
    fn agree_with(&self, whole: &Self) -> bool {
        let pairs = self.0.iter().zip(&whole.0);
        self.0.len() == whole.0.len()
            && pairs.into_iter().all(|((held, values), (all, expected))| {
                let mut rest = values.as_slice();
                held.ranges().iter().all(|range| {
                    let (part, after) = rest.split_at(range.len());
                    rest = after;
                    all.locate(range).map(|at| &expected[at]) == Some(part)
                })
            })
    }
}

/// Starts a worker that is already a member, with a fault to inject.
fn start(
    job: &Arc<Job>,
    id: u32,
    listener: std::net::TcpListener,
    fault: Option<InjectedFault>,
) -> JoinHandle<Result<Bits, TrainError>> {
    let job = job.clone();
    std::thread::spawn(move || {
        let member = Arc::new(TestMember {
            job: job.clone(),
            id,
        });
        let assignment = {
            let members = job.members.lock().unwrap();
            member.assignment(&members).unwrap()
        };
        member.entered(assignment.generation, Arc::new(ronde_comm_alone()));
        let config = config(job.run.steps, job.run.sets);
        let split = ronde_data::open(
            &config.data,
            &OpenContext::new(".".as_ref(), config.run.seed),
        )?;
        let plan = Plan::resolve(&config, assignment.world_size, &*split.train)?;
        let (saving, name) = (config.checkpoint.clone(), config.run.name.clone());
        let description = split.train.description();
        let (shape, classes) = (&description.shape, description.classes);
        let chain = config.model.config.build(shape, classes, &plan.seeds);
        let chain = chain.map_err(TrainError::Model)?;
        let access = JobAccess {
            member,
            assignment,
            listener: Some(listener),
            tracker: job.clone(),
            ..JobAccess::alone()
        };
        let mut member = join_job(access, &plan)?;
        if let Some(fault) = fault {
            let inner = member.group;
            let operations = Arc::new(AtomicU32::new(0));
            if let InjectedFault::Dies(_) = fault {
                member.policy = MembershipPolicy::Fixed;
            }
            member.group = Arc::new(FaultyGroup {
                inner,
                fault,
                operations,
                stop: stopped::wait(&job, id),
            });
        }
        let (start, model) = (&config.model.start, &config.model.config);
        let initial = InitialWeightFile::of(start, "/".as_ref(), Some(model));
        let mut training = Training::new(member, plan, chain, split)?
            .with_initial_weights(initial)
            .with_whole_model();
        if let Some(folder) = &job.checkpoints {
            let store: Arc<dyn Store> = Arc::new(LocalStore::new(folder.path()));
            let run = (String::new(), PathBuf::new());
            let saving = RunCheckpoints::new(&saving, store, "here".to_owned(), name, run);
            training = training.with_checkpoints(Some(saving), Resume::Never, Arc::default());
        }
        if job.run.steps == ENDED_BY_CALLBACK {
            training = training.with_callbacks(vec![Box::new(EndsRun)]);
        }
        training.run()?;
        bits_of(training)
    })
}

/// Returns the bits of a finished training; with those of the whole model if the workers divide the weights.
fn bits_of(training: Training) -> Result<Bits, TrainError> {
    let vectors = training.vectors();
    let bits = vectors.into_iter().map(|vector| {
        let values = vector.values.iter().map(|value| value.to_bits());
        (vector.held.into_owned(), values.collect())
    });
    let mut bits: Vec<(HeldRanges, Vec<u32>)> = bits.collect();
    let section = &training.plan().config.parallel;
    if section.divides_model() || section.zero_level() == ZeroLevel::Weights {
        let model = training.into_model()?;
        let whole = model.state();
        let values = whole.values().iter().map(|value| value.to_bits());
        bits.push((whole.all(), values.collect()));
    }
    Ok(Bits(bits))
}

fn ronde_comm_alone() -> ronde_comm::ProcessGroup {
    ronde_comm::ProcessGroup::alone(ronde_comm::GroupConfig::new("none", "none", GroupRank(0)))
}

/// The result of a job.
struct JobResult {
    bits: Vec<Bits>,
    events: Vec<Event>,
}

/// Trains with `count` workers. `deaths` lists which worker dies at which of its operations; with `replaced`, a
/// new worker joins for each.
fn train(count: u32, deaths: &[(u32, u32)], replaced: bool) -> JobResult {
    train_with(PLAIN, count, deaths, replaced, None)
}

/// As [`train`], with a fault to inject in new workers.
fn train_with(
    run: RunSettings,
    count: u32,
    deaths: &[(u32, u32)],
    replaced: bool,
    fault_of_new: Option<InjectedFault>,
) -> JobResult {
    train_job(&Job::of(run), count, deaths, replaced, fault_of_new)
}

/// As [`train_with`], in a job.
fn train_job(
    job: &Arc<Job>,
    count: u32,
    deaths: &[(u32, u32)],
    replaced: bool,
    fault_of_new: Option<InjectedFault>,
) -> JobResult {
    let bound = || ronde_comm::bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
    let mut listeners = Vec::new();
    for id in 0..count {
        let (listener, address) = bound();
        listeners.push(listener);
        job.members.lock().unwrap().present.push((id, address));
    }
    let fault = |id: u32| {
        let death = deaths.iter().find(|death| death.0 == id)?;
        Some(InjectedFault::Dies(death.1))
    };
    let mut workers: Vec<_> = listeners
        .into_iter()
        .zip(0..)
        .map(|(listener, id)| (id, start(job, id, listener, fault(id))))
        .collect();
    let mut bits = Vec::new();
    // In the order of their deaths, so that no thread join waits for a later one.
    let mut dying: Vec<(u32, u32)> = deaths.to_vec();
    dying.sort_by_key(|death| death.1);
    for (id, _) in dying {
        let at = workers.iter().position(|worker| worker.0 == id).unwrap();
        let (_, thread) = workers.remove(at);
        match thread.join() {
            // It finished before it reached that operation.
            Ok(Ok(end)) => bits.push(end),
            // It died, or it lost a peer before and stopped.
            Ok(Err(_)) | Err(_) => {
                let remove =
                    |members: &mut Members| members.present.retain(|(other, _)| *other != id);
                if !replaced {
                    job.change(remove);
                } else {
                    let (listener, address) = bound();
                    let new = 100 + id;
                    // In one change, so that the others do not finish in between.
                    job.change(|members| {
                        remove(members);
                        members.present.push((new, address));
                    });
                    let thread = start(job, new, listener, fault_of_new);
                    if !matches!(fault_of_new, Some(InjectedFault::Dies(_))) {
                        workers.push((new, thread));
                    } else if let Ok(Ok(end)) = thread.join() {
                        bits.push(end);
                    } else {
                        job.change(|members| members.present.retain(|(id, _)| *id != new));
                    }
                }
            }
        }
    }
    bits.extend(ends(workers));
    let events = std::mem::take(&mut *job.events.lock().unwrap());
    JobResult { bits, events }
}

/// Waits for the remaining workers, which must reach the end.
fn ends(workers: Vec<(u32, JoinHandle<Result<Bits, TrainError>>)>) -> Vec<Bits> {
    let ends = workers.into_iter();
    let mut ends: Vec<_> = ends
        .map(|(id, thread)| (id, thread.join().unwrap()))
        .collect();
    if ends.iter().any(|(id, end)| *id < 100 && end.is_ok()) {
        // A worker died in the last operation of the run, after which no member waits for its replacement.
        let is_late =
            |end: &Result<Bits, TrainError>| matches!(end, Err(TrainError::Membership(_)));
        ends.retain(|(id, end)| *id < 100 || !is_late(end));
    }
    let end = |(id, end): (u32, Result<Bits, TrainError>)| match end {
        Ok(end) => end,
        Err(error) => panic!("worker {id}: {error}"),
    };
    ends.into_iter().map(end).collect()
}

/// Returns how often the run began again with its first step.
fn restarts(events: &[Event]) -> usize {
    let is_restart = |event: &&Event| matches!(event, Event::RunRestarted { .. });
    events.iter().filter(is_restart).count()
}

/// Lets one of `count` workers die at different operations, some of which lose a part of the state. Every run must end with the bits of
/// `undisturbed`, and some must begin again.
fn begins_again(run: RunSettings, count: u32, undisturbed: &Bits) {
    let mut restarted = 0;
    for operation in (18..66).step_by(6) {
        let is_replaced = operation % 4 == 0;
        let id = u32::from(operation % 9 != 0);
        let end = train_with(run, count, &[(id, operation)], is_replaced, None);
        let place = format!("{id} at {operation} with {run:?}");
        let same = |bits: &Bits| bits.agree_with(undisturbed);
        assert!(end.bits.len() >= 2 && end.bits.iter().all(same), "{place}");
        let steps = steps(&end.events);
        assert_eq!(
            steps,
            (0..steps.len() as u64).collect::<Vec<_>>(),
            "{place}"
        );
        restarted += restarts(&end.events);
    }
    assert!(restarted > 0, "{run:?}");
}

/// Returns the steps that any worker recorded as committed, without duplicates.
fn steps(events: &[Event]) -> Vec<u64> {
    let mut steps: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::StepCommitted { step, .. } => Some(step.0),
            _ => None,
        })
        .collect();
    steps.sort_unstable();
    steps.dedup();
    steps
}

#[test]
fn a_death_at_any_operation_preserves_the_bits() {
    let undisturbed = train(1, &[], false).bits.remove(0);
    // With about three buckets and one vote per step, this extends into the fourth step.
    for operation in 0..15 {
        for id in [0, 2] {
            let end = train(3, &[(id, operation)], false);
            assert_eq!(end.bits.len(), 2, "{id} at {operation}");
            assert!(end.bits.iter().all(|bits| bits.agree_with(&undisturbed)));
            assert_eq!(steps(&end.events), (0..9).collect::<Vec<_>>());
            let resumed = end
                .events
                .iter()
                .any(|e| matches!(e, Event::Resumed { .. }));
            assert!(resumed, "{id} at {operation}");
        }
    }
}

#[test]
fn training_continues_while_a_state_is_transferred() {
    // Long enough for a new worker to join.
    let many = 600;
    let long = RunSettings {
        steps: many,
        ..PLAIN
    };
    let undisturbed = train_with(long, 1, &[], false, None).bits.remove(0);
    // After a few steps, after many, and only when all members wait for it.
    for until in [8, 20, 50, 10_000] {
        let late = Some(InjectedFault::ReceivesLate(until));
        let end = train_with(long, 3, &[(2, 60)], true, late);
        assert_eq!(end.bits.len(), 3, "until {until}");
        let same = |bits: &Bits| bits.agree_with(&undisturbed);
        assert!(end.bits.iter().all(same), "until {until}");
        assert_eq!(steps(&end.events), (0..many).collect::<Vec<_>>());
        let joined = |event: &Event| match event {
            Event::Resumed { step, healed, .. } => *healed == 1 && step.0 + 20 < many,
            _ => false,
        };
        let resumed = |e: &&Event| matches!(e, Event::Resumed { .. });
        let all: Vec<&Event> = end.events.iter().filter(resumed).collect();
        assert!(end.events.iter().any(joined), "until {until}: {all:?}");
    }
}

#[test]
fn a_replacement_copies_the_state_and_ends_with_the_same_bits() {
    let undisturbed = train(1, &[], false).bits.remove(0);
    for operation in [0, 3, 6, 9, 13] {
        for id in [0, 2] {
            let end = train(3, &[(id, operation)], true);
            assert_eq!(end.bits.len(), 3, "{id} at {operation}");
            assert!(
                end.bits.iter().all(|bits| bits.agree_with(&undisturbed)),
                "{id} at {operation}"
            );
        }
    }
}

#[test]
fn half_of_the_workers_die_and_are_replaced() {
    let undisturbed = train(1, &[], false).bits.remove(0);
    for replaced in [false, true] {
        let end = train(4, &[(1, 5), (3, 6)], replaced);
        assert_eq!(end.bits.len(), if replaced { 4 } else { 2 });
        assert!(end.bits.iter().all(|bits| bits.agree_with(&undisturbed)));
    }
}

/// Trains with three workers, lets one miss the outcome of an operation, and returns how often a stored gradient
/// was applied.
fn miss_outcome(run: RunSettings, operation: u32, undisturbed: &Bits) -> usize {
    let job = Arc::new(Job {
        run,
        ..Job::default()
    });
    let mut listeners = Vec::new();
    for id in 0..3 {
        let (listener, address) = ronde_comm::bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        listeners.push(listener);
        let mut members = job.members.lock().unwrap();
        members.present.push((id, address));
        members.begins_on_request = true;
    }
    let fault = |id| (id == 1).then_some(InjectedFault::MissesOutcome(operation));
    let workers: Vec<_> = listeners
        .into_iter()
        .zip(0..)
        .map(|(listener, id)| start(&job, id, listener, fault(id)))
        .collect();
    for worker in workers {
        let bits = worker.join().unwrap().unwrap();
        assert!(bits.agree_with(undisturbed), "{operation}");
    }
    let events = job.events.lock().unwrap();
    assert_eq!(steps(&events), (0..STEPS).collect::<Vec<_>>());
    let applied = |event: &&Event| matches!(event, Event::Resumed { applied: 1, .. });
    events.iter().filter(applied).count()
}

#[test]
fn a_worker_that_misses_the_outcome_of_a_vote_applies_its_stored_gradient() {
    let undisturbed = train(1, &[], false).bits.remove(0);
    let applied = (0..12).map(|operation| miss_outcome(PLAIN, operation, &undisturbed));
    let applied: usize = applied.sum();
    // About a quarter of the operations are votes.
    assert!(applied >= 2, "{applied}");
}

#[test]
fn all_workers_end_at_the_step_of_a_callback_when_one_is_lost_there() {
    let undisturbed = train(1, &[], false).bits.remove(0);
    // Four operations in each step: from the seventh to the last one, with its vote, and those before the farewell.
    let operations = 26..38;
    let applied = operations
        .clone()
        .map(|operation| miss_outcome(ENDED, operation, &undisturbed));
    let applied: usize = applied.sum();
    assert!(applied >= 2, "{applied}");
    for operation in operations {
        let end = train_with(ENDED, 3, &[(0, operation)], false, None);
        let same = |bits: &Bits| bits.agree_with(&undisturbed);
        assert!(end.bits.iter().all(same), "{operation}");
        assert_eq!(steps(&end.events), (0..STEPS).collect::<Vec<_>>());
    }
}

/// Tensors of several blocks, so that each of three workers holds slices.
const WIDE: &str = "model.hidden=[300, 64]";

/// Returns the bits of a run that nothing disturbs, of one worker, with the whole state.
fn alone(run: RunSettings) -> Bits {
    train_with(run, 1, &[], false, None).bits.remove(0)
}
