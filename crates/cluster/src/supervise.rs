//! [`supervise`]: starts the ranks of a job and supervises them until the end.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_core::{Assignment, Event, Generation, Rank, Tracker};
use ronde_elastic::WorkerId;

use crate::agent::Agent;
use crate::clock;
use crate::control::{ControlEvent, ControlServer};
use crate::coordinator_client::CoordinatorClient;
use crate::environment;
use crate::launcher::{Launcher, LogSink, ProcessSpec, StopSignal};
use crate::local_coordinator::LocalCoordinator;
use crate::outcome::{FailureCause, JobExit, JobOutcome, ProcessExit, signal_name};
use crate::process_groups::ProcessGroups;
use crate::rank_table::RankTable;
use crate::spec::LaunchSpec;
use crate::stop::{StopFlag, StopLevel};
use crate::token::Token;
use crate::watchdog::Watchdog;
use crate::wire::ElasticTerms;

mod descendants;
mod elastic;
mod finishing;
mod job_end;

use job_end::LastReports;

/// Maximum wait for the end of a process in one turn, and thus the delay of messages.
const TURN: Duration = Duration::from_millis(25);
/// The same for an elastic job, in which any message may be urgent.
const TURN_ELASTIC: Duration = Duration::from_millis(4);
/// The same while workers wait for each other.
const TURN_RENDEZVOUS: Duration = Duration::from_millis(2);
/// Time that the connections and the output may take to drain after all processes have ended.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Starts `spec.world_size` ranks, assigns their peers, and returns when no process of the job is
/// left.
///
/// The first failure ends all ranks: SIGTERM to their process groups, and SIGKILL after
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
    let coordination = spec.elastic.map(LocalCoordinator::new).transpose();
    let decider =
        coordination.map(|here| here.map(|here| CoordinatorClient::Local(Box::new(here))));
    supervise_for(
        decider.map_err(std::io::Error::other),
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
        let decider = Ok(Some(CoordinatorClient::Remote(Box::new(self.remote))));
        supervise_for(decider, spec, launcher, sinks, log, stop)
    }
}

/// Returns the settings that a worker of an elastic job needs.
fn terms(decider: &CoordinatorClient, spec: &LaunchSpec, host: String) -> Option<ElasticTerms> {
    let of = |host, interface, settings| ElasticTerms {
        job: spec.job.clone(),
        task: spec.task.clone(),
        host,
        interface,
        settings,
    };
    Some(match decider {
        CoordinatorClient::Local(_) => of(host, Ipv4Addr::LOCALHOST.into(), spec.elastic?),
        CoordinatorClient::Remote(remote) => of(
            remote.host.clone(),
            remote.interface,
            remote.welcome.settings,
        ),
    })
}

fn supervise_for(
    decider: std::io::Result<Option<CoordinatorClient>>,
    spec: &LaunchSpec,
    launcher: &mut dyn Launcher,
    sinks: &dyn Tracker,
    log: &Arc<dyn LogSink>,
    stop: &StopFlag,
) -> JobOutcome {
    let prepared = decider.and_then(|decider| {
        let token = Token::random()?;
        let known = decider.as_ref();
        let terms = known.and_then(|decider| terms(decider, spec, launcher.host()));
        let control = ControlServer::start(token.clone(), spec.world_size, terms)?;
        Ok((token, control, environment::free_port()?, decider))
    });
    let mut roster = RankTable::new(spec.world_size);
    let (token, control, master_port, coordination) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            let problem = format!("cannot listen for workers: {error}");
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
        coordination,
        unlinked: Vec::new(),
        roster,
        control,
        watchdog: None,
        begun: clock::now(),
        endings: ProcessGroups::new(spec.world_size, spec.stop_grace),
        meeting: RendezvousState::default(),
        stopping: false,
        last_words: LastReports::default(),
        activity_checked: Duration::ZERO,
        leaves: false,
        stopped_by: None,
        finishing: None,
        unresponsive: Vec::new(),
    };
    supervisor.start_watchdog();
    supervisor.start();
    while !supervisor.turn() {}
    supervisor.finish()
}

/// The progress of the rendezvous.
#[derive(Default)]
struct RendezvousState {
    /// When the first worker connected.
    first: Option<Duration>,
    /// Whether it is over, successfully or not.
    over: bool,
}

