//! [`RemoteCoordinator`]: a coordinator in another process, here or on another host, as seen by the
//! supervisor of one host. Forwards messages between the coordinator and the workers.
//!
//! The coordinator may end and be replaced: meanwhile the workers continue, and every message that
//! it did not receive is sent again.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_core::{Event as RunEvent, Rank};
use ronde_protocol::{
    JobEnding, LossCause, Reason, SlotStatus, ToWorker, WorkerId, WorkerPhase, WorkerReport,
    WorkerSlot,
};

use crate::error::ClusterError;
use crate::local_coordinator::SupervisorAction;
use crate::long_wait::{LongWait, WaitSettings};
use crate::messages::{FromAgent, ToAgent, Welcome};
use crate::outcome::ProcessExit;

mod addresses;
mod contact;
mod dialer;
mod link;

use contact::CoordinatorContact;
pub(crate) use dialer::Dialer;
use dialer::DialerEvent;
pub(crate) use link::AgentIdentity;
use link::CoordinatorLink;

/// Maximum interval between messages to the coordinator.
const ALIVE_EVERY: Duration = Duration::from_millis(250);
/// Time after which an agent leaves a coordinator that does not lead, if there are others.
const STANDBY_MAX: Duration = Duration::from_secs(1);
/// Time limit for the end of a job; it allows for the restart of a coordinator that dies meanwhile.
const FINISH_MAX: Duration = Duration::from_secs(12);
/// Interval at which a wait for the first answer is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The time before a report that the end of a job waits for the coordinator.
const REPORT_AFTER: Duration = Duration::from_secs(2);
/// Maximum number of events that wait for a coordinator; beyond it, step times are dropped.
const EVENTS_MAX: usize = 65_536;

/// An end of the job that was requested on this host, with its origin.
#[derive(Clone)]
enum RequestedEnd {
    /// In good order, after a last checkpoint.
    Finish { by: String },
    /// At once.
    Stop { by: String },
}

/// The coordinator of a job, as seen by the supervisor of one host. Ranks on this host correspond
/// to the consecutive slots from the host's first slot on.
pub(crate) struct RemoteCoordinator {
    dialer: Dialer,
    link: CoordinatorLink,
    pub(crate) me: AgentIdentity,
    pub(crate) welcome: Welcome,
    /// This host's address on the connection to the first coordinator.
    pub(crate) interface: IpAddr,
    current: BTreeMap<Rank, WorkerId>,
    ended: BTreeMap<Rank, (WorkerId, LossCause)>,
    /// The last report of each worker, for a new coordinator.
    reports: BTreeMap<WorkerId, WorkerReport>,
    /// Events that no coordinator has stored yet.
    events: VecDeque<(u64, RunEvent)>,
    next_event: u64,
    begun: Instant,
    contact: CoordinatorContact,
    /// When the last message was sent to it.
    said: Duration,
    requested_end: Option<RequestedEnd>,
    /// Whether this host leaves the job.
    leaves: bool,
    /// Whether the loss of the last coordinator was reported, and no other one has led since.
    is_loss_reported: bool,
    /// Why the coordinator cannot store anything, if so.
    storage_problem: Option<String>,
    is_over: bool,
}

