//! A worker process, from its assignment to the trained model: the way of a run on one screen.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use ronde_checkpoint::CheckpointError;
use ronde_comm::{JoinCancellation, GroupConfig, ProcessGroup, Security, TransportChoice};
use ronde_core::{Assignment, Event, Group, GroupRank, Membership, Rank, Tracker};
use ronde_data::DataNews;
use ronde_engine::Layer;
use ronde_schedule::Algorithm;

use crate::checkpoints::{self, Resume, Saving, Surroundings};
use crate::config::{CommAlgorithm, CommTransport};
use crate::cores::{self, Cores};
use crate::export::{self, Described};
use crate::flights::Flights;
use crate::training::Trained;
use crate::{Place, Plan, RunConfig, Task, TrainError, Training};

/// How the connections of an assignment's group are secured. Equal on all of its members.
pub type Secure = Arc<dyn Fn(&Assignment) -> Security + Send + Sync>;

/// Plain connections, and only as long as all members are on loopback addresses.
#[must_use]
pub fn on_one_host() -> Secure {
    Arc::new(|_| Security::PlainLoopbackOnly)
}

/// Runs `assignment.task`: plan, group, model, steps, result. Flight records go beside the result.
///
/// # Errors
/// The first thing that goes wrong, with all that the user needs to know.
pub fn run(
    assignment: &Assignment,
    listener: Option<TcpListener>,
    membership: Option<Arc<dyn Membership>>,
    secure: &Secure,
    tracker: &Arc<dyn Tracker>,
    flights: &Arc<Flights>,
    surroundings: &Surroundings,
) -> Result<Trained, TrainError> {
    let (task, config) = Task::decode(&assignment.task)?;
    flights.go_to(task.output.join(Flights::FOLDER));
    let tell = tell_of_data(assignment.rank, tracker);
    let opening = surroundings.opening(&task.base, config.run.seed, tell);
    let split = ronde_data::open(&config.data, &opening)?;
    let mut plan = Plan::resolve(&config, assignment.world_size, &*split.train)?;
    let (input_shape, classes) = (split.train.sample_shape().to_vec(), split.train.classes());
    let chain = config
        .model
        .build(&input_shape, classes, &plan.seeds)
        .map_err(TrainError::Model)?;
    plan.bind_model(chain.layout());

    // Before any other thread is started: those stay where this one is then.
    let cores = config.workers.pin_cores;
    let cores = cores.then(|| Cores::take(assignment.local_rank, assignment.local_world_size));
    let saving = saving(&config, &task, surroundings)?;
    let resume = if task.resumes {
        Resume::Must
    } else {
        Resume::Never
    };
    let place = take_place(
        assignment,
        listener,
        membership,
        (&plan, secure),
        tracker.clone(),
        flights,
    )?;
    let mut training = Training::new(place, plan, chain, split)
        .with_checkpoints(Some(saving), resume, surroundings.stop.clone())
        .with_cores(cores.flatten())
        .with_free_cores(cores::free(assignment.local_world_size));
    let model = Described {
        config: Some(config.model.clone()),
        input_shape,
        classes,
    };
    training.run_and_publish(&mut |training, trained| {
        publish(training, &task, &config, model.clone(), trained, &**tracker)
    })
}

/// Passes on what users should read about the data; how far opening it is, the launcher shows before.
fn tell_of_data(rank: Rank, tracker: &Arc<dyn Tracker>) -> Arc<dyn Fn(&DataNews) + Send + Sync> {
    let tracker = Arc::clone(tracker);
    Arc::new(move |news| {
        if let DataNews::Notice(message) = news {
            tracker.record(Event::Notice {
                rank: Some(rank),
                message: message.clone(),
            });
        }
    })
}

/// The checkpoints of a run that a run file describes.
fn saving(
    config: &RunConfig,
    task: &Task,
    surroundings: &Surroundings,
) -> Result<Saving, TrainError> {
    let section = &config.checkpoint;
    let store = checkpoints::open(section, &task.base, &task.output, surroundings)?;
    let address = section
        .address(&task.output)
        .map_err(CheckpointError::from)?;
    let run = (config.to_toml()?, task.base.clone());
    let name = config.run.name.clone();
    Ok(Saving::new(section, store, address.to_string(), name, run))
}