struct Supervisor<'a> {
    spec: &'a LaunchSpec,
    launcher: &'a mut dyn Launcher,
    sinks: &'a dyn Tracker,
    stop: &'a StopFlag,
    log: &'a Arc<dyn LogSink>,
    token: Token,
    master_port: u16,
    /// Decides on the members of an elastic job; `None`: the first failure ends the job.
    coordination: Option<CoordinatorClient>,
    /// Workers whose connection was lost: when, rank and worker.
    unlinked: Vec<(Duration, Rank, u64)>,
    roster: RankTable,
    control: ControlServer,
    watchdog: Option<Watchdog>,
    begun: Instant,
    endings: ProcessGroups,
    meeting: RendezvousState,
    stopping: bool,
    /// Whether the job is over, and when each worker reported.
    last_words: LastReports,
    /// When silent workers were last checked for a lack of CPU time.
    activity_checked: Duration,
    /// Whether this host leaves a job that continues elsewhere.
    leaves: bool,
    stopped_by: Option<i32>,
    /// When the workers were requested to end by themselves.
    finishing: Option<Duration>,
    unresponsive: Vec<Rank>,
}

impl Supervisor<'_> {
    fn now(&self) -> Duration {
        clock::now() - self.begun
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

    /// Starts all ranks, or lets the coordinator start them.
    fn start(&mut self) {
        let now = self.now();
        let (host, slots) = (self.launcher.host(), self.spec.world_size.get());
        if let Some(coordination) = &mut self.coordination {
            let actions = coordination.begin(now, &host, slots);
            return self.act(actions);
        }
        for rank in self.spec.world_size.ranks() {
            if !self.start_rank(rank, None) || self.stop.level() > StopLevel::Run {
                return;
            }
        }
    }

    /// Starts the process of a rank; returns false if that fails.
    fn start_rank(&mut self, rank: Rank, worker: Option<WorkerId>) -> bool {
        let (control, token) = (self.control.address(), &self.token);
        let mut environment =
            environment::of_rank(self.spec, rank, control, token, self.master_port);
        environment.extend(worker.map(|worker| environment::of_worker(worker.0)));
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
                true
            }
            Err(error) => {
                let message = format!("{}: {error}", self.spec.program.display());
                let error = std::io::Error::new(error.kind(), message);
                self.fail(rank, FailureCause::Spawn(error));
                false
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
        let is_meeting = self.meeting.first.is_some() && !self.meeting.over;
        let wait = match self.coordination {
            Some(_) => TURN_ELASTIC,
            None if is_meeting => TURN_RENDEZVOUS,
            None => TURN,
        };
        for (rank, end) in self.launcher.poll(wait) {
            let now = self.now();
            self.roster.ended(rank, end, now);
        }
        self.take_messages();
        self.meet();
        let now = self.now();
        self.judge(now);
        self.coordinate();
        self.apply_stop_request();
        if !self.stopping && self.roster.must_stop(now) {
            let reason = self.roster.first_failure();
            self.end_all(&reason, StopSignal::Terminate, true);
        }
        self.end_groups()
    }

    /// Evaluates the processes that have ended.
    fn judge(&mut self, now: Duration) {
        let continues = self.coordination.is_some() && !self.stopping;
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
                    self.meeting.first.get_or_insert(now);
                }
                ControlEvent::Ready(rank, address) => self.roster.ready(rank, address),
                ControlEvent::Reported(rank, report) => self.reported(rank, *report),
                ControlEvent::Recorded(rank, event) => {
                    self.roster.recorded(rank, &event, now);
                    let events = match &mut self.coordination {
                        Some(coordination) => coordination.recorded(now, event),
                        None => vec![event],
                    };
                    events.into_iter().for_each(|e| self.sinks.record(e));
                }
                ControlEvent::Unlinked(rank, worker, problem) => {
                    if !self.is_current(rank, worker) {
                        continue;
                    }
                    self.unlinked
                        .extend(worker.map(|worker| (now, rank, worker)));
                    self.roster.unlinked(rank);
                    if let Some(problem) = problem {
                        let message = format!("its control connection was closed: {problem}");
                        self.notice(Some(rank), message);
                    }
                }
            }
        }
    }

    /// Assigns ranks when all are ready; fails on a timeout or when a rank has ended before it was
    /// ready.
    fn meet(&mut self) {
        let begin = match (self.spec.rendezvous_required, self.meeting.first) {
            _ if self.meeting.over || self.stopping || self.coordination.is_some() => return,
            (true, _) => Duration::ZERO,
            (false, Some(first)) => first,
            (false, None) => return,
        };
        let ranks = || self.spec.world_size.ranks();
        let peers: Vec<_> = ranks()
            .filter_map(|r| self.roster.member(r).ready)
            .collect();
        if peers.len() == self.spec.world_size.len() {
            self.meeting.over = true;
            for rank in ranks() {
                self.control.assign(Assignment {
                    job: self.spec.job.clone(),
                    generation: Generation(0),
                    rank,
                    world_size: self.spec.world_size,
                    local_rank: rank.0,
                    local_world_size: self.spec.world_size.get(),
                    peers: peers.clone(),
                    task: self.spec.task.clone(),
                });
            }
            return;
        }
        let left = |rank: &Rank| {
            let member = self.roster.member(*rank);
            member.ready.is_none() && matches!(member.ended, Some((_, ProcessExit::Code(0))))
        };
        let mut missing: Vec<Rank> = ranks().filter(left).collect();
        if missing.is_empty() && self.now() >= begin + self.spec.rendezvous_timeout {
            missing = ranks()
                .filter(|&rank| self.roster.member(rank).ready.is_none())
                .collect();
        }
        if let Some(&first) = missing.first() {
            self.meeting.over = true;
            self.fail(first, FailureCause::RendezvousTimeout { missing });
        }
    }

    /// Carries out a user's stop request.
    fn apply_stop_request(&mut self) {
        let level = self.stop.level();
        if level == StopLevel::Run
            || self.finishes(level)
            || level == StopLevel::Stop && !self.stopping && self.leave()
        {
            return;
        }
        if !self.stopping {
            let signal = self.stop.signal();
            self.stopped_by = Some(signal);
            self.end_all(
                &format!("stopped by {}", signal_name(signal)),
                StopSignal::Terminate,
                false,
            );
        }
        if level == StopLevel::KillNow && !self.endings.all_killed() {
            self.end_all("killed by a second stop request", StopSignal::Kill, false);
        }
    }

    /// Ends all ranks after a failure or a stop request.
    fn end_all(&mut self, reason: &str, signal: StopSignal, failed: bool) {
        self.stopping = true;
        let now = self.now();
        for rank in self.endings.running() {
            self.roster.signalled(rank, signal);
        }
        self.control.stop(reason, failed);
        for rank in self.endings.running() {
            self.endings.sent(rank, signal, now);
            self.launcher.signal(rank, signal);
        }
    }

    /// Sends due signals to all process groups; returns true when all groups are gone.
    fn end_groups(&mut self) -> bool {
        for rank in self.endings.running() {
            let leader_ended = self.roster.member(rank).ended.is_some();
            let now = self.now();
            if leader_ended && !self.launcher.alive(rank) {
                if let (Some(watchdog), Some(started)) =
                    (&mut self.watchdog, &self.roster.member(rank).started)
                {
                    watchdog.remove(started.pid);
                }
                self.endings.gone(rank);
                continue;
            }
            if let Some(signal) = self.endings.due(rank, leader_ended, now) {
                if signal == StopSignal::Kill && !leader_ended {
                    self.unresponsive.push(rank);
                }
                self.roster.signalled(rank, signal);
                self.endings.sent(rank, signal, now);
                self.launcher.signal(rank, signal);
            }
            if self.endings.hopeless(rank, now) {
                self.endings.gone(rank);
                let message = "one of its processes does not end after SIGKILL".to_owned();
                self.notice(Some(rank), message);
            }
        }
        let settled = |rank: Rank| {
            let member = self.roster.member(rank);
            member.ended.is_none() || self.roster.judged(rank)
        };
        let all_ended =
            self.endings.running().is_empty() && self.spec.world_size.ranks().all(settled);
        all_ended && self.is_over()
    }

    /// Processes the remaining messages after all processes have ended.
    fn finish(mut self) -> JobOutcome {
        self.end_descendants();
        let deadline = clock::now() + DRAIN_MAX;
        self.take_messages();
        while self.roster.any_linked() && clock::now() < deadline {
            clock::pause(Duration::from_millis(1));
            self.take_messages();
        }
        self.control.close();
        if let Some(CoordinatorClient::Remote(remote)) = &mut self.coordination {
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