impl RemoteCoordinator {
    /// Waits until a coordinator has accepted this agent.
    pub(crate) fn begin(
        dialer: Dialer,
        me: AgentIdentity,
        deadline: Instant,
        wait: WaitSettings<'_>,
    ) -> Result<Self, ClusterError> {
        let timeout = wait.timeout;
        let what = "the coordinator to accept this host".to_owned();
        let mut long = LongWait::begin(what, deadline, wait.notify);
        let (mut connected, mut tried) = (None, Vec::new());
        loop {
            let left = deadline.saturating_duration_since(ronde_clock::now());
            if left.is_zero() {
                tried.push(format!("time limit of {timeout:.1?}"));
                return Err(ClusterError::NoCoordinator { tried });
            }
            match dialer.wait(left.min(LOOK_EVERY)) {
                Some(DialerEvent::Connected(outbox, address)) => {
                    outbox.send(&me.hello(None));
                    connected = Some((outbox, address));
                }
                Some(DialerEvent::Message(message)) => match *message {
                    ToAgent::Welcome(welcome) => {
                        let (link, interface) = match connected {
                            Some((outbox, here)) => (CoordinatorLink::Accepted(outbox), here),
                            None => (CoordinatorLink::Disconnected, Ipv4Addr::LOCALHOST.into()),
                        };
                        return Ok(Self {
                            dialer,
                            link,
                            me,
                            welcome: *welcome,
                            interface,
                            current: BTreeMap::new(),
                            ended: BTreeMap::new(),
                            reports: BTreeMap::new(),
                            events: VecDeque::new(),
                            next_event: 1,
                            begun: ronde_clock::now(),
                            contact: CoordinatorContact::default(),
                            said: Duration::ZERO,
                            requested_end: None,
                            leaves: false,
                            is_loss_reported: false,
                            storage_problem: None,
                            is_over: false,
                        });
                    }
                    ToAgent::Refused { reason } => return Err(ClusterError::Refused { reason }),
                    _ => {}
                },
                Some(DialerEvent::Disconnected(why) | DialerEvent::Failed { why, .. }) => {
                    tried = vec![why]
                }
                None => {}
            }
            long.continues(&match tried.is_empty() {
                true => "it has not answered yet".to_owned(),
                false => tried.join("; "),
            });
        }
    }

    fn now(&self) -> Duration {
        ronde_clock::now() - self.begun
    }

    fn silence(&self) -> Duration {
        self.contact.silence(self.now())
    }

    /// Returns whether no coordinator has answered for as long as workers wait for one.
    fn is_cut_off(&self) -> bool {
        self.silence() > self.welcome.settings.certain_end()
    }

    fn send(&self, message: &FromAgent) {
        if let Some(outbox) = self.link.accepted() {
            outbox.send(message);
        }
    }

    pub(crate) fn slot(&self, rank: Rank) -> WorkerSlot {
        WorkerSlot(self.welcome.first.0 + u64::from(rank.0))
    }

    fn rank(&self, slot: WorkerSlot) -> Option<Rank> {
        let index = slot.0.checked_sub(self.welcome.first.0)?;
        let index = u32::try_from(index).ok()?;
        (index < self.me.slots).then_some(Rank(index))
    }

    fn rank_of(&self, worker: WorkerId) -> Option<Rank> {
        let found = self.current.iter().find(|(_, at)| **at == worker);
        found.map(|(rank, _)| *rank)
    }

    /// Offers the slots of this host, with their status.
    pub(crate) fn offer(&self) {
        let state = |rank: u32| SlotStatus {
            slot: self.slot(Rank(rank)),
            worker: self.current.get(&Rank(rank)).copied(),
            ended: self.ended.get(&Rank(rank)).cloned(),
        };
        let slots = match self.leaves {
            true => Vec::new(),
            false => (0..self.me.slots).map(state).collect(),
        };
        self.send(&FromAgent::Slots { slots });
    }

    /// Stops offering slots.
    pub(crate) fn leave(&mut self) {
        self.leaves = true;
        self.contact.stop_requested(self.now());
        self.offer();
    }

    /// Requests the immediate end of the job.
    pub(crate) fn stop(&mut self, by: &str) {
        let by = by.to_owned();
        self.requested_end = Some(RequestedEnd::Stop { by });
        self.send_stop_request();
    }

    /// Requests the end of the job in good order.
    pub(crate) fn stop_well(&mut self, by: &str) {
        let by = by.to_owned();
        self.requested_end = Some(RequestedEnd::Finish { by });
        self.send_stop_request();
    }

    /// Sends the request to end; repeated to every coordinator that starts to lead.
    fn send_stop_request(&self) {
        if let Some(requested) = self.requested_end.clone() {
            self.send(&match requested {
                RequestedEnd::Finish { by } => FromAgent::Finish { by },
                RequestedEnd::Stop { by } => FromAgent::Stop { by },
            });
        }
    }

