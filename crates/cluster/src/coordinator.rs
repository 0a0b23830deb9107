//! [`coordinate`]: the coordinator of a job as a process of its own: the shell round
//! [`CoordinatorMachine`], with agents on any host, its record in a store and its events in a journal.
//!
//! One thread decides; one asks the store; one per connection reads and writes.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use ronde_core::{Event as RunEvent, Tracker};
use ronde_elastic::{
    CoordinatorCommand, CoordinatorId, CoordinatorMachine, JobEnding, CoordinatorEvent, Reason, Time, WorkerId,
};
use ronde_identity::{Authority, Identity, Member, Validity};

use crate::board::Board;
use crate::clock;
use crate::error::ClusterError;
use crate::job::{JobFolder, job_error};
use crate::journal::Journal;
use crate::keeper::Keeper;
use crate::narration::Narration;
use crate::presence::{self, Presence};
use crate::secure::Listener;
use crate::stop::{StopFlag, StopLevel};
use crate::talk::ToAgent;

mod agents;
mod questions;
mod reception;
mod state;

use agents::{Agents, Lingering};
use reception::{Input, Room};
pub(crate) use state::State;

/// Inputs that wait at most; beyond that the agents' sockets fill up.
const INPUTS_MAX: usize = 4_096;
/// Inputs that are taken in one go.
const BATCH_MAX: usize = 512;
/// How often agents hear from their coordinator at least.
const ALIVE_EVERY: Duration = Duration::from_millis(250);
/// How often others look where coordinators listen.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a certificate of a member is good for.
const CERTIFICATE: Duration = Duration::from_secs(90 * 86_400);
/// How long the agents of a job that is over may take until all is said.
const LAST_EVENTS_MAX: Duration = Duration::from_secs(10);
/// How long their connections may take to close.
const FAREWELL_MAX: Duration = Duration::from_secs(2);

/// How a coordinator's work ended.
#[derive(Debug)]
pub enum Concluded {
    /// The job is over.
    Over {
        /// How.
        ending: JobEnding,
        /// Why, in one sentence.
        reason: String,
    },
    /// It was told to end; the job goes on and waits for another coordinator.
    Left {
        /// The signal that told it.
        signal: i32,
    },
}

/// Leads the job of a folder, or stands by while another coordinator does, until the job is over or
/// `stop` is raised. Listens at `listen` only (port 0: any free one); `ready` hears where. What people
/// should know goes to `tell`, all events to the journal of the job.
///
/// # Errors
/// The job's store or its secrets cannot be read, or nobody can listen there.
pub fn coordinate(
    folder: &JobFolder,
    listen: SocketAddr,
    tell: &dyn Tracker,
    stop: &StopFlag,
    ready: &mut dyn FnMut(SocketAddr),
) -> Result<Concluded, ClusterError> {
    let (authority, token) = folder.credentials()?;
    let validity = Validity::from_now(clock::today(), CERTIFICATE);
    let identity = authority.issue(&Member::Coordinator, validity)?;
    let me = CoordinatorId(random().map_err(|e| job_error(folder.path(), e.to_string()))?);
    let machine = CoordinatorMachine::new(me, folder.spec().settings)
        .map_err(|error| job_error(folder.path(), error.to_string()))?;
    let _presence = Presence::show(folder.path(), me);
    let (sender, inputs) = sync_channel(INPUTS_MAX);
    let room = Arc::new(Room::new(identity.clone(), token, sender.clone()));
    let listen_error = |cause| ClusterError::Listen {
        address: listen,
        cause,
    };
    let socket = TcpListener::bind(listen).map_err(listen_error)?;
    let listener = Listener::start(socket, &identity, room).map_err(listen_error)?;
    let address = listener.address();
    folder.announce(me, address)?;
    let keeper = Keeper::start(folder.store().clone(), folder.record_name()?, move |kept| {
        // The coordinator is gone: then nobody needs the answer.
        let _ = sender.send(Input::Kept(kept));
    });
    ready(address);
    let mut leader = Leader {
        folder,
        identity,
        authority,
        address,
        tell,
        machine,
        keeper,
        begun: clock::now(),
        wake: None,
        narration: Narration::default(),
        board: Board::default(),
        journal: None,
        agents: Agents::default(),
        lingering: Lingering::default(),
        workers: BTreeMap::new(),
        state: State::default(),
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
    leader.agents.close_all();
    let deadline = clock::now() + FAREWELL_MAX;
    while leader.agents.any_open() && clock::now() < deadline {
        // Those who wait for room in the queue must get it.
        while inputs.try_recv().is_ok() {}
        clock::pause(Duration::from_millis(2));
    }
    drop(inputs);
    Ok(concluded)
}

/// A number that no other process has.
pub(crate) fn random() -> std::io::Result<u64> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

struct Leader<'a> {
    folder: &'a JobFolder,
    identity: Identity,
    authority: Authority,
    address: SocketAddr,
    tell: &'a dyn Tracker,
    machine: CoordinatorMachine,
    keeper: Keeper,
    begun: Instant,
    /// When the machine wants to look at the time.
    wake: Option<Time>,
    narration: Narration,
    board: Board,
    /// Only while this coordinator leads.
    journal: Option<Journal>,
    agents: Agents,
    /// Agents whose connection has just ended.
    lingering: Lingering,
    /// Through which connection a worker is reached.
    workers: BTreeMap<WorkerId, u64>,
    state: State,
    coordinators: Vec<SocketAddr>,
    looked: Option<Duration>,
    greeted: Duration,
    /// A coordinator before this one that was seen to have ended.
    ended: Option<CoordinatorId>,
    /// When a stranger was last spoken of, and how many came since.
    turned_away: Option<(Duration, u32)>,
    store_problem: Option<String>,
    /// Since when the job is over, how and why.
    over: Option<(Duration, JobEnding, String)>,
}

