//! [`Worker`]: this process as one rank. The same program runs alone or under `ronde run`.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use ronde_cluster::{FixedMember, FixedRank, WaitSettings, WorkerLink};
use ronde_comm::{ConnectionPool, GroupConfig, ProcessGroup, Security};
use ronde_core::{CollectiveError, Event, Group, GroupRank, Rank, Step, Tracker, WorldSize};
use ronde_data::Split;
use ronde_identity::{Identity, Member};
use ronde_protocol::{Assignment, JobMember, MembershipPolicy};
use ronde_tracking::{Terminal, Verbosity};
use ronde_train::flight_records::FlightRecordWriter;
use ronde_train::worker::{JobAccess, LINGER_FAILED, SecurityPolicy, join_job, on_one_host};
use ronde_train::{
    GenerationConnector, JobGroup, Plan, RunConfig, StepLoop, StepLoopPlan, TrainError,
};

use crate::environment::{self, SupervisedWorker, WorkerEnvironment};
use crate::error::Error;
use crate::trainer::Trainer;

/// Time limit for connecting to the supervisor, or for meeting the other workers of another launcher.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The error of a second attempt to connect the group.
const GROUP_TAKEN: &str = "this process has already connected its group; split it or share it";

/// This process as one rank of a job.
pub struct Worker {
    job: JobAccess,
    link: Option<WorkerLink>,
}

impl Worker {
    /// Joins the job of the supervisor that started this process (`ronde run`, `ronde train`), or of another launcher,
    /// such as mpirun, srun or torchrun, which [`WorkerEnvironment`] finds, or creates a job of one worker.
    ///
    /// # Errors
    /// The supervisor cannot be reached, or not all ranks joined in time.
    pub fn start() -> Result<Self, Error> {
        let worker = match WorkerEnvironment::read().map_err(Error::Environment)? {
            Some(WorkerEnvironment::Supervised(environment)) => Self::supervised(&environment)?,
            Some(WorkerEnvironment::Fixed { rank, .. }) => Self::fixed(&rank, "")?,
            None => Self {
                job: JobAccess::alone(),
                link: None,
            },
        };
        if let Some(folder) = environment::flight_folder() {
            worker.flights().set_folder(folder);
        }
        Ok(worker)
    }

    /// Joins a job whose processes another launcher starts, such as mpirun, srun or torchrun: its members are never
    /// replaced. Rank 0 passes `task` to all workers. Connections between hosts use TLS 1.3 with certificates on both sides,
    /// by an authority that all workers derive from their token; without a token they are refused unless
    /// [`environment::RONDE_ALLOW_PLAIN`] is set. The ranks wait for each other for at most a minute; what they wait for is
    /// printed to standard error after 2 s.
    ///
    /// # Errors
    /// Not all ranks met in time.
    pub fn fixed(mine: &FixedRank, task: &str) -> Result<Self, Error> {
        let terminal = Terminal::stderr(false, Verbosity::Normal);
        let wait = WaitSettings {
            timeout: CONNECT_TIMEOUT,
            notify: &mut |message| terminal.line(message),
        };
        let worker = Self::fixed_within(mine, task, wait);
        terminal.finish();
        worker
    }

    /// As [`fixed`](Self::fixed), with another limit and another receiver of messages.
    ///
    /// # Errors
    /// Not all ranks met in time.
    pub fn fixed_within(
        mine: &FixedRank,
        task: &str,
        wait: WaitSettings<'_>,
    ) -> Result<Self, Error> {
        let mut listener = None;
        let bind = |ip| {
            let (bound, address) = ronde_comm::bind(ip).map_err(std::io::Error::other)?;
            listener = Some(bound);
            Ok(address)
        };
        let member = FixedMember::meet(mine, task, bind, wait)?;
        let job = JobAccess {
            assignment: member.next(None).map_err(TrainError::Membership)?,
            secure: match (environment::allows_plain(), member.identity()) {
                (true, _) => Arc::new(|_| Security::Plain),
                (false, None) => on_one_host(),
                (false, Some(identity)) => among_ranks(identity.clone()),
            },
            member,
            listener,
            ..JobAccess::alone()
        };
        Ok(Self { job, link: None })
    }