    /// Forwards a worker's report.
    pub(crate) fn reported(&mut self, mut report: WorkerReport) {
        // The worker only knows its rank on this host.
        if let Some(rank) = self.rank_of(report.member.worker) {
            report.member.slot = self.slot(rank);
            self.reports.insert(report.member.worker, report.clone());
            self.send(&FromAgent::Report { body: report });
        }
    }

    /// Reports that a worker's process lacks CPU time.
    pub(crate) fn busy(&self, worker: WorkerId) {
        self.send(&FromAgent::Busy { worker });
    }

    /// Reports the end of a worker's process.
    pub(crate) fn ended(&mut self, rank: Rank, end: ProcessExit) {
        let Some(worker) = self.current.remove(&rank) else {
            return;
        };
        let cause = match end {
            ProcessExit::Code(code) => LossCause::ExitCode(code),
            ProcessExit::Signal(signal) => LossCause::Signal(signal),
        };
        self.reports.remove(&worker);
        self.ended.insert(rank, (worker, cause.clone()));
        let slot = self.slot(rank);
        self.send(&FromAgent::Ended {
            worker,
            slot,
            cause,
        });
    }

    /// Reports the loss of a worker's connection while its process still runs.
    pub(crate) fn unlinked(&self, worker: u64) {
        self.send(&FromAgent::Unlinked {
            worker: WorkerId(worker),
            cause: "its control connection was closed".to_owned(),
        });
    }

    /// Queues and forwards an event of a worker.
    pub(crate) fn recorded(&mut self, event: RunEvent) {
        let is_spare = matches!(
            event,
            RunEvent::StepTimes { .. } | RunEvent::MemoryUsed { .. }
        );
        if is_spare && self.events.len() >= EVENTS_MAX {
            return;
        }
        let number = self.next_event;
        self.next_event += 1;
        self.events.push_back((number, event.clone()));
        if matches!(self.link, CoordinatorLink::Leads { .. }) {
            self.send(&FromAgent::Event {
                number,
                body: event,
            });
        }
    }

    /// Returns the worker that runs as `rank` on this host.
    pub(crate) fn worker_at(&self, rank: Rank) -> Option<WorkerId> {
        self.current.get(&rank).copied()
    }

    /// Processes the coordinator's messages and elapsed time.
    pub(crate) fn tick(&mut self) -> Vec<SupervisorAction> {
        let mut actions = Vec::new();
        while let Some(delivery) = self.dialer.next() {
            self.take(delivery, &mut actions);
        }
        let now = self.now();
        if now >= self.said + ALIVE_EVERY {
            self.said = now;
            self.send(&FromAgent::Alive);
        }
        let silence = self.silence();
        if let Some(outbox) = self.link.outbox() {
            let stands_by = matches!(
                self.link,
                CoordinatorLink::StandsBy { since, .. } if now > since + STANDBY_MAX
            );
            if silence > self.welcome.settings.lease || stands_by && self.dialer.knows() > 1 {
                // Another coordinator may lead; the thread tries the next one.
                outbox.close();
                self.link = CoordinatorLink::Disconnected;
                if silence > self.welcome.settings.lease {
                    self.contact.cut();
                }
            }
        } else {
            self.await_coordinator(&mut actions);
        }
        actions
    }

    /// Reports how long this host waits for a coordinator, and ends its part of the job if none is expected any more.
    fn await_coordinator(&mut self, actions: &mut Vec<SupervisorAction>) {
        let (now, silence) = (self.now(), self.silence());
        let has_ended =
            self.me.follows.is_none() && !self.trains() && self.contact.has_job_ended(now);
        let reason = if has_ended {
            Reason::NoCoordinatorRuns { silence }
        } else if self.is_cut_off() {
            Reason::NoCoordinator { silence }
        } else {
            let limit = self.welcome.settings.certain_end();
            actions.extend(self.contact.notice(now, limit).map(notice));
            return;
        };
        actions.push(SupervisorAction::End(JobEnding::Failed, reason));
    }