/// Takes the place of an assignment; the peers must hold the same plan. A world of one has no listener.
/// `flights` watches the group of each generation.
///
/// # Errors
/// A peer cannot be reached or has another plan.
pub fn take_place(
    assignment: &Assignment,
    listener: Option<TcpListener>,
    membership: Option<Arc<dyn Membership>>,
    (plan, secure): (&Plan, &Secure),
    tracker: Arc<dyn Tracker>,
    flights: &Arc<Flights>,
) -> Result<Place, TrainError> {
    let Some(listener) = listener else {
        return Ok(Place {
            group: connect(assignment, None, (plan, secure), None, flights)?,
            generation: assignment.generation,
            rank: assignment.rank,
            tracker,
            seat: None,
        });
    };
    let (plan, secure, flights) = (plan.clone(), Arc::clone(secure), flights.clone());
    let goes_on = membership.is_some();
    let connect = move |assignment: &Assignment, listener, give_up| {
        let (plan, give_up) = ((&plan, &secure), Some((give_up, goes_on)));
        connect(assignment, Some(listener), plan, give_up, &flights)
    };
    Place::take(assignment, listener, membership, Box::new(connect), tracker)
}

/// How long a member that leaves a failed group stays, where the coordinator tells all of the failure.
pub const LINGER_FAILED: Duration = Duration::from_millis(5);

/// Connects to the peers of an assignment, until `give_up` says that it is no use any more; they must
/// hold the same plan. With `give_up`: whether others go on when this group fails.
///
/// # Errors
/// A peer cannot be reached or has another plan.
pub fn connect(
    assignment: &Assignment,
    listener: Option<TcpListener>,
    (plan, secure): (&Plan, &Secure),
    give_up: Option<(JoinCancellation, bool)>,
    flights: &Flights,
) -> Result<Arc<dyn Group>, TrainError> {
    let mut config = GroupConfig::new("dp", &assignment.job, GroupRank(assignment.rank.0));
    config.generation = assignment.generation;
    if let Some((give_up, goes_on)) = give_up {
        config.give_up = Some(give_up);
        if goes_on {
            config.linger_failed = LINGER_FAILED;
        }
    }
    config.security = secure(assignment);
    flights.prepare(&mut config);
    config.plan = plan.identity.clone();
    config.timeout = plan.config.comm.timeout();
    config.algorithm = algorithm(&plan.config);
    config.transport = match plan.config.comm.transport {
        CommTransport::Auto => TransportChoice::Auto,
        CommTransport::SharedMemory => TransportChoice::SharedMemory,
        CommTransport::Tcp => TransportChoice::Tcp,
    };
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
    flights.watch(&group);
    Ok(group)
}

/// The algorithm that the run asks for; `None` chooses.
fn algorithm(config: &RunConfig) -> Option<Algorithm> {
    match config.comm.algorithm {
        CommAlgorithm::Auto => None,
        CommAlgorithm::Direct => Some(Algorithm::Direct),
        CommAlgorithm::HalvingDoubling => Some(Algorithm::HalvingDoubling),
        CommAlgorithm::Tree => Some(Algorithm::Tree),
        CommAlgorithm::Driver => Some(Algorithm::Driver),
    }
}

fn publish(
    training: &Training,
    task: &Task,
    config: &RunConfig,
    model: Described,
    trained: &Trained,
    tracker: &dyn Tracker,
) -> Result<(), TrainError> {
    let plan = training.plan().clone();
    let saved = export::save(&task.output, training.state(), &plan, model)?;
    export::publish(&task.output.join("run.toml"), config.to_toml()?.as_bytes())?;
    tracker.record(Event::ModelSaved {
        path: saved.model.display().to_string(),
        config_path: saved.config.display().to_string(),
        blake3: saved.blake3,
    });
    tracker.record(Event::RunFinished {
        steps: plan.steps,
        samples: trained.samples,
        duration_s: trained.duration_s,
    });
    Ok(())
}