impl Leader<'_> {
    fn run(&mut self, inputs: &Receiver<Input>, stop: &StopFlag) -> Concluded {
        self.feed(CoordinatorEvent::Tick);
        loop {
            match inputs.recv_timeout(self.patience()) {
                Ok(input) => self.take(input),
                Err(RecvTimeoutError::Timeout) => {}
                // The keeper holds a sender.
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
                    return Concluded::Over {
                        ending: *ending,
                        reason: reason.clone(),
                    };
                }
            }
            if stop.level() > StopLevel::Run {
                return Concluded::Left {
                    signal: stop.signal(),
                };
            }
        }
    }

    fn now(&self) -> Duration {
        clock::now() - self.begun
    }

    fn time(&self) -> Time {
        Time::default().after(self.now())
    }

    fn leads(&self) -> bool {
        self.machine.leads(self.time())
    }

    /// How long to wait for an input at most.
    fn patience(&self) -> Duration {
        let time = self.time();
        let due = self.wake.map(|at| at.since(time));
        let due = due.unwrap_or(ALIVE_EVERY).min(ALIVE_EVERY / 2);
        due.max(Duration::from_millis(1))
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Came(came) => self.came(*came),
            Input::Said(number, message) => self.said(number, *message),
            Input::Gone(number, cause) => self.gone(number, &cause),
            Input::Asked(asks, from, reply) => {
                let answer = self.asked(*asks, from);
                // Whoever asked has waited long enough.
                let _ = reply.try_send(answer);
            }
            Input::TurnedAway(from, why) => self.turned_away(from, &why),
            Input::Kept(Ok(reply)) => {
                self.store_problem = None;
                self.feed(CoordinatorEvent::Store(reply));
            }
            Input::Kept(Err(problem)) => {
                if self.store_problem.as_ref() != Some(&problem) {
                    self.mention(format!("the job's record cannot be reached: {problem}"));
                    self.store_problem = Some(problem);
                }
            }
        }
    }

    /// What is due because time has passed.
    fn keep_time(&mut self) {
        let time = self.time();
        if self.wake.is_some_and(|at| at <= time) {
            self.feed(CoordinatorEvent::Tick);
        }
        self.give_up_lingering();
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

    /// Sees whether the coordinator that holds the lease has ended: then there is nothing to wait for.
    fn look_after_the_holder(&mut self) {
        let holder = self.machine.record().holder;
        let Some(coordinator) = holder.filter(|_| !self.leads() && self.over.is_none()) else {
            return;
        };
        if self.ended != Some(coordinator) && presence::has_ended(self.folder.path(), coordinator) {
            self.ended = Some(coordinator);
            self.feed(CoordinatorEvent::CoordinatorEnded { coordinator });
        }
    }

    /// Tells all agents under which term this coordinator leads, if it does, and where others listen.
    fn greet(&self) {
        let term = self.machine.record().term;
        self.agents.send_all(&ToAgent::Alive {
            leads: self.leads().then_some(term),
            coordinators: self.coordinators.clone(),
        });
    }

    /// Tells the machine what has happened, and does what it says.
    fn feed(&mut self, event: CoordinatorEvent) {
        let time = self.time();
        for command in self.machine.handle(time, event) {
            self.obey(command);
        }
        self.wake = self.machine.wake_at(time);
    }

    fn obey(&mut self, command: CoordinatorCommand) {
        match command {
            CoordinatorCommand::Store(request) => self.keeper.ask(request),
            CoordinatorCommand::Send { to, message } => {
                if let Some(number) = self.workers.get(&to) {
                    self.agents
                        .send(*number, &ToAgent::Told { to, body: message });
                }
            }
            CoordinatorCommand::Start {
                host,
                slot,
                worker,
            } => {
                let validity = Validity::from_now(clock::today(), CERTIFICATE);
                let issued = self.authority.issue(&Member::Worker(worker.0), validity);
                let (Some(number), Ok(issued)) = (self.agents.number_of(&host), issued) else {
                    // Its host went away; the worker that never reports is given up after a while.
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
            CoordinatorCommand::Log(reason) => self.told(&reason),
            CoordinatorCommand::End { ending, reason } => self.end(ending, reason),
        }
    }

    /// Something was decided.
    fn told(&mut self, reason: &Reason) {
        match reason {
            Reason::Leads { .. } => self.begin_to_lead(),
            Reason::Deposed { .. } => self.journal = None,
            Reason::Starts {
                slot,
                after: Some(_),
                ..
            }
            | Reason::SlotGivenUp { slot, .. } => {
                self.state.died(*slot, clock::unix_ms());
                self.keep_state();
            }
            _ => {}
        }
        let newest = self.machine.record().generation;
        let Some(event) = self.narration.say(self.now(), reason, newest) else {
            return;
        };
        match reason {
            // The journal is another one's now.
            Reason::Deposed { .. } | Reason::StandsBy { .. } => self.tell.record(event),
            _ => self.publish(event),
        }
    }

    /// Learns from the journal and from what the coordinator before kept.
    fn begin_to_lead(&mut self) {
        if let Some(before) = self.ended.take() {
            presence::forget(self.folder.path(), before);
        }
        (self.narration, self.board) = Default::default();
        let (narration, board) = (&mut self.narration, &mut self.board);
        let opened = Journal::open(&self.folder.events(), &mut |event| {
            narration.remember(event);
            board.take(event);
        });
        match opened {
            Ok(journal) => self.journal = Some(journal),
            Err(error) => self.mention(format!(
                "{}: {error}; events are not written down",
                self.folder.events().display()
            )),
        }
        match State::read(self.folder) {
            Ok(state) => self.state = state,
            Err(error) => self.mention(error.to_string()),
        }
        if let Some(workers) = self.state.workers {
            self.feed(CoordinatorEvent::Scale { workers });
        }
        for (slot, ages) in self.state.deaths(clock::unix_ms()) {
            self.feed(CoordinatorEvent::DiedBefore { slot, ages });
        }
        if let Some(journal) = &self.journal {
            self.agents.replay(journal);
        }
        // Also agents that did not notice that nobody led for a moment say again what was not heard.
        self.agents.send_all(&ToAgent::Alive {
            leads: None,
            coordinators: Vec::new(),
        });
        self.greet();
    }

    /// Writes an event down and tells those who follow.
    fn publish(&mut self, event: RunEvent) {
        self.board.take(&event);
        let written = self.journal.as_mut().map(|journal| journal.append(&event));
        match written {
            Some(Ok(number)) => self.agents.happened(number, &event),
            Some(Err(error)) => {
                self.journal = None;
                self.mention(format!(
                    "writing events failed ({error}); all events after that are missing"
                ));
            }
            None => {}
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

    /// Says something to whoever watches this coordinator.
    fn mention(&self, message: String) {
        self.tell.record(RunEvent::Notice {
            rank: None,
            message,
        });
    }

    /// Says something to all who watch the job.
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

    /// Whoever comes when the job is over hears of it.
    fn tell_end(&self, number: u64) {
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
