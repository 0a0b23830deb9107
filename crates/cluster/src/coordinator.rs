//! [`coordinate`]: runs a job's coordinator as a separate process: the shell around
//! [`CoordinatorMachine`], with agents on any host, its record in a store and its events in a
//! journal.
//!
//! One thread decides, one accesses the store, and one per connection reads and writes.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use ronde_core::{Event as RunEvent, Tracker};
use ronde_identity::{Authority, Identity, Member, Validity};
use ronde_protocol::{
    CoordinatorCommand, CoordinatorEvent, CoordinatorId, CoordinatorMachine, JobEnding, Reason,
    Time, WorkerId,
};

use crate::error::ClusterError;
use crate::job::{JobFolder, job_error};
use crate::job_history::JobHistory;
use crate::journal::Journal;
use crate::liveness_lock::{self, LivenessLock};
use crate::messages::ToAgent;
use crate::record_writer::RecordWriter;
use crate::secure::{ListenLimits, TlsListener};
use crate::status::StatusBoard;
use crate::stop::{StopFlag, StopLevel};

mod agents;
mod connections;
mod journaling;
mod requests;
mod state;

use agents::{AgentTable, DisconnectedAgents};
use connections::{AgentHello, ConnectionHandler, CoordinatorInput};
use journaling::Unwritten;
pub(crate) use state::CoordinatorState;

/// Maximum number of queued inputs; beyond it the agents' sockets fill up.
const INPUTS_MAX: usize = 4_096;
/// Maximum number of inputs processed in one turn.
const BATCH_MAX: usize = 512;
/// Maximum interval between messages to agents.
const ALIVE_EVERY: Duration = Duration::from_millis(250);
/// Interval for reading the addresses of other coordinators.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Validity of a member's certificate.
const CERTIFICATE: Duration = Duration::from_secs(90 * 86_400);
/// Time limit for agents to deliver their last events after the end of the job.
const LAST_EVENTS_MAX: Duration = Duration::from_secs(10);
/// Time limit for closing their connections.
const FAREWELL_MAX: Duration = Duration::from_secs(2);

/// How a coordinator's run ended.
#[derive(Debug)]
pub enum CoordinatorOutcome {
    /// The job is over.
    Over {
        /// How it ended.
        ending: JobEnding,
        /// The reason, in one sentence.
        reason: String,
    },
    /// The coordinator was stopped; the job continues and waits for another one.
    Left {
        /// The signal that stopped it.
        signal: i32,
    },
}

/// Leads the job of a folder, or is a standby while another coordinator leads, until the job is over
/// or `stop` is raised. Listens only at `listen` (port 0: any free port) and passes the address to
/// `ready`. Messages for the user go to `tell`, all events to the job's journal.
///
/// # Errors
/// Returns an error if the job's store or its secrets cannot be read, or `listen` cannot be bound.
pub fn coordinate(
    folder: &JobFolder,
    listen: SocketAddr,
    tell: &dyn Tracker,
    stop: &StopFlag,
    ready: &mut dyn FnMut(SocketAddr),
) -> Result<CoordinatorOutcome, ClusterError> {
    let (authority, token) = folder.credentials()?;
    let validity = Validity::from_now(ronde_clock::date(), CERTIFICATE);
    let identity = authority.issue(&Member::Coordinator, validity)?;
    let me = CoordinatorId(random().map_err(|e| job_error(folder.path(), e.to_string()))?);
    let machine = CoordinatorMachine::new(me, folder.spec().settings)
        .map_err(|error| job_error(folder.path(), error.to_string()))?;
    let _presence = LivenessLock::show(folder.path(), me);
    let (sender, inputs) = sync_channel(INPUTS_MAX);
    let room = Arc::new(ConnectionHandler::new(
        identity.clone(),
        token,
        sender.clone(),
    ));
    let listen_error = |cause| ClusterError::Listen {
        address: listen,
        cause,
    };
    let socket = TcpListener::bind(listen).map_err(listen_error)?;
    let listener = TlsListener::start(socket, &identity, room, ListenLimits::default())
        .map_err(listen_error)?;
    let address = listener.address();
    folder.announce(me, address)?;
    let keeper = RecordWriter::start(folder.store().clone(), folder.record_name()?, move |kept| {
        // An error means that the coordinator has ended and the answer is not needed.
        let _ = sender.send(CoordinatorInput::Store(kept));
    });
    ready(address);
    let mut leader = CoordinatorShell {
        folder,
        identity,
        authority,
        address,
        tell,
        machine,
        keeper,
        begun: ronde_clock::now(),
        wake: None,
        narration: JobHistory::default(),
        board: StatusBoard::default(),
        journal: None,
        unwritten: Unwritten::default(),
        agents: AgentTable::default(),
        disconnected: DisconnectedAgents::default(),
        waiting_agents: Vec::new(),
        workers: BTreeMap::new(),
        state: CoordinatorState::default(),
        coordinators: vec![address],
        looked: None,
        greeted: Duration::ZERO,
        ended: None,
        turned_away: None,
        store_problem: None,
        over: None,
    };
    let concluded = leader.run(&inputs, stop);
    folder.withdraw(me);
    leader.disconnect_all(inputs);
    Ok(concluded)
}

