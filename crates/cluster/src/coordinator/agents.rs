//! The agents of a job: their connections, messages and disconnections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ronde_core::Event as RunEvent;
use ronde_protocol::{CoordinatorEvent, SlotStatus, WorkerId, WorkerReport, WorkerSlot};

use super::CoordinatorShell;
use super::connections::AgentHello;
use crate::journal::Journal;
use crate::messages::{FromAgent, PROTOCOL, ToAgent, Welcome};
use crate::secure::Outbox;
use crate::status::HostStatus;

/// Time within which an agent may reconnect before its workers count as lost.
const RECONNECT_MAX: Duration = Duration::from_millis(300);
/// Time that a host without slots waits for a coordinator in standby before it tries another one.
const STANDBY_MAX: Duration = Duration::from_secs(1);
/// Minimum interval between messages about refused peers.
const REFUSALS_EVERY: Duration = Duration::from_secs(1);

/// One connected agent.
pub(super) struct ConnectedAgent {
    outbox: Arc<Outbox>,
    host: String,
    agent: u64,
    count: u32,
    first: WorkerSlot,
    /// The number of the job's events that it knows, if it follows all of them.
    follows: Option<u64>,
    heard: Duration,
    /// Whether the machine was notified that it does not respond.
    is_silent: bool,
    /// The newest of its events that is stored but not acknowledged.
    unacknowledged: Option<u64>,
    /// The number of its next event.
    expects: Option<u64>,
    /// Whether it has sent its last message.
    is_done: bool,
}

/// All agents by the number of their connection.
#[derive(Default)]
pub(super) struct AgentTable(BTreeMap<u64, ConnectedAgent>);

/// Disconnected agents that may reconnect: until when, host, workers and cause.
#[derive(Default)]
pub(super) struct DisconnectedAgents(Vec<(Duration, String, Vec<WorkerId>, String)>);

impl AgentTable {
    pub(super) fn send(&self, number: u64, message: &ToAgent) {
        if let Some(agent) = self.0.get(&number) {
            agent.outbox.send(message);
        }
    }

    pub(super) fn send_all(&self, message: &ToAgent) {
        for agent in self.0.values() {
            agent.outbox.send(message);
        }
    }

    /// Returns the connection of a host's agent.
    pub(super) fn number_of(&self, host: &str) -> Option<u64> {
        let found = self.0.iter().find(|(_, agent)| agent.host == host);
        found.map(|(number, _)| *number)
    }

    /// Sends a stored event to the agents that follow the job.
    pub(super) fn happened(&mut self, number: u64, event: &RunEvent) {
        for agent in self.0.values_mut() {
            // An agent that lacks earlier events gets them all when the journal is replayed.
            if agent.follows.is_some_and(|known| known + 1 == number) {
                agent.follows = Some(number);
                let body = event.clone();
                agent.outbox.send(&ToAgent::Event { number, body });
            }
        }
    }

    /// Sends followers the events that they do not know yet.
    pub(super) fn replay(&mut self, journal: &Journal) {
        for agent in self.0.values_mut() {
            let Some(known) = agent.follows else {
                continue;
            };
            for (number, body) in journal.after(known).unwrap_or_default() {
                agent.follows = Some(number);
                if let Some(body) = body {
                    agent.outbox.send(&ToAgent::Event { number, body });
                }
            }
        }
    }

    /// Acknowledges stored events.
    pub(super) fn acknowledge(&mut self) {
        for agent in self.0.values_mut() {
            if let Some(number) = agent.unacknowledged.take() {
                agent.outbox.send(&ToAgent::Stored { number });
            }
        }
    }

    pub(super) fn hosts(&self) -> Vec<HostStatus> {
        let hosts = self.0.values().map(|agent| HostStatus {
            host: agent.host.clone(),
            slots: agent.count,
        });
        hosts.collect()
    }

    pub(super) fn close_all(&self) {
        for agent in self.0.values() {
            agent.outbox.close();
        }
    }

    /// Notes that an agent has sent its last message.
    fn done(&mut self, number: u64) {
        if let Some(agent) = self.0.get_mut(&number) {
            agent.is_done = true;
        }
    }

    /// Returns the hosts whose agents have become silent: no message was received for `silence`.
    fn newly_silent(&mut self, now: Duration, silence: Duration) -> Vec<String> {
        let mut hosts = Vec::new();
        for agent in self.0.values_mut() {
            if !agent.is_silent && now > agent.heard + silence {
                agent.is_silent = true;
                hosts.push(agent.host.clone());
            }
        }
        hosts
    }

    /// Returns whether there are agents and all of them have sent their last message.
    pub(super) fn all_done(&self) -> bool {
        !self.0.is_empty() && self.0.values().all(|agent| agent.is_done)
    }

