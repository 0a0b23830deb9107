//! [`Remote`]: a coordinator in another process, here or elsewhere, as the supervisor of one host sees
//! it. Carries what the workers say to it, and what it says to them.
//!
//! The coordinator may go away and come back: the workers go on meanwhile, and everything that it did
//! not hear is said again.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_core::{Event as RunEvent, Rank};
use ronde_elastic::{
    JobEnding, LossCause, WorkerSlot, SlotStatus, Reason, WorkerReport, Term, ToWorker, WorkerId,
};

use crate::clock;
use crate::coordination::Action;
use crate::error::ClusterError;
use crate::outcome::End;
use crate::secure::Outbox;
use crate::talk::{FromAgent, PROTOCOL, ToAgent, Welcome};

mod dialler;

use dialler::Delivery;
pub(crate) use dialler::Dialler;

/// How often the coordinator hears from this agent at least.
const ALIVE_EVERY: Duration = Duration::from_millis(250);
/// How long a coordinator that does not lead is stayed with while there are others.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the end of a job may take; a coordinator that dies then is started again first.
const FINISH_MAX: Duration = Duration::from_secs(12);
/// Events that wait for a coordinator; beyond that the times of steps are dropped.
const EVENTS_MAX: usize = 65_536;

/// The coordinator of a job as the supervisor of one host sees it. Its places are numbered like ranks
/// here, and from its first place on there.
pub(crate) struct Remote {
    dialler: Dialler,
    outbox: Option<Arc<Outbox>>,
    pub(crate) welcome: Welcome,
    pub(crate) host: String,
    /// This host's address on the connection to the first coordinator.
    pub(crate) interface: IpAddr,
    agent: u64,
    count: u32,
    pub(crate) follows: Option<u64>,
    current: BTreeMap<Rank, WorkerId>,
    ended: BTreeMap<Rank, (WorkerId, LossCause)>,
    /// The last report of each worker, for a coordinator that comes new.
    reports: BTreeMap<WorkerId, WorkerReport>,
    /// Events that no coordinator has written down yet.
    events: VecDeque<(u64, RunEvent)>,
    next_event: u64,
    begun: Instant,
    /// When the coordinator was heard last.
    heard: Duration,
    /// The term in which the coordinator leads, as far as is known.
    leader: Option<Term>,
    /// Since when the coordinator has not led.
    waits: Option<Duration>,
    said: Duration,
    is_welcome: bool,
    /// The end of the job that was asked for here: whether in good order, and by what.
    wish: Option<(bool, String)>,
    leaves: bool,
    is_lost: bool,
    is_over: bool,
}