/// Returns a random number that identifies this process.
pub(crate) fn random() -> std::io::Result<u64> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

struct CoordinatorShell<'a> {
    folder: &'a JobFolder,
    identity: Identity,
    authority: Authority,
    address: SocketAddr,
    tell: &'a dyn Tracker,
    machine: CoordinatorMachine,
    keeper: RecordWriter,
    begun: Instant,
    /// When the machine next needs the time.
    wake: Option<Time>,
    narration: JobHistory,
    board: StatusBoard,
    /// The journal, only while this coordinator leads.
    journal: Option<Journal>,
    /// The events that wait because the journal cannot be written.
    unwritten: Unwritten,
    agents: AgentTable,
    /// Agents that were disconnected recently.
    disconnected: DisconnectedAgents,
    /// Agents without slots that connected while this coordinator does not lead, each with its limit.
    waiting_agents: Vec<(Duration, AgentHello)>,
    /// The connection through which each worker is reached.
    workers: BTreeMap<WorkerId, u64>,
    state: CoordinatorState,
    coordinators: Vec<SocketAddr>,
    looked: Option<Duration>,
    greeted: Duration,
    /// A previous coordinator whose end was observed.
    ended: Option<CoordinatorId>,
    /// When a refused peer was last reported, and how many were refused since.
    turned_away: Option<(Duration, u32)>,
    store_problem: Option<String>,
    /// When, how and why the job ended.
    over: Option<(Duration, JobEnding, String)>,
}