    fn supervised(environment: &SupervisedWorker) -> Result<Self, Error> {
        let link = WorkerLink::connect(
            environment.control,
            &environment.token,
            environment.rank,
            environment.worker,
            CONNECT_TIMEOUT,
        )?;
        let (listener, address) = ronde_comm::bind(link.interface())?;
        let member = link.member(address)?;
        let job = JobAccess {
            assignment: member.next(None).map_err(TrainError::Membership)?,
            member,
            listener: Some(listener),
            secure: security(&link),
            tracker: link.tracker(),
            flight_records: Arc::default(),
        };
        Ok(Self {
            job,
            link: Some(link),
        })
    }

    /// Returns the rank of this process.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.job.assignment.rank
    }

    /// Returns the role that `ronde run --role` gives this process.
    #[must_use]
    pub fn role(&self) -> Option<String> {
        environment::role()
    }

    /// Returns the total number of worker processes.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.job.assignment.world_size.get()
    }

    /// Returns whether this is rank 0, which reports for all ranks. In an elastic job the ranks change: see
    /// [`crate::TrainedModel::is_first`] and [`StepLoop::is_first`].
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.job.assignment.rank == Rank(0)
    }

    /// Returns the supervisor's assignment of this process.
    #[must_use]
    pub fn assignment(&self) -> &Assignment {
        &self.job.assignment
    }

    /// Returns the flight recorder of this worker's groups. When a group fails, its record is written to the folder
    /// of `ronde run --flight`. A program may choose another folder, or write a record at any time.
    #[must_use]
    pub fn flights(&self) -> &Arc<FlightRecordWriter> {
        &self.job.flight_records
    }

    /// Returns the connection to the supervisor, if there is one.
    #[must_use]
    pub fn link(&self) -> Option<&WorkerLink> {
        self.link.as_ref()
    }

    /// Returns the tracker of this worker's events, which sends them to the supervisor if there is one.
    #[must_use]
    pub fn tracker(&self) -> Arc<dyn Tracker> {
        self.job.tracker.clone()
    }

    /// Replaces the tracker of this worker's events.
    pub fn set_tracker(&mut self, tracker: Arc<dyn Tracker>) {
        self.job.tracker = tracker;
    }

    /// Returns this worker's membership in its job.
    #[must_use]
    pub fn member(&self) -> Arc<dyn JobMember> {
        Arc::clone(&self.job.member)
    }

    /// Returns everything through which this process takes part in its job, for a custom training loop. Only the
    /// first result has the listener that the peers connect to.
    pub fn take_access(&mut self) -> JobAccess {
        JobAccess {
            member: Arc::clone(&self.job.member),
            assignment: self.job.assignment.clone(),
            listener: self.job.listener.take(),
            secure: Arc::clone(&self.job.secure),
            tracker: Arc::clone(&self.job.tracker),
            flight_records: Arc::clone(&self.job.flight_records),
        }
    }

    /// Connects all ranks into a group, for your own collectives and messages. A process can call this once. The
    /// group fails when a member is lost; see [`Worker::join`] for elastic jobs.
    ///
    /// # Errors
    /// A peer cannot be reached, or the group has been connected before.
    pub fn group(&mut self, name: &str) -> Result<ProcessGroup, Error> {
        let job = self.take_unused_access()?;
        let config = group_config(name, &job.assignment, &job.secure, &job.flight_records);
        Ok(connect(config, job.listener, &job.assignment)?)
    }

    /// Joins the job, for your own training loop that continues when workers die under `ronde run --elastic`.
    /// Without `--elastic` there is only one generation. A process can call this once.
    ///
    /// # Errors
    /// As [`Worker::group`].
    pub fn join(&mut self, name: &str) -> Result<JobGroup, Error> {
        let JobAccess {
            member,
            assignment,
            listener,
            secure,
            tracker,
            flight_records,
        } = self.take_unused_access()?;
        let name = name.to_owned();
        let pool = ConnectionPool::default();
        let connect = move |assignment: &Assignment, listener, give_up| {
            let mut config = group_config(&name, assignment, &secure, &flight_records);
            config.give_up = Some(give_up);
            config.connection_pool = Some(pool.clone());
            if assignment.policy == MembershipPolicy::Elastic {
                config.linger_failed = LINGER_FAILED;
            }
            let group = connect(config, listener, assignment);
            let group = Arc::new(group.map_err(|source| TrainError::Connect {
                rank: assignment.rank.0,
                source,
            })?);
            flight_records.watch(&group);
            Ok(group as Arc<dyn Group>)
        };
        let connector = GenerationConnector::new(member, listener, Box::new(connect));
        Ok(JobGroup::join(&assignment, connector, tracker)?)
    }

    /// Joins the job and begins your own training loop, which continues when workers die under `ronde run --elastic`. A
    /// process can call this once.
    ///
    /// # Errors
    /// As [`Worker::join`], and when the plan has no shards.
    pub fn step_loop(&mut self, name: &str, plan: StepLoopPlan) -> Result<StepLoop, Error> {
        Ok(StepLoop::new(self.join(name)?, plan)?)
    }

    /// Returns the access to the job unless its listener was used before.
    fn take_unused_access(&mut self) -> Result<JobAccess, Error> {
        let job = self.take_access();
        let has_peers = job.assignment.world_size > WorldSize::ONE
            || job.assignment.policy == MembershipPolicy::Elastic;
        match &job.listener {
            None if has_peers => Err(Error::GroupTaken(GROUP_TAKEN)),
            _ => Ok(job),
        }
    }

    /// Prepares the training of your own model to the end of `config`, on `data`.
    pub fn trainer(&mut self, config: &RunConfig, data: Split) -> Trainer<'_> {
        Trainer::new(self, config, data)
    }

    /// Joins the job, whose workers must have the same plan.
    pub(crate) fn join_with_plan(
        &mut self,
        plan: &Plan,
        tracker: Arc<dyn Tracker>,
    ) -> Result<JobGroup, Error> {
        let access = JobAccess {
            tracker,
            ..self.take_unused_access()?
        };
        Ok(join_job(access, plan)?)
    }

    /// Returns whether a supervisor has started this process; it shows the progress of the run.
    pub(crate) fn is_supervised(&self) -> bool {
        self.link.is_some()
    }

    /// Reports the failure of this worker to the supervisor, which prints it.
    pub fn report(&self, error: &Error, last_step: Option<Step>) {
        let (secondary, user_error) = match error {
            Error::Train(error) => (error.is_secondary(), error.is_user_error()),
            #[cfg(feature = "cli")]
            Error::Bench(error) => (error.is_secondary(), error.is_user_error()),
            Error::Collective(error) => (ronde_train::error::saw_another(error), false),
            Error::Data(_) | Error::Engine(_) => (false, true),
            _ => (false, false),
        };
        let rank = self.job.assignment.rank;
        let message = error.explain();
        self.job.tracker.record(Event::WorkerFailed {
            rank,
            message,
            last_step,
            secondary,
            user_error,
        });
        if let Some(link) = &self.link {
            link.finish();
        }
    }
}