    /// Returns whether a worker of this host trains, according to its last report.
    fn trains(&self) -> bool {
        let mut reports = self.reports.values();
        reports.any(|report| report.phase == WorkerPhase::Training)
    }

    /// Returns whether this host must end without an answer to its request to leave, because no coordinator is in contact.
    pub(crate) fn ends_alone(&self) -> bool {
        let settings = &self.welcome.settings;
        let restart = settings.lease * 2 + settings.silence;
        self.contact.ends_alone(self.now(), self.trains(), restart)
    }

    /// Waits after the end of all workers until all recorded events are stored, and the coordinator
    /// has sent all of its messages. A host that is cut off does not wait for another coordinator, nor does one that ends
    /// because no coordinator has answered its request to leave.
    pub(crate) fn finish(&mut self, say: &mut dyn FnMut(RunEvent)) {
        let deadline = ronde_clock::now() + FINISH_MAX;
        let mut report_at = Some(ronde_clock::now() + REPORT_AFTER);
        let mut is_done = false;
        let is_over = |remote: &Self, is_done: bool| match remote.link.outbox() {
            _ if remote.ends_alone() || remote.contact.has_job_ended(remote.now()) => true,
            Some(_) => false,
            None => is_done || remote.is_cut_off(),
        };
        while ronde_clock::now() < deadline && !is_over(self, is_done) {
            for action in self.tick() {
                if let SupervisorAction::Record(event) = action {
                    say(event);
                }
            }
            if report_at.take_if(|at| ronde_clock::now() >= *at).is_some()
                && !self.events.is_empty()
            {
                let (count, left) = (self.events.len(), deadline - ronde_clock::now());
                say(RunEvent::Notice {
                    rank: None,
                    message: format!(
                        "waiting for the coordinator to store the last {count} events of this host, for at most {:.0} s more{}",
                        left.as_secs_f64(),
                        self.storage_cause()
                    ),
                });
            }
            if self.events.is_empty() && self.link.accepted().is_some() && !is_done {
                is_done = true;
                self.send(&FromAgent::Bye);
                if self.leaves {
                    return;
                }
            }
            ronde_clock::pause(Duration::from_millis(2));
        }
        if !self.events.is_empty() {
            let (count, cause) = (self.events.len(), self.storage_cause());
            say(RunEvent::Notice {
                rank: None,
                message: format!(
                    "no coordinator stored the last {count} events of this host{cause}"
                ),
            });
        }
    }

    fn take(&mut self, delivery: DialerEvent, actions: &mut Vec<SupervisorAction>) {
        match delivery {
            DialerEvent::Connected(outbox, _) => {
                outbox.send(&self.me.hello(Some(self.welcome.first)));
                self.link = CoordinatorLink::Greeting(outbox);
                // A new coordinator gets as much time as an existing one that becomes silent.
                self.contact.heard(self.now());
            }
            DialerEvent::Message(message) => {
                self.contact.answered(self.now());
                self.receive(*message, actions);
            }
            DialerEvent::Disconnected(why) => {
                self.link = CoordinatorLink::Disconnected;
                if !self.is_over && !std::mem::replace(&mut self.is_loss_reported, true) {
                    actions.push(notice(format!(
                        "lost the coordinator ({why}); workers continue, but membership cannot change until a coordinator leads; \
                         this host waits for one for at most {:.0} s",
                        self.welcome.settings.certain_end().as_secs_f64()
                    )));
                }
            }
            DialerEvent::Failed { why, is_absent } => {
                self.contact.failed(self.now(), why, is_absent);
            }
        }
    }

