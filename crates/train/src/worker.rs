//! A worker process, from its assignment to the trained model: the course of a run on one screen.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ronde_checkpoint::CheckpointError;
use ronde_comm::{ConnectionPool, GroupConfig, ProcessGroup, Security};
use ronde_core::{Event, Group, GroupRank, NullTracker, Rank, Tracker};
use ronde_data::DataEvent;
use ronde_engine::LayerExt;
use ronde_protocol::{Assignment, JobMember, LoneMember, MembershipPolicy};

use crate::checkpoints::{self, ProcessContext, Resume, RunCheckpoints};
use crate::config::RunConfig;
use crate::connector::GenerationConnector;
use crate::core_pinning::{self, CorePinning};
use crate::error::TrainError;
use crate::export::{self, ModelDescription};
use crate::flight_records::FlightRecordWriter;
use crate::initial_state;
use crate::initial_weights::InitialWeightFile;
use crate::job_group::JobGroup;
use crate::plan::Plan;
use crate::recording::RecordingThread;
use crate::task::WorkerTask;
use crate::training::Training;
use crate::training::TrainingResult;

/// A function that returns how the connections of an assignment's group are secured. Equal on all members.
pub type SecurityPolicy = Arc<dyn Fn(&Assignment) -> Security + Send + Sync>;

/// Returns a policy of unencrypted connections that requires all members to use loopback addresses.
#[must_use]
pub fn on_one_host() -> SecurityPolicy {
    Arc::new(|_| Security::PlainLoopbackOnly)
}

/// Everything through which a worker process takes part in its job.
pub struct JobAccess {
    /// The worker's membership in the job.
    pub member: Arc<dyn JobMember>,
    /// The worker's first assignment.
    pub assignment: Assignment,
    /// The listener that peers connect to; `None`: without peers.
    pub listener: Option<TcpListener>,
    /// The security of the connections between workers.
    pub secure: SecurityPolicy,
    /// The tracker of the worker's events.
    pub tracker: Arc<dyn Tracker>,
    /// The writer of the flight records of the worker's groups.
    pub flight_records: Arc<FlightRecordWriter>,
}

impl JobAccess {
    /// Returns the access of the only worker of a job, which no supervisor started.
    #[must_use]
    pub fn alone() -> Self {
        Self {
            member: Arc::new(LoneMember),
            assignment: Assignment::alone(),
            listener: None,
            secure: on_one_host(),
            tracker: Arc::new(NullTracker),
            flight_records: Arc::default(),
        }
    }
}

/// Runs the task of the assignment: plan, group, model, steps, result. Flight records are written to the run's folder.
///
/// # Errors
/// The first error of the run.
pub fn run(job: JobAccess, context: &ProcessContext) -> Result<TrainingResult, TrainError> {
    let (assignment, tracker) = (job.assignment.clone(), job.tracker.clone());
    let (task, config) = WorkerTask::decode(&assignment.task)?;
    job.flight_records
        .set_folder(task.output.join(FlightRecordWriter::FOLDER));
    let report = data_reporter(assignment.rank, &tracker);
    let opening = context.opening(&task.base, config.run.seed, report);
    let split = ronde_data::open(&config.data, &opening)?;
    let mut plan = Plan::resolve(&config, assignment.world_size, &*split.train)?;
    plan.identity.set_lineage(&task.lineage);
    let description = split.train.description();
    let model = &config.model.config;
    let published = ModelDescription::new(Some(model.clone()), description);
    let mut chain = model
        .build(&description.shape, description.classes, &plan.seeds)
        .map_err(TrainError::Model)?;
    initial_state::from_samples(&plan, &mut chain, &*split.train)?;
    let initial = InitialWeightFile::of(&config.model.start, &task.base, Some(model));
    plan.bind_model(chain.layout())?;
    plan.bind_evaluations(split.test.as_deref())?;

    // Before any other thread is started, because threads inherit the cores of the thread that starts them.
    let (rank, workers) = (assignment.local_rank, assignment.local_world_size);
    let threads = config.workers.threads;
    let cores = config.workers.pin_cores;
    let cores = cores.then(|| CorePinning::reserve(rank, workers, threads));
    if rank == 0 && matches!(cores, Some(None)) {
        tracker.record(Event::Notice {
            rank: Some(assignment.rank),
            message: core_pinning::no_effect(workers, threads),
        });
    }
    let saving = saving(&config, &task, context)?;
    let resume = if task.resumes {
        Resume::Required
    } else {
        Resume::Never
    };
    let (flight_records, run) = (job.flight_records.clone(), task.output.clone());
    let group = join_job(job, &plan)?;
    let training = Training::new(group, plan, chain, split)?
        .with_initial_weights(initial)
        .with_checkpoints(Some(saving), resume, context.stop.clone())
        .with_cores(cores.flatten())
        .with_engine(&config.train, threads)?
        .with_free_cores(core_pinning::free(workers, threads));
    let recorder = training.recorder();
    let recording = RecordingThread::start(run, recorder, flight_records, tracker.clone());
    let mut training = training.with_recording(recording);
    training.run_and_publish(&mut |training, trained| {
        publish(
            training,
            &task.output,
            published.clone(),
            trained,
            &*tracker,
        )
    })
}

