//! [`supervise`]: starts the ranks of a job and supervises them until the end.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_core::{Event, Rank, Tracker};
use ronde_protocol::MembershipPolicy;
use ronde_protocol::WorkerId;

use crate::agent::Agent;
use crate::control::{ControlEvent, ControlServer};
use crate::coordinator_client::CoordinatorClient;
use crate::environment;
use crate::launcher::{Launcher, LogSink, ProcessSpec, StopSignal};
use crate::local_coordinator::LocalCoordinator;
use crate::outcome::{FailureCause, JobExit, JobOutcome};
use crate::process_groups::ProcessGroups;
use crate::rank_table::RankTable;
use crate::spec::LaunchSpec;
use crate::stop::StopFlag;
use crate::token::Token;
use crate::watchdog::Watchdog;
use crate::wire::JobTerms;

mod descendants;
mod ending;
mod finishing;
mod job_end;
mod members;
mod rendezvous;

use ending::SupervisorPhase;
use job_end::LastReports;
use members::LostConnection;
use rendezvous::RendezvousState;

/// Maximum wait for the end of a process in one turn, and thus the delay of messages.
const TURN: Duration = Duration::from_millis(25);
/// The same for an elastic job, in which any message may be urgent.
const TURN_ELASTIC: Duration = Duration::from_millis(4);
/// The same while workers wait for each other.
const TURN_RENDEZVOUS: Duration = Duration::from_millis(2);
/// Time that the connections and the output may take to drain after all processes have ended.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Starts `spec.world_size` ranks, coordinates their membership in the job, and returns when no process of the job is
/// left.
///
/// With [`MembershipPolicy::Fixed`] the first failure ends all ranks: SIGTERM to their process groups, and SIGKILL after
/// `spec.stop_grace`. So does `stop`, whose second level kills immediately. A rank that exits with
/// code 0 does not affect the others; processes that it left in its process group are ended. Events
/// of the workers go to `sinks`, with an [`Event::WorkerFailed`] for a rank that could not send its
/// own; output goes to `log`.
///
/// The ranks end when the calling thread ends. A panic of a sink or of a launcher ends the ranks as
/// well.
pub fn supervise(
    spec: &LaunchSpec,
    launcher: &mut dyn Launcher,
    sinks: &dyn Tracker,
    log: &Arc<dyn LogSink>,
    stop: &StopFlag,
) -> JobOutcome {
    let coordination = LocalCoordinator::new(spec.settings);
    let coordination = coordination.map(|local| CoordinatorClient::Local(Box::new(local)));
    supervise_for(
        coordination.map_err(std::io::Error::other),
        spec,
        launcher,
        sinks,
        log,
        stop,
    )
}

impl Agent {
    /// Runs this host's part of the job: like [`supervise`], but the job's coordinator decides
    /// which workers run. `spec.world_size` is the number of slots. A stop request makes this host
    /// leave the job in good order, unless it follows the job: then it ends the job.
    pub fn supervise(
        self,
        spec: &LaunchSpec,
        launcher: &mut dyn Launcher,
        sinks: &dyn Tracker,
        log: &Arc<dyn LogSink>,
        stop: &StopFlag,
    ) -> JobOutcome {
        let coordination = Ok(CoordinatorClient::Remote(Box::new(self.remote)));
        supervise_for(coordination, spec, launcher, sinks, log, stop)
    }
}

/// Returns the information of a worker about its job.
fn terms(coordination: &CoordinatorClient, spec: &LaunchSpec, host: String) -> JobTerms {
    let (host, interface) = match coordination {
        CoordinatorClient::Local(_) => (host, Ipv4Addr::LOCALHOST.into()),
        CoordinatorClient::Remote(remote) => (remote.me.host.clone(), remote.interface),
    };
    JobTerms {
        job: spec.job.clone(),
        task: spec.task.clone(),
        host,
        interface,
        settings: coordination.settings(),
    }
}