impl CoordinatorShell<'_> {
    fn run(&mut self, inputs: &Receiver<CoordinatorInput>, stop: &StopFlag) -> CoordinatorOutcome {
        self.feed(CoordinatorEvent::Tick);
        loop {
            match inputs.recv_timeout(self.wait_limit()) {
                Ok(input) => self.take(input),
                Err(RecvTimeoutError::Timeout) => {}
                // The record writer holds a sender.
                Err(RecvTimeoutError::Disconnected) => {}
            }
            for input in inputs.try_iter().take(BATCH_MAX) {
                self.take(input);
            }
            self.agents.acknowledge();
            self.keep_time();
            if let Some((since, ending, reason)) = &self.over {
                let waited = self.now().saturating_sub(*since);
                if self.agents.all_done() || waited > LAST_EVENTS_MAX {
                    return CoordinatorOutcome::Over {
                        ending: *ending,
                        reason: reason.clone(),
                    };
                }
            }
            if stop.level() > StopLevel::Run {
                return CoordinatorOutcome::Left {
                    signal: stop.signal(),
                };
            }
        }
    }

    /// Closes all connections and waits briefly for their threads.
    fn disconnect_all(&mut self, inputs: Receiver<CoordinatorInput>) {
        self.agents.close_all();
        for (_, hello) in self.waiting_agents.drain(..) {
            hello.outbox.close();
        }
        let deadline = ronde_clock::now() + FAREWELL_MAX;
        while self.agents.any_open() && ronde_clock::now() < deadline {
            // Threads that wait for space in the queue must be able to continue.
            while inputs.try_recv().is_ok() {}
            ronde_clock::pause(Duration::from_millis(2));
        }
        drop(inputs);
    }

    fn now(&self) -> Duration {
        ronde_clock::now() - self.begun
    }

    fn time(&self) -> Time {
        Time::default().after(self.now())
    }

    fn leads(&self) -> bool {
        self.machine.leads(self.time())
    }

    /// Returns how long to wait for an input at most.
    fn wait_limit(&self) -> Duration {
        let time = self.time();
        let due = self.wake.map(|at| at.since(time));
        let due = due.unwrap_or(ALIVE_EVERY).min(ALIVE_EVERY / 2);
        due.max(Duration::from_millis(1))
    }

    fn take(&mut self, input: CoordinatorInput) {
        match input {
            CoordinatorInput::AgentConnected(came) => self.agent_connected(*came),
            CoordinatorInput::AgentMessage(number, message) => self.said(number, *message),
            CoordinatorInput::Disconnected(number, cause) => self.gone(number, &cause),
            CoordinatorInput::Request(asks, from, reply) => {
                let answer = self.asked(*asks, from);
                // An error means that the client no longer waits.
                let _ = reply.try_send(answer);
            }
            CoordinatorInput::Refused(from, why) => self.turned_away(from, &why),
            CoordinatorInput::Store(Ok(reply)) => {
                self.store_problem = None;
                self.feed(CoordinatorEvent::Store(reply));
            }
            CoordinatorInput::Store(Err(problem)) => {
                if self.store_problem.as_ref() != Some(&problem) {
                    self.mention(format!("cannot access the job's record: {problem}"));
                    self.store_problem = Some(problem);
                }
            }
        }
    }

    /// Acts on elapsed time.
    fn keep_time(&mut self) {
        // Before the machine evaluates the silence of their workers.
        self.note_silent_agents();
        let time = self.time();
        if self.wake.is_some_and(|at| at <= time) {
            self.feed(CoordinatorEvent::Tick);
        }
        self.give_up_disconnected();
        self.serve_waiting_agents();
        self.reopen_journal();
        let now = self.now();
        if self.looked.is_none_or(|at| now >= at + LOOK_EVERY) {
            self.looked = Some(now);
            if let Ok(found) = self.folder.coordinators() {
                self.coordinators = found;
            }
        }
        if now >= self.greeted + ALIVE_EVERY {
            self.greeted = now;
            self.greet();
        }
        self.look_after_the_holder();
    }

    /// Notices when the coordinator that holds the lease has ended, so that its lease need not
    /// expire.
    fn look_after_the_holder(&mut self) {
        let holder = self.machine.record().holder;
        let Some(coordinator) = holder.filter(|_| !self.leads() && self.over.is_none()) else {
            return;
        };
        if self.ended != Some(coordinator)
            && liveness_lock::has_ended(self.folder.path(), coordinator)
        {
            self.ended = Some(coordinator);
            self.feed(CoordinatorEvent::CoordinatorEnded { coordinator });
        }
    }

    /// Sends the term in which this coordinator leads, if it does, and the others' addresses to all
    /// agents.
    fn greet(&self) {
        let term = self.machine.record().term;
        self.agents.send_all(&ToAgent::Alive {
            leads: self.leads().then_some(term),
            coordinators: self.coordinators.clone(),
            problem: self.storage_problem(),
        });
    }

    /// Passes an event to the machine and executes its commands.
    fn feed(&mut self, event: CoordinatorEvent) {
        let time = self.time();
        for command in self.machine.handle(time, event) {
            self.execute(command);
        }
        self.wake = self.machine.wake_at(time);
    }

    fn execute(&mut self, command: CoordinatorCommand) {
        match command {
            CoordinatorCommand::Store(request) => self.keeper.ask(request),
            CoordinatorCommand::Send { to, message } => {
                if let Some(number) = self.workers.get(&to) {
                    self.agents
                        .send(*number, &ToAgent::ToWorker { to, body: message });
                }
            }
            CoordinatorCommand::Start { host, slot, worker } => {
                let validity = Validity::from_now(ronde_clock::date(), CERTIFICATE);
                let issued = self.authority.issue(&Member::Worker(worker.0), validity);
                let (Some(number), Ok(issued)) = (self.agents.number_of(&host), issued) else {
                    // Its host is gone; a worker that never reports is given up after a while.
                    return;
                };
                self.workers.insert(worker, number);
                let identity = issued.to_pem().expose().to_owned();
                let message = ToAgent::Start {
                    slot,
                    worker,
                    identity,
                };
                self.agents.send(number, &message);
            }
            CoordinatorCommand::Kill { slot, worker } => {
                if let Some(number) = self.workers.get(&worker) {
                    self.agents.send(*number, &ToAgent::Kill { slot, worker });
                }
            }
            CoordinatorCommand::Log(reason) => self.decided(&reason),
            CoordinatorCommand::End { ending, reason } => self.end(ending, reason),
        }
    }

    /// Records a decision of the machine.
    fn decided(&mut self, reason: &Reason) {
        match reason {
            Reason::Leads { .. } => self.begin_to_lead(),
            Reason::Deposed { .. } => {
                (self.journal, self.unwritten) = (None, Unwritten::default());
            }
            Reason::Starts {
                slot,
                after: Some(_),
                ..
            }
            | Reason::SlotGivenUp { slot, .. } => {
                self.state.died(*slot, ronde_clock::unix_ms());
                self.keep_state();
            }
            _ => {}
        }
        let newest = self.machine.record().generation;
        for event in self.narration.say(self.now(), reason, newest) {
            match reason {
                // The journal belongs to another coordinator now.
                Reason::Deposed { .. } | Reason::StandsBy { .. } => self.tell.record(event),
                _ => self.publish(event),
            }
        }
    }

    /// Loads the journal and the state that the previous coordinator saved.
    fn begin_to_lead(&mut self) {
        if let Some(before) = self.ended.take() {
            liveness_lock::forget(self.folder.path(), before);
        }
        self.unwritten = Unwritten::default();
        match self.open_journal() {
            Ok(journal) => self.journal = Some(journal),
            Err(error) => self.journal_failed(&error),
        }
        match CoordinatorState::read(self.folder) {
            Ok(state) => {
                self.state = state;
                self.adopt_agents();
            }
            // Adopting agents would replace the stored state by one without the hosts that are not connected yet.
            Err(error) => self.mention(error.to_string()),
        }
        if let Some(workers) = self.state.workers {
            self.feed(CoordinatorEvent::Scale { workers });
        }
        for (slot, ages) in self.state.deaths(ronde_clock::unix_ms()) {
            self.feed(CoordinatorEvent::DiedBefore { slot, ages });
        }
        self.replay_journal();
    }

    /// Stores an event and sends it to followers.
    fn publish(&mut self, event: RunEvent) {
        self.board.take(&event);
        match self.journal.as_mut().map(|journal| journal.append(&event)) {
            Some(Ok(number)) => self.agents.happened(number, &event),
            Some(Err(error)) => {
                self.journal = None;
                self.journal_failed(&error);
                self.unwritten.add(&event);
            }
            None => self.unwritten.add(&event),
        }
        if matches!(
            event,
            RunEvent::Notice { .. }
                | RunEvent::MembershipChanged { .. }
                | RunEvent::Recovered { .. }
        ) {
            self.tell.record(event);
        }
    }

    /// Records a message for the user of this coordinator.
    fn mention(&self, message: String) {
        self.tell.record(RunEvent::Notice {
            rank: None,
            message,
        });
    }

    /// Records a message for all users of the job.
    fn announce(&mut self, message: String) {
        let event = RunEvent::Notice {
            rank: None,
            message,
        };
        match self.leads() {
            true => self.publish(event),
            false => self.tell.record(event),
        }
    }

    fn end(&mut self, ending: JobEnding, reason: Reason) {
        let now = self.now();
        self.over.get_or_insert((now, ending, reason.to_string()));
        self.agents.send_all(&ToAgent::End { ending, reason });
    }

    /// Notifies an agent that connects after the end of the job.
    fn send_end(&self, number: u64) {
        if let Some((_, ending, reason)) = &self.over {
            let (ending, by) = (*ending, reason.clone());
            let reason = Reason::Stopped {
                by,
                checkpoint: None,
            };
            self.agents.send(number, &ToAgent::End { ending, reason });
        }
    }
}

#[cfg(test)]
mod tests;