/// Returns a function that records notices about the data. Progress of opening it is shown by the launcher.
fn data_reporter(rank: Rank, tracker: &Arc<dyn Tracker>) -> Arc<dyn Fn(&DataEvent) + Send + Sync> {
    let tracker = Arc::clone(tracker);
    Arc::new(move |news| {
        if let DataEvent::Notice(message) = news {
            tracker.record(Event::Notice {
                rank: Some(rank),
                message: message.clone(),
            });
        }
    })
}

/// Opens the checkpoints of a run.
fn saving(
    config: &RunConfig,
    task: &WorkerTask,
    context: &ProcessContext,
) -> Result<RunCheckpoints, TrainError> {
    let section = &config.checkpoint;
    let store = checkpoints::open(section, &task.base, &task.output, context)?;
    let address = section
        .address(&task.output)
        .map_err(CheckpointError::from)?;
    let run = (config.to_toml()?, task.base.clone());
    let name = config.run.name.clone();
    Ok(RunCheckpoints::new(
        section,
        store,
        address.to_string(),
        name,
        run,
    ))
}

/// Joins the job; the peers must have the same plan.
///
/// # Errors
/// A peer cannot be reached or has another plan.
pub fn join_job(job: JobAccess, plan: &Plan) -> Result<JobGroup, TrainError> {
    let JobAccess {
        member,
        assignment,
        listener,
        secure,
        tracker,
        flight_records,
    } = job;
    let plan = plan.clone();
    let pool = ConnectionPool::default();
    let connect = move |assignment: &Assignment, listener, give_up| {
        let mut config = GroupConfig::new("dp", &assignment.job, GroupRank(assignment.rank.0));
        config.give_up = Some(give_up);
        config.security = secure(assignment);
        config.connection_pool = Some(pool.clone());
        connect(assignment, listener, &plan, config, &flight_records)
    };
    let connector = GenerationConnector::new(member, listener, Box::new(connect));
    JobGroup::join(&assignment, connector, tracker)
}

/// How long a member keeps the connections of a failed group open if the coordinator reports the failure to all
/// members.
pub const LINGER_FAILED: Duration = Duration::from_millis(5);

/// Connects to the peers of an assignment, which must have the same plan, with the settings of `config` and the plan.
///
/// # Errors
/// A peer cannot be reached or has another plan.
fn connect(
    assignment: &Assignment,
    listener: Option<TcpListener>,
    plan: &Plan,
    mut config: GroupConfig,
    flight_records: &FlightRecordWriter,
) -> Result<Arc<dyn Group>, TrainError> {
    config.generation = assignment.generation;
    if assignment.policy == MembershipPolicy::Elastic {
        config.linger_failed = LINGER_FAILED;
    }
    flight_records.prepare(&mut config);
    config.plan = plan.identity.clone();
    config.timeout = plan.exchange_timeout(assignment.world_size);
    config.algorithm = plan.config.comm.algorithm;
    config.transport = plan.config.comm.transport;
    let group = match listener {
        Some(listener) if assignment.world_size.get() > 1 => {
            ProcessGroup::connect(config, listener, &assignment.peers).map_err(|source| {
                TrainError::Connect {
                    rank: assignment.rank.0,
                    source,
                }
            })?
        }
        _ => ProcessGroup::alone(config),
    };
    let group = Arc::new(group);
    flight_records.watch(&group);
    Ok(group)
}

/// Writes a trained model to the folder of its run, and records the end of the run.
///
/// # Errors
/// A file cannot be written.
pub fn publish(
    training: &Training,
    output: &Path,
    model: ModelDescription,
    trained: &TrainingResult,
    tracker: &dyn Tracker,
) -> Result<(), TrainError> {
    let plan = training.plan();
    std::fs::create_dir_all(output).map_err(|source| TrainError::File {
        action: "create",
        path: output.to_owned(),
        source,
    })?;
    let model = model.evaluated(trained, training.steps());
    let steps = trained.model_steps(training.steps());
    let saved = export::save_when_there_is_space(output, training, steps, &model, tracker)?;
    if let Some(message) = plan.config.checkpoint.plain_model_note(output) {
        let rank = Some(training.rank());
        tracker.record(Event::Notice { rank, message });
    }
    tracker.record(Event::ModelSaved {
        path: saved.weights.display().to_string(),
        config_path: saved.manifest.display().to_string(),
        blake3: saved.blake3,
    });
    tracker.record(trained.finished(training.steps()));
    Ok(())
}