    fn receive(&mut self, message: ToAgent, actions: &mut Vec<SupervisorAction>) {
        match message {
            ToAgent::Welcome(welcome) => self.welcomed(&welcome, actions),
            ToAgent::Refused { reason } => {
                actions.push(notice(format!(
                    "the coordinator refused this host: {reason}"
                )));
            }
            ToAgent::ToWorker { to, body } => self.tell(to, body, actions),
            ToAgent::Start {
                slot,
                worker,
                identity,
            } => match self.rank(slot) {
                Some(rank) if !self.leaves && !self.current.contains_key(&rank) => {
                    self.current.insert(rank, worker);
                    actions.push(SupervisorAction::Start(rank, worker, Some(identity)));
                }
                // The coordinator's information about this host is out of date.
                _ => self.offer(),
            },
            ToAgent::Kill { slot, worker } => {
                if let Some(rank) = self.rank(slot)
                    && self.current.get(&rank) == Some(&worker)
                {
                    actions.push(SupervisorAction::Kill(rank));
                }
            }
            ToAgent::Stored { number } => {
                while self.events.front().is_some_and(|(of, _)| *of <= number) {
                    self.events.pop_front();
                }
            }
            ToAgent::Event { number, body } => {
                if self.me.follows.is_some_and(|known| known < number) {
                    self.me.follows = Some(number);
                    actions.push(SupervisorAction::Record(body));
                }
            }
            ToAgent::Alive {
                leads,
                coordinators,
                problem,
            } => {
                self.dialer.learn(coordinators);
                actions.extend(self.storage_changed(problem).map(notice));
                let now = self.now();
                if self.link.heard_term(leads, now) {
                    self.send_everything(actions);
                }
            }
            ToAgent::End { ending, reason } => {
                self.is_over = true;
                actions.push(SupervisorAction::End(ending, reason));
            }
        }
    }

    /// Returns the end of a sentence about events that are not stored.
    fn storage_cause(&self) -> String {
        let problem = self.storage_problem.as_ref();
        problem.map_or_else(String::new, |problem| {
            format!(": the coordinator {problem}")
        })
    }

    /// Notes whether the coordinator can store its objects. Returns a message when it cannot any more.
    fn storage_changed(&mut self, problem: Option<String>) -> Option<String> {
        let is_new = self.storage_problem.is_none();
        self.storage_problem = problem;
        let problem = self.storage_problem.as_ref().filter(|_| is_new)?;
        Some(format!(
            "the coordinator {problem}; workers continue, but neither the membership nor the progress shown here changes until \
             it can be written"
        ))
    }

    fn tell(&self, to: WorkerId, body: ToWorker, actions: &mut Vec<SupervisorAction>) {
        if let Some(rank) = self.rank_of(to) {
            actions.push(SupervisorAction::Send(rank, body));
        }
    }

    /// Handles the acceptance of this agent by a coordinator.
    fn welcomed(&mut self, welcome: &Welcome, actions: &mut Vec<SupervisorAction>) {
        if let CoordinatorLink::Greeting(outbox) = &self.link {
            self.link = CoordinatorLink::Accepted(Arc::clone(outbox));
        }
        // Two hosts must not use the same slots; this host's workers are identified by slot
        // numbers.
        if welcome.first == self.welcome.first {
            self.offer();
        } else {
            let reason = "another host uses the slots of this one".to_owned();
            actions.push(SupervisorAction::End(
                JobEnding::Failed,
                Reason::Stopped {
                    by: reason,
                    checkpoint: None,
                },
            ));
        }
    }

    /// Sends everything that is known here to a coordinator that starts to lead.
    fn send_everything(&mut self, actions: &mut Vec<SupervisorAction>) {
        self.offer();
        for report in self.reports.values() {
            let body = report.clone();
            self.send(&FromAgent::Report { body });
        }
        for (number, event) in &self.events {
            let (number, body) = (*number, event.clone());
            self.send(&FromAgent::Event { number, body });
        }
        self.send_stop_request();
        if std::mem::take(&mut self.is_loss_reported) {
            actions.push(notice("reconnected: a coordinator leads again".to_owned()));
        }
    }
}

fn notice(message: String) -> SupervisorAction {
    SupervisorAction::Record(RunEvent::Notice {
        rank: None,
        message,
    })
}
