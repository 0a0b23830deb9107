//! [`Placement`]: a worker's side of a job that goes on when workers die: the machine that decides, fed
//! by the connection to the supervisor, by time, and by the training loop.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ronde_core::{
    Assignment, Collectives, Event, Generation, Membership, MembershipError, Milestone, Rank,
    Tracker, WorldSize,
};
use ronde_elastic::{
    MemberInfo, WorkerSlot, Time, ToWorker, WorkerCommand, WorkerEvent, WorkerId, WorkerMachine,
};

use crate::clock;
use crate::error::ClusterError;
use crate::queue::EventQueue;
use crate::wire::Terms;

/// Generations whose members are remembered.
const GENERATIONS_MAX: usize = 8;

/// A worker's place in the job, as far as this process knows.
pub(crate) struct Placement {
    terms: Terms,
    begun: Instant,
    queue: Arc<EventQueue>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    machine: WorkerMachine,
    /// The newest place.
    assignment: Option<Assignment>,
    /// The names of the members of the newest generations, by rank.
    members: BTreeMap<Generation, Vec<u64>>,
    entered: Generation,
    group: Option<(Generation, Arc<dyn Collectives>)>,
    /// Why there will be no other place.
    over: Option<String>,
    /// The newest generation for which a checkpoint was asked of this worker, and whether it knows.
    checkpoint: Option<(Generation, bool)>,
}

/// Why a worker that waits has got no place.
enum NoPlace {
    /// Time is up.
    Late,
    /// There will be none.
    Over(String),
    /// It has to write a checkpoint first.
    Checkpoint(Generation),
}

/// Whose word it is that the machine hears.
#[derive(Clone, Copy, PartialEq)]
enum From {
    /// The thread that trains: it leaves its group by itself.
    Training,
    /// Anybody else: the group has to be aborted.
    Others,
}

impl Placement {
    /// A worker that asks for a place. Its peers reach it at `address`.
    pub(crate) fn ask(
        terms: Terms,
        worker: u64,
        slot: Rank,
        address: SocketAddr,
        queue: Arc<EventQueue>,
    ) -> Result<Arc<Self>, ClusterError> {
        let member = MemberInfo {
            worker: WorkerId(worker),
            slot: WorkerSlot(slot.0.into()),
            host: terms.host.clone(),
            address,
        };
        let end = ronde_core::Step(u64::MAX);
        let machine =
            WorkerMachine::new(member, terms.settings, end, Time(0)).map_err(|error| {
                ClusterError::Protocol {
                    problem: error.to_string(),
                }
            })?;
        Ok(Arc::new(Self {
            terms,
            begun: clock::now(),
            queue,
            state: Mutex::new(State {
                machine,
                assignment: None,
                members: BTreeMap::new(),
                entered: Generation(0),
                group: None,
                over: None,
                checkpoint: None,
            }),
            changed: Condvar::new(),
        }))
    }

    /// Says for the first time that this worker is here.
    pub(crate) fn begin(&self) {
        self.handle(WorkerEvent::Connected, From::Others);
    }

    /// The supervisor says something.
    pub(crate) fn hear(&self, message: ToWorker) {
        self.handle(WorkerEvent::Coordinator(message), From::Others);
    }

    /// The supervisor is gone or wants this process to end.
    pub(crate) fn lose(&self, reason: &str) {
        let group = {
            let mut state = self.lock();
            state.over.get_or_insert_with(|| reason.to_owned());
            state.group.take()
        };
        self.changed.notify_all();
        if let Some((_, group)) = group {
            group.abort(reason);
        }
    }