/// Returns how the groups of workers with a token are secured: with TLS and the certificates of their ranks when any of them is
/// on another host.
fn among_ranks(identity: Identity) -> SecurityPolicy {
    Arc::new(move |assignment| {
        if assignment.peers.iter().all(|peer| peer.ip().is_loopback()) {
            return Security::PlainLoopbackOnly;
        }
        let ranks = assignment.world_size.ranks();
        Security::tls_among(identity.clone(), ranks.map(Member::Rank).collect())
    })
}

/// Returns how a worker's groups are secured: with TLS and the certificates of that generation's members when any
/// member is on another host. Members on one host use shared memory and loopback.
fn security(link: &WorkerLink) -> SecurityPolicy {
    let Some((identity, peers)) = link.identity().cloned().zip(link.peers()) else {
        return on_one_host();
    };
    Arc::new(move |assignment| {
        if assignment.peers.iter().all(|peer| peer.ip().is_loopback()) {
            return Security::PlainLoopbackOnly;
        }
        let workers = peers.workers(assignment.generation);
        let members = workers.into_iter().map(Member::Worker).collect();
        Security::tls_among(identity.clone(), members)
    })
}

/// Connects to the peers of an assignment.
fn connect(
    config: GroupConfig,
    listener: Option<TcpListener>,
    assignment: &Assignment,
) -> Result<ProcessGroup, CollectiveError> {
    match listener {
        Some(listener) if assignment.world_size > WorldSize::ONE => {
            ProcessGroup::connect(config, listener, &assignment.peers)
        }
        _ => Ok(ProcessGroup::alone(config)),
    }
}

fn group_config(
    name: &str,
    assignment: &Assignment,
    secure: &SecurityPolicy,
    flights: &FlightRecordWriter,
) -> GroupConfig {
    let mut config = GroupConfig::new(name, &assignment.job, GroupRank(assignment.rank.0));
    config.security = secure(assignment);
    config.generation = assignment.generation;
    flights.prepare(&mut config);
    config
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            link.finish();
        }
    }
}