fn supervise_for(
    coordination: std::io::Result<CoordinatorClient>,
    spec: &LaunchSpec,
    launcher: &mut dyn Launcher,
    sinks: &dyn Tracker,
    log: &Arc<dyn LogSink>,
    stop: &StopFlag,
) -> JobOutcome {
    let prepared = coordination.and_then(|coordination| {
        let token = Token::random()?;
        let terms = terms(&coordination, spec, launcher.host());
        let control = ControlServer::start(token.clone(), spec.world_size, terms)?;
        Ok((token, control, environment::free_port()?, coordination))
    });
    let mut roster = RankTable::new(spec.world_size);
    let (token, control, master_port, coordination) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            let mut problem = format!("cannot listen for workers: {error}");
            if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) {
                problem.push_str("\n  help: raise the limit of open files: `ulimit -n 4096`");
            }
            roster.fail(
                Rank(0),
                FailureCause::Supervisor(problem),
                false,
                Duration::ZERO,
            );
            return outcome(roster, None, Vec::new(), launcher);
        }
    };
    let mut supervisor = Supervisor {
        spec,
        launcher,
        sinks,
        stop,
        log,
        token,
        master_port,
        policy: coordination.settings().policy,
        coordination,
        unlinked: Vec::new(),
        roster,
        control,
        watchdog: None,
        begun: ronde_clock::now(),
        endings: ProcessGroups::new(spec.world_size, spec.stop_grace),
        rendezvous: RendezvousState::Expected,
        rendezvous_notice: Duration::ZERO,
        phase: SupervisorPhase::Running,
        last_words: LastReports::default(),
        activity_checked: Duration::ZERO,
        stopped_by: None,
        has_trained: false,
        unresponsive: Vec::new(),
    };
    supervisor.start_watchdog();
    supervisor.start();
    while !supervisor.turn() {}
    supervisor.finish()
}

struct Supervisor<'a> {
    spec: &'a LaunchSpec,
    launcher: &'a mut dyn Launcher,
    sinks: &'a dyn Tracker,
    stop: &'a StopFlag,
    log: &'a Arc<dyn LogSink>,
    token: Token,
    master_port: u16,
    /// Decides on the members of the job.
    coordination: CoordinatorClient,
    /// Whether the job continues when a worker fails.
    policy: MembershipPolicy,
    /// Workers whose connection was lost.
    unlinked: Vec<LostConnection>,
    roster: RankTable,
    control: ControlServer,
    watchdog: Option<Watchdog>,
    begun: Instant,
    endings: ProcessGroups,
    rendezvous: RendezvousState,
    /// When the missing ranks are reported next.
    rendezvous_notice: Duration,
    phase: SupervisorPhase,
    /// Whether the job is over, and when each worker reported.
    last_words: LastReports,
    /// When silent workers were last checked for a lack of CPU time.
    activity_checked: Duration,
    /// The signal that requested the end of the job.
    stopped_by: Option<i32>,
    /// Whether a worker has started to train, so that there are steps to save. It stays true when workers are replaced.
    has_trained: bool,
    unresponsive: Vec<Rank>,
}