    /// Reports when it is time to, until the job is over. Runs on a thread of its own.
    pub(crate) fn tick(&self) {
        loop {
            let mut state = self.lock();
            let Some(wake) = state.machine.wake_at().filter(|_| state.over.is_none()) else {
                return;
            };
            let wait = wake.since(self.now());
            if !wait.is_zero() {
                let waited = self.changed.wait_timeout(state, wait);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let is_due = self.now() >= wake;
            drop(state);
            if is_due {
                self.handle(WorkerEvent::Tick, From::Others);
            }
        }
    }

    /// The names of a generation's members by rank, for as long as it is among the newest.
    pub(crate) fn members(&self, generation: Generation) -> Vec<u64> {
        let state = self.lock();
        state.members.get(&generation).cloned().unwrap_or_default()
    }

    /// Waits for the first place.
    pub(crate) fn first(&self, timeout: Duration) -> Result<Assignment, ClusterError> {
        self.wait(Generation(0), timeout).map_err(|why| match why {
            NoPlace::Over(reason) => ClusterError::Lost { reason },
            _ => ClusterError::RendezvousTimeout { limit: timeout },
        })
    }

    fn now(&self) -> Time {
        Time::default().after(clock::now() - self.begun)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, event: WorkerEvent, from: From) {
        let mut aborts = None;
        let is_news = {
            let mut state = self.lock();
            let wake = state.machine.wake_at();
            let mut is_news = false;
            for command in state.machine.handle(self.now(), event) {
                is_news |= matches!(
                    command,
                    WorkerCommand::Connect { .. }
                        | WorkerCommand::Checkpoint { .. }
                        | WorkerCommand::End(_)
                );
                self.obey(&mut state, command, from, &mut aborts);
            }
            is_news || state.machine.wake_at() < wake
        };
        // Whoever waits is not woken in vain: this runs twice a step, and workers may have all cores.
        if is_news {
            self.changed.notify_all();
        }
        if let Some((group, reason)) = aborts {
            group.abort(&reason);
        }
    }

    fn obey(
        &self,
        state: &mut State,
        command: WorkerCommand,
        from: From,
        aborts: &mut Option<(Arc<dyn Collectives>, String)>,
    ) {
        match command {
            WorkerCommand::Report(report) => self.queue.report(report),
            WorkerCommand::Leave {
                generation, reason, ..
            } => {
                let group = state.group.take_if(|(of, _)| *of <= generation);
                if from == From::Others {
                    *aborts = group.map(|(_, group)| (group, reason.to_string()));
                }
            }
            WorkerCommand::Connect {
                assignment, rank, ..
            } => {
                let names = assignment.members.iter().map(|member| member.worker.0);
                state.members.insert(assignment.generation, names.collect());
                while state.members.len() > GENERATIONS_MAX {
                    state.members.pop_first();
                }
                state.assignment = self.core_assignment(&assignment, rank);
            }
            WorkerCommand::Log(reason) => self.queue.record(Event::Notice {
                rank: state.assignment.as_ref().map(|assignment| assignment.rank),
                message: reason.to_string(),
            }),
            WorkerCommand::End(reason) => {
                state.over.get_or_insert_with(|| reason.to_string());
            }
            WorkerCommand::Checkpoint { generation, .. }
                if state.checkpoint.is_none_or(|(asked, _)| asked < generation) =>
            {
                state.checkpoint = Some((generation, false));
            }
            // The training loop does these in this order by itself.
            _ => {}
        }
    }

    /// A place as the training loop needs it.
    fn core_assignment(&self, assignment: &ronde_elastic::GenerationAssignment, rank: Rank) -> Option<Assignment> {
        let host = &assignment.members.get(rank.index())?.host;
        let here = |members: &[MemberInfo]| members.iter().filter(|m| m.host == *host).count() as u32;
        Some(Assignment {
            job: self.terms.job.clone(),
            generation: assignment.generation,
            rank,
            world_size: WorldSize::new(assignment.members.len() as u32)?,
            local_rank: here(&assignment.members[..rank.index()]),
            local_world_size: here(&assignment.members),
            peers: assignment.members.iter().map(|m| m.address).collect(),
            task: self.terms.task.clone(),
        })
    }

    /// Waits for a place in a generation above `left`. The error says why there is none.
    fn wait(&self, left: Generation, timeout: Duration) -> Result<Assignment, NoPlace> {
        let deadline = clock::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(assignment) = &state.assignment
                && assignment.generation > left
            {
                let assignment = assignment.clone();
                state.entered = assignment.generation;
                return Ok(assignment);
            }
            if let Some(reason) = &state.over {
                return Err(NoPlace::Over(reason.clone()));
            }
            if let Some((generation, knows @ false)) = &mut state.checkpoint {
                *knows = true;
                return Err(NoPlace::Checkpoint(*generation));
            }
            let wait = deadline.saturating_duration_since(clock::now());
            if wait.is_zero() {
                return Err(NoPlace::Late);
            }
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Membership for Placement {
    fn pending(&self) -> Option<Generation> {
        let state = self.lock();
        let newest = state.machine.newest();
        (newest > state.entered).then_some(newest)
    }

    fn entered(&self, generation: Generation, group: Arc<dyn Collectives>) {
        let mut state = self.lock();
        state.entered = state.entered.max(generation);
        if state.machine.generation() == generation && state.over.is_none() {
            state.group = Some((generation, group));
            return;
        }
        // It was given up while its members met.
        drop(state);
        group.abort("the generation is over");
    }

    fn reached(&self, milestone: Milestone) {
        let generation = self.lock().entered;
        let event = match milestone {
            Milestone::Synchronized {
                next,
                is_complete: is_whole,
            } => WorkerEvent::CaughtUp {
                generation,
                next,
                is_whole,
            },
            Milestone::Healed => WorkerEvent::Healed { generation },
            Milestone::Reduced(step) => WorkerEvent::Reduced { generation, step },
            Milestone::Voted { step, newest } => WorkerEvent::Voted {
                generation,
                step,
                newest,
            },
        };
        self.handle(event, From::Training);
    }

    fn farewell(&self) -> bool {
        let generation = self.lock().entered;
        self.handle(WorkerEvent::Ended { generation }, From::Training);
        let limit = self.terms.settings.orphan_limit;
        loop {
            match self.wait(generation, limit) {
                Ok(_) => return false,
                // The run is over: its model is written, which is more.
                Err(NoPlace::Checkpoint(_)) => {}
                // Alone at the end of the run, there is nothing left to be lost.
                Err(_) => return true,
            }
        }
    }

    fn drain(&self) {
        self.handle(WorkerEvent::Drain, From::Others);
    }

    fn next(&self, left: Generation, cause: &str) -> Result<Assignment, MembershipError> {
        let failed = WorkerEvent::Failed {
            generation: left,
            suspect: None,
            cause: cause.to_owned(),
        };
        self.handle(failed, From::Training);
        let limit = self.terms.settings.orphan_limit;
        self.wait(left, limit).map_err(|why| match why {
            NoPlace::Over(reason) => MembershipError::Ended { reason },
            NoPlace::Checkpoint(generation) => MembershipError::CheckpointRequested { generation },
            NoPlace::Late => MembershipError::Timeout {
                left,
                cause: cause.to_owned(),
                limit_s: limit.as_secs(),
            },
        })
    }
}