    /// Returns whether the thread of any connection still runs.
    pub(super) fn any_open(&self) -> bool {
        self.0
            .values()
            .any(|agent| Arc::strong_count(&agent.outbox) > 1)
    }
}

impl CoordinatorShell<'_> {
    /// Accepts an agent. Only a leading coordinator may assign slots, because only its assignments are
    /// stored for its successors; a host without slots therefore waits until this coordinator leads.
    pub(super) fn agent_connected(&mut self, came: AgentHello) {
        if came.first.is_none() && !self.leads() && self.over.is_none() {
            let until = self.now() + STANDBY_MAX;
            self.waiting_agents.push((until, came));
            return;
        }
        let refuse = |reason: String| {
            came.outbox.send(&ToAgent::Refused { reason });
            came.outbox.close();
        };
        if let Some(number) = self.agents.number_of(&came.host) {
            let other = &self.agents.0[&number];
            let silence = self.folder.spec().settings.silence;
            if other.agent != came.agent && self.now() < other.heard + silence {
                let host = &came.host;
                return refuse(format!(
                    "an agent of host {host} is already connected; use another name (--host)"
                ));
            }
            // The same agent has reconnected before its older connection was closed here.
            if let Some(old) = self.agents.0.remove(&number) {
                old.outbox.close();
            }
            for through in self.workers.values_mut().filter(|n| **n == number) {
                *through = came.number;
            }
        }
        let (first, is_new) = self.state.first_slot(&came.host, came.first);
        if is_new && self.leads() {
            self.keep_state();
        }
        if let Some(at) = self.disconnected.0.iter().position(|l| l.1 == came.host) {
            let (_, _, workers, _) = self.disconnected.0.remove(at);
            for worker in workers {
                self.workers.insert(worker, came.number);
            }
        }
        let spec = self.folder.spec();
        came.outbox.send(&ToAgent::Welcome(Box::new(Welcome {
            protocol: PROTOCOL,
            job: spec.job.clone(),
            task: spec.task.clone(),
            settings: spec.settings,
            command: spec.command.clone(),
            first,
        })));
        let agent = ConnectedAgent {
            outbox: came.outbox,
            host: came.host,
            agent: came.agent,
            count: came.count,
            first,
            follows: came.follows,
            heard: self.now(),
            is_silent: false,
            unacknowledged: None,
            expects: None,
            is_done: false,
        };
        self.agents.0.insert(came.number, agent);
        self.send_end(came.number);
        if let Some(journal) = &self.journal {
            self.agents.replay(journal);
        }
    }

    /// Accepts waiting agents once this coordinator leads, and disconnects those that have waited too
    /// long, so that they try another coordinator.
    pub(super) fn serve_waiting_agents(&mut self) {
        let (now, accepts) = (self.now(), self.leads() || self.over.is_some());
        for (until, hello) in std::mem::take(&mut self.waiting_agents) {
            if accepts {
                self.agent_connected(hello);
            } else if now >= until {
                hello.outbox.close();
            } else {
                self.waiting_agents.push((until, hello));
            }
        }
    }

    /// Adds the slots of connected agents to the state that was read from the store. An agent whose
    /// slots belong to another host by now is disconnected, and is notified when it connects again.
    pub(super) fn adopt_agents(&mut self) {
        let mut is_changed = false;
        for agent in self.agents.0.values() {
            let (first, is_new) = self.state.first_slot(&agent.host, Some(agent.first));
            is_changed |= is_new;
            if first != agent.first {
                agent.outbox.close();
            }
        }
        if is_changed {
            self.keep_state();
        }
    }

    /// Processes an agent's message. An agent may report only its own slots.
    pub(super) fn said(&mut self, number: u64, message: FromAgent) {
        let now = self.now();
        let Some(agent) = self.agents.0.get_mut(&number) else {
            return;
        };
        agent.heard = now;
        let (first, count, host) = (agent.first.0, u64::from(agent.count), agent.host.clone());
        let owns = |slot: WorkerSlot| (first..first + count).contains(&slot.0);
        if std::mem::take(&mut agent.is_silent) {
            let host = host.clone();
            self.feed(CoordinatorEvent::HostResponds { host });
        }
        match message {
            FromAgent::Hello { .. } | FromAgent::Alive => {}
            FromAgent::Slots { slots } if slots.is_empty() => {
                self.feed(CoordinatorEvent::HostDown { host });
            }
            FromAgent::Slots { mut slots } => {
                slots.retain(|state| owns(state.slot));
                self.offered(number, host, slots);
            }
            FromAgent::Report { body } if owns(body.member.slot) && body.member.host == host => {
                self.reported(number, body);
            }
            FromAgent::Report { .. } => {}
            FromAgent::Busy { worker } => {
                if self.workers.get(&worker) == Some(&number) {
                    self.feed(CoordinatorEvent::Busy { worker });
                }
            }
            FromAgent::Event { number: sent, body } => self.recorded(number, sent, body),
            FromAgent::Unlinked { worker, cause } => {
                if self.workers.get(&worker) == Some(&number) {
                    self.feed(CoordinatorEvent::Disconnected { worker, cause });
                }
            }
            FromAgent::Ended {
                worker,
                slot,
                cause,
            } => {
                if owns(slot) {
                    self.workers.remove(&worker);
                    self.feed(CoordinatorEvent::Exited {
                        worker,
                        slot,
                        cause,
                    });
                }
            }
            FromAgent::Bye => self.agents.done(number),
            FromAgent::Finish { by } => self.feed(CoordinatorEvent::Stop { by }),
            FromAgent::Stop { by } => self.feed(CoordinatorEvent::Abandon { by }),
        }
    }

    fn offered(&mut self, number: u64, host: String, slots: Vec<SlotStatus>) {
        for worker in slots.iter().filter_map(|state| state.worker) {
            self.workers.insert(worker, number);
        }
        self.feed(CoordinatorEvent::HostUp { host, slots });
    }

    fn reported(&mut self, number: u64, report: WorkerReport) {
        self.workers.insert(report.member.worker, number);
        self.feed(CoordinatorEvent::Report(report));
    }

    fn recorded(&mut self, number: u64, sent: u64, event: RunEvent) {
        let newest = self.machine.record().generation;
        // It counts at once, also if the event cannot be stored yet.
        if let (RunEvent::CheckpointSaved { step: next, .. }, Some(generation)) = (&event, newest) {
            let next = *next;
            self.feed(CoordinatorEvent::CheckpointWritten { generation, next });
        }
        // Events sent at the end of the job are still stored.
        let leads = self.leads() || self.over.is_some();
        let is_stored = leads && self.journal.is_some();
        let Some(agent) = self.agents.0.get_mut(&number) else {
            return;
        };
        // Events are stored in order: after a gap, all events from the first missing one are sent
        // again.
        if !is_stored || agent.expects.is_some_and(|next| sent > next) {
            agent.expects = Some(agent.expects.map_or(sent, |next| next.min(sent)));
            return;
        }
        (agent.expects, agent.unacknowledged) = (Some(sent + 1), Some(sent));
        for event in self.narration.recorded(self.now(), event, newest) {
            self.publish(event);
        }
    }

    /// Handles a lost connection to an agent, which may reconnect.
    pub(super) fn gone(&mut self, number: u64, cause: &str) {
        self.waiting_agents
            .retain(|(_, hello)| hello.number != number);
        let Some(agent) = self.agents.0.remove(&number) else {
            return;
        };
        let mine = |(worker, through): (&WorkerId, &u64)| (*through == number).then_some(*worker);
        let workers: Vec<WorkerId> = self.workers.iter().filter_map(mine).collect();
        self.workers.retain(|_, through| *through != number);
        let until = self.now() + RECONNECT_MAX;
        let cause = format!("lost the agent of host {}: {cause}", agent.host);
        self.disconnected
            .0
            .push((until, agent.host, workers, cause));
    }

    /// Gives up agents that did not reconnect in time.
    pub(super) fn give_up_disconnected(&mut self) {
        let now = self.now();
        let all = std::mem::take(&mut self.disconnected.0);
        let (over, left) = all.into_iter().partition(|(until, ..)| now >= *until);
        self.disconnected.0 = left;
        let over: Vec<(Duration, String, Vec<WorkerId>, String)> = over;
        for (_, host, workers, cause) in over {
            self.feed(CoordinatorEvent::HostDown { host });
            for worker in workers {
                let cause = cause.clone();
                self.feed(CoordinatorEvent::Disconnected { worker, cause });
            }
        }
    }

    /// Notifies the machine of agents that are connected but do not respond.
    pub(super) fn note_silent_agents(&mut self) {
        let silence = self.folder.spec().settings.silence;
        for host in self.agents.newly_silent(self.now(), silence) {
            self.feed(CoordinatorEvent::HostSilent { host });
        }
    }

    /// Saves the state for the next coordinator.
    pub(super) fn keep_state(&mut self) {
        if let Err(error) = self.state.write(self.folder) {
            self.mention(error.to_string());
        }
    }

    /// Reports a refused peer, at most one per second.
    pub(super) fn turned_away(&mut self, from: SocketAddr, why: &str) {
        let now = self.now();
        match &mut self.turned_away {
            Some((last, more)) if now < *last + REFUSALS_EVERY => *more += 1,
            known => {
                let more = known.map_or(0, |(_, more)| more);
                *known = Some((now, 0));
                let others = match more {
                    0 => String::new(),
                    more => format!(" ({more} more since the last message)"),
                };
                self.announce(format!("refused a peer at {from}: {why}{others}"));
            }
        }
    }
}