impl Remote {
    /// Waits until a coordinator has said welcome.
    pub(crate) fn begin(
        dialler: Dialler,
        host: &str,
        agent: u64,
        (count, follows): (u32, bool),
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Self, ClusterError> {
        let (mut here, mut outbox, mut tried) = (None, None, Vec::new());
        let follows = follows.then_some(0);
        loop {
            let left = deadline.saturating_duration_since(clock::now());
            if left.is_zero() {
                tried.push(format!("{timeout:.1?} are over"));
                return Err(ClusterError::NoCoordinator { tried });
            }
            match dialler.wait(left) {
                Some(Delivery::Up(sender, address)) => {
                    sender.send(&FromAgent::Hello {
                        protocol: PROTOCOL,
                        host: host.to_owned(),
                        agent,
                        count,
                        first: None,
                        follows,
                    });
                    (here, outbox) = (Some(address), Some(sender));
                }
                Some(Delivery::Said(message)) => match *message {
                    ToAgent::Welcome(welcome) => {
                        return Ok(Self {
                            dialler,
                            outbox,
                            welcome: *welcome,
                            host: host.to_owned(),
                            interface: here.unwrap_or(Ipv4Addr::LOCALHOST.into()),
                            agent,
                            count,
                            follows,
                            current: BTreeMap::new(),
                            ended: BTreeMap::new(),
                            reports: BTreeMap::new(),
                            events: VecDeque::new(),
                            next_event: 1,
                            begun: clock::now(),
                            heard: Duration::ZERO,
                            leader: None,
                            waits: None,
                            said: Duration::ZERO,
                            is_welcome: true,
                            wish: None,
                            leaves: false,
                            is_lost: false,
                            is_over: false,
                        });
                    }
                    ToAgent::Refused { reason } => return Err(ClusterError::Refused { reason }),
                    _ => {}
                },
                Some(Delivery::Down(why) | Delivery::Failed(why)) => tried = vec![why],
                None => {}
            }
        }
    }

    fn now(&self) -> Duration {
        clock::now() - self.begun
    }

    fn send(&self, message: &FromAgent) {
        if let Some(outbox) = self.outbox.as_ref().filter(|_| self.is_welcome) {
            outbox.send(message);
        }
    }

    pub(crate) fn slot(&self, rank: Rank) -> WorkerSlot {
        WorkerSlot(self.welcome.first.0 + u64::from(rank.0))
    }

    fn rank(&self, slot: WorkerSlot) -> Option<Rank> {
        let index = slot.0.checked_sub(self.welcome.first.0)?;
        let index = u32::try_from(index).ok()?;
        (index < self.count).then_some(Rank(index))
    }

    fn rank_of(&self, worker: WorkerId) -> Option<Rank> {
        let found = self.current.iter().find(|(_, at)| **at == worker);
        found.map(|(rank, _)| *rank)
    }

    /// Offers the places of this host, with what is there.
    pub(crate) fn offer(&self) {
        let state = |rank: u32| SlotStatus {
            slot: self.slot(Rank(rank)),
            worker: self.current.get(&Rank(rank)).copied(),
            ended: self.ended.get(&Rank(rank)).cloned(),
        };
        let slots = match self.leaves {
            true => Vec::new(),
            false => (0..self.count).map(state).collect(),
        };
        self.send(&FromAgent::Slots { slots });
    }

    /// Nothing more is to be started here.
    pub(crate) fn leave(&mut self) {
        self.leaves = true;
        self.offer();
    }

    /// The job has to end.
    pub(crate) fn stop(&mut self, by: &str) {
        self.wish = Some((false, by.to_owned()));
        self.say_wish();
    }

    /// The job has to end in good order.
    pub(crate) fn stop_well(&mut self, by: &str) {
        self.wish = Some((true, by.to_owned()));
        self.say_wish();
    }

    /// Every coordinator hears of it that comes to lead.
    fn say_wish(&self) {
        if let Some((is_well, by)) = self.wish.clone() {
            self.send(&match is_well {
                true => FromAgent::Finish { by },
                false => FromAgent::Stop { by },
            });
        }
    }

    /// A worker says how it is.
    pub(crate) fn reported(&mut self, mut report: WorkerReport) {
        // The worker knows its place by the number that it has on this host.
        if let Some(rank) = self.rank_of(report.member.worker) {
            report.member.slot = self.slot(rank);
            self.reports.insert(report.member.worker, report.clone());
            self.send(&FromAgent::Report { body: report });
        }
    }

    /// A worker's process has ended.
    pub(crate) fn ended(&mut self, rank: Rank, end: End) {
        let Some(worker) = self.current.remove(&rank) else {
            return;
        };
        let cause = match end {
            End::Code(code) => LossCause::ExitCode(code),
            End::Signal(signal) => LossCause::Signal(signal),
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

    /// A worker's connection is gone although its process has not ended.
    pub(crate) fn unlinked(&self, worker: u64) {
        self.send(&FromAgent::Unlinked {
            worker: WorkerId(worker),
            cause: "its control connection was closed".to_owned(),
        });
    }

    /// A worker recorded an event.
    pub(crate) fn recorded(&mut self, event: RunEvent) {
        let is_spare = matches!(event, RunEvent::StepTimes { .. });
        if is_spare && self.events.len() >= EVENTS_MAX {
            return;
        }
        let number = self.next_event;
        self.next_event += 1;
        self.events.push_back((number, event.clone()));
        if self.leader.is_some() {
            self.send(&FromAgent::Event {
                number,
                body: event,
            });
        }
    }

    /// Which process has a place.
    pub(crate) fn worker_at(&self, rank: Rank) -> Option<WorkerId> {
        self.current.get(&rank).copied()
    }

    /// What the coordinator has said, and what time has brought.
    pub(crate) fn tick(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(delivery) = self.dialler.next() {
            self.take(delivery, &mut actions);
        }
        let now = self.now();
        if now >= self.said + ALIVE_EVERY {
            self.said = now;
            self.send(&FromAgent::Alive);
        }
        let silence = now.saturating_sub(self.heard);
        let settings = &self.welcome.settings;
        if let Some(outbox) = &self.outbox {
            let idle = self.waits.is_some_and(|since| now > since + PATIENCE);
            if silence > settings.lease || idle && self.dialler.knows() > 1 {
                // Another one may lead; the thread goes to the next.
                outbox.close();
                (self.outbox, self.is_welcome) = (None, false);
                (self.leader, self.waits) = (None, None);
            }
        } else if silence > settings.certain_end() {
            actions.push(Action::End(
                JobEnding::Failed,
                Reason::NoCoordinator { silence },
            ));
        }
        actions
    }

    /// Nothing runs here any more: waits until all that was recorded is written down, and until the
    /// coordinator has said all that it has to say.
    pub(crate) fn finish(&mut self, say: &mut dyn FnMut(RunEvent)) {
        let deadline = clock::now() + FINISH_MAX;
        let mut is_done = false;
        while clock::now() < deadline && !(is_done && self.outbox.is_none()) {
            for action in self.tick() {
                if let Action::Say(event) = action {
                    say(event);
                }
            }
            if self.events.is_empty() && self.is_welcome && !is_done {
                is_done = true;
                self.send(&FromAgent::Bye);
                if self.leaves {
                    return;
                }
            }
            clock::pause(Duration::from_millis(2));
        }
        if !self.events.is_empty() {
            let count = self.events.len();
            say(RunEvent::Notice {
                rank: None,
                message: format!("no coordinator took the last {count} events of this host"),
            });
        }
    }

    fn take(&mut self, delivery: Delivery, actions: &mut Vec<Action>) {
        match delivery {
            Delivery::Up(outbox, _) => {
                outbox.send(&FromAgent::Hello {
                    protocol: PROTOCOL,
                    host: self.host.clone(),
                    agent: self.agent,
                    count: self.count,
                    first: Some(self.welcome.first),
                    follows: self.follows,
                });
                (self.outbox, self.is_welcome) = (Some(outbox), false);
                (self.leader, self.waits) = (None, None);
                // A new one gets as long as an old one that falls silent.
                self.heard = self.now();
            }
            Delivery::Said(message) => {
                self.heard = self.now();
                self.hear(*message, actions);
            }
            Delivery::Down(why) => {
                (self.outbox, self.is_welcome, self.leader) = (None, false, None);
                if !self.is_over && !std::mem::replace(&mut self.is_lost, true) {
                    actions.push(notice(format!(
                        "the coordinator is gone ({why}); the workers go on, and wait for one where a change is needed"
                    )));
                }
            }
            Delivery::Failed(_) => {}
        }
    }

    fn hear(&mut self, message: ToAgent, actions: &mut Vec<Action>) {
        match message {
            ToAgent::Welcome(welcome) => self.welcomed(&welcome, actions),
            ToAgent::Refused { reason } => {
                actions.push(notice(format!(
                    "the coordinator refuses this host: {reason}"
                )));
            }
            ToAgent::Told { to, body } => self.tell(to, body, actions),
            ToAgent::Start {
                slot,
                worker,
                identity,
            } => match self.rank(slot) {
                Some(rank) if !self.leaves && !self.current.contains_key(&rank) => {
                    self.current.insert(rank, worker);
                    actions.push(Action::Start(rank, worker, Some(identity)));
                }
                // The coordinator does not know what is here.
                _ => self.offer(),
            },
            ToAgent::Kill { slot, worker } => {
                if let Some(rank) = self.rank(slot)
                    && self.current.get(&rank) == Some(&worker)
                {
                    actions.push(Action::Kill(rank));
                }
            }
            ToAgent::Heard { number } => {
                while self.events.front().is_some_and(|(of, _)| *of <= number) {
                    self.events.pop_front();
                }
            }
            ToAgent::Happened { number, body } => {
                if self.follows.is_some_and(|known| known < number) {
                    self.follows = Some(number);
                    actions.push(Action::Say(body));
                }
            }
            ToAgent::Alive {
                leads,
                coordinators,
            } => {
                self.dialler.learn(coordinators);
                let now = self.now();
                self.waits = match leads {
                    Some(_) => None,
                    None => Some(self.waits.unwrap_or(now)),
                };
                let before = std::mem::replace(&mut self.leader, leads);
                if leads.is_some() && before != leads {
                    self.tell_all(actions);
                }
            }
            ToAgent::End { ending, reason } => {
                self.is_over = true;
                actions.push(Action::End(ending, reason));
            }
        }
    }

    fn tell(&self, to: WorkerId, body: ToWorker, actions: &mut Vec<Action>) {
        if let Some(rank) = self.rank_of(to) {
            actions.push(Action::Tell(rank, body));
        }
    }

    /// A coordinator takes this agent.
    fn welcomed(&mut self, welcome: &Welcome, actions: &mut Vec<Action>) {
        self.is_welcome = true;
        // Otherwise two hosts would have the same places; its workers keep theirs by number.
        if welcome.first == self.welcome.first {
            self.offer();
        } else {
            let reason = "another host uses the slots of this one".to_owned();
            actions.push(Action::End(
                JobEnding::Failed,
                Reason::Stopped {
                    by: reason,
                    checkpoint: None,
                },
            ));
        }
    }

    /// A coordinator begins to lead: it learns all that is here.
    fn tell_all(&mut self, actions: &mut Vec<Action>) {
        self.offer();
        for report in self.reports.values() {
            let body = report.clone();
            self.send(&FromAgent::Report { body });
        }
        for (number, event) in &self.events {
            let (number, body) = (*number, event.clone());
            self.send(&FromAgent::Event { number, body });
        }
        self.say_wish();
        if std::mem::take(&mut self.is_lost) {
            actions.push(notice("a coordinator leads again".to_owned()));
        }
    }
}

fn notice(message: String) -> Action {
    Action::Say(RunEvent::Notice {
        rank: None,
        message,
    })
}