impl Supervisor<'_> {
    fn now(&self) -> Duration {
        ronde_clock::now() - self.begun
    }

    fn notice(&self, rank: Option<Rank>, message: String) {
        self.sinks.record(Event::Notice { rank, message });
    }

    fn start_watchdog(&mut self) {
        let Some(command) = &self.spec.watchdog else {
            return;
        };
        match Watchdog::start(command) {
            Ok(mut watchdog) => {
                watchdog.set_token(self.token.secret());
                self.watchdog = Some(watchdog);
            }
            Err(error) => self.notice(
                None,
                format!(
                    "cannot start the watchdog, so workers may outlive a killed launcher: {error}"
                ),
            ),
        }
    }

    /// Offers this host's slots to the coordinator, which starts workers in them.
    fn start(&mut self) {
        let now = self.now();
        let (host, slots) = (self.launcher.host(), self.spec.world_size.get());
        let actions = self.coordination.begin(now, &host, slots);
        self.act(actions);
    }

    /// Starts the process of a rank.
    fn start_rank(&mut self, rank: Rank, worker: WorkerId) {
        let (control, token) = (self.control.address(), &self.token);
        let environment =
            environment::of_rank(self.spec, rank, worker, control, token, self.master_port);
        let process = ProcessSpec {
            rank,
            program: self.spec.program.clone(),
            arguments: self.spec.arguments.clone(),
            environment,
            working_directory: self.spec.working_directory.clone(),
        };
        match self.launcher.start(&process, self.log) {
            Ok(started) => {
                if let Some(watchdog) = &mut self.watchdog {
                    watchdog.add(started.pid);
                }
                self.announce_start(rank, &started);
                self.endings.started(rank);
                self.roster.started(rank, started);
            }
            Err(error) => {
                let message = format!("{}: {error}", self.spec.program.display());
                let error = std::io::Error::new(error.kind(), message);
                self.fail(rank, FailureCause::Spawn(error));
            }
        }
    }

    /// Records a failure that no worker has reported.
    fn fail(&mut self, rank: Rank, cause: FailureCause) {
        self.announce(rank, cause.to_string());
        let now = self.now();
        self.roster.fail(rank, cause, false, now);
    }

    fn announce(&self, rank: Rank, message: String) {
        self.sinks.record(Event::WorkerFailed {
            rank,
            message,
            last_step: self.roster.member(rank).last_step(),
            secondary: false,
            user_error: false,
        });
    }

    /// Runs one turn; returns true when no process is left.
    fn turn(&mut self) -> bool {
        let wait = match (self.policy, self.rendezvous) {
            (MembershipPolicy::Elastic, _) => TURN_ELASTIC,
            (MembershipPolicy::Fixed, RendezvousState::Waiting { .. }) => TURN_RENDEZVOUS,
            (MembershipPolicy::Fixed, _) => TURN,
        };
        for (rank, end) in self.launcher.poll(wait) {
            let now = self.now();
            self.roster.ended(rank, end, now);
        }
        self.take_messages();
        let now = self.now();
        self.check_rendezvous(now);
        self.judge(now);
        self.coordinate();
        self.apply_stop_request();
        if self.phase.is_running() && self.roster.must_stop(now) {
            let reason = self.roster.first_failure();
            self.end_all(&reason, StopSignal::Terminate, true);
        }
        self.end_groups()
    }

    /// Evaluates the processes that have ended.
    fn judge(&mut self, now: Duration) {
        let continues = self.policy == MembershipPolicy::Elastic && self.phase.is_running();
        for (rank, cause) in self.roster.judge(now) {
            if continues {
                // The coordinator is notified and decides on the consequences for the job.
                self.roster.forgive(rank);
            } else {
                self.announce(rank, cause);
            }
        }
    }

    fn take_messages(&mut self) {
        while let Some(message) = self.control.next() {
            let now = self.now();
            match message {
                ControlEvent::Linked(rank) => {
                    self.roster.linked(rank);
                    self.rendezvous.connected(now);
                }
                ControlEvent::Reported(rank, report) => self.reported(rank, *report),
                ControlEvent::Recorded(rank, event) => {
                    self.roster.recorded(rank, &event, now);
                    self.note_course(&event);
                    let events = self.coordination.recorded(now, event);
                    events.into_iter().for_each(|e| self.sinks.record(e));
                }
                ControlEvent::Unlinked(rank, worker, problem) => {
                    if !self.is_current(rank, worker) {
                        continue;
                    }
                    self.unlinked.push(LostConnection {
                        at: now,
                        rank,
                        worker,
                    });
                    self.roster.unlinked(rank);
                    if let Some(problem) = problem {
                        let message = format!("its control connection was closed: {problem}");
                        self.notice(Some(rank), message);
                    }
                }
            }
        }
    }

    /// Processes the remaining messages after all processes have ended.
    fn finish(mut self) -> JobOutcome {
        self.end_descendants();
        let deadline = ronde_clock::now() + DRAIN_MAX;
        self.take_messages();
        while self.roster.any_linked() && ronde_clock::now() < deadline {
            ronde_clock::pause(Duration::from_millis(1));
            self.take_messages();
        }
        self.control.close();
        if let CoordinatorClient::Remote(remote) = &mut self.coordination {
            remote.finish(&mut |event| self.sinks.record(event));
        }
        outcome(
            self.roster,
            self.stopped_by,
            self.unresponsive,
            self.launcher,
        )
    }
}

/// Returns the outcome, with the last output lines of failed ranks.
fn outcome(
    roster: RankTable,
    stopped_by: Option<i32>,
    unresponsive: Vec<Rank>,
    launcher: &mut dyn Launcher,
) -> JobOutcome {
    launcher.close(DRAIN_MAX);
    let (mut failures, first) = roster.into_failures();
    for failure in &mut failures {
        failure.last_lines = launcher.logs(failure.rank);
    }
    let exit = match (stopped_by, first) {
        (Some(signal), _) => JobExit::Stopped { signal },
        (None, Some(first)) => JobExit::Failed(first),
        (None, None) => JobExit::Done,
    };
    JobOutcome {
        exit,
        failures,
        unresponsive,
    }
}
