//! [`MembershipClient`]: a worker's side of the membership protocol. Feeds the worker's state machine with
//! messages from the supervisor, elapsed time, and calls of the training loop.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ronde_core::{Collectives, Event, Generation, GroupRank, Rank, Tracker, WorldSize};
use ronde_protocol::{
    Assignment, Departure, JobMember, MembershipError, MembershipPolicy, Milestone,
};
use ronde_protocol::{
    MemberInfo, Time, ToWorker, WorkerCommand, WorkerEvent, WorkerId, WorkerMachine, WorkerSlot,
};

use crate::error::ClusterError;
use crate::queue::EventQueue;
use crate::wire::JobTerms;

/// Number of generations whose members are remembered.
const GENERATIONS_MAX: usize = 8;
/// Time before a requested drain takes effect. If the signal that requests it has also reached the launcher, the launcher
/// stops the whole job meanwhile, and this worker takes part in that.
const DRAIN_DELAY: Duration = Duration::from_millis(500);

/// A worker's membership in the job, as far as this process knows.
pub(crate) struct MembershipClient {
    terms: JobTerms,
    begun: Instant,
    queue: Arc<EventQueue>,
    state: Mutex<ClientState>,
    changed: Condvar,
}

struct ClientState {
    machine: WorkerMachine,
    /// The newest assignment.
    assignment: Option<Assignment>,
    /// The ids of the members of the newest generations, by rank.
    members: BTreeMap<Generation, Vec<u64>>,
    /// The newest generation that the training loop has entered.
    entered: Option<Generation>,
    group: Option<(Generation, Arc<dyn Collectives>)>,
    /// Why there will be no other assignment.
    over: Option<String>,
    /// The newest request to write a checkpoint.
    checkpoint: Option<CheckpointRequest>,
    /// When a requested drain takes effect.
    drain_at: Option<Time>,
}

/// A coordinator's request to write a checkpoint, in this generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckpointRequest {
    /// The training loop does not know it yet.
    Received(Generation),
    /// The training loop has taken it.
    Taken(Generation),
}

impl CheckpointRequest {
    fn generation(self) -> Generation {
        match self {
            Self::Received(generation) | Self::Taken(generation) => generation,
        }
    }
}

/// Why a waiting worker has no assignment.
enum NoAssignment {
    /// Time is up.
    Late,
    /// The job is over for this worker.
    Over(String),
    /// The worker has to write a checkpoint first.
    Checkpoint(Generation),
}

/// The origin of an event.
#[derive(Clone, Copy, PartialEq)]
enum EventOrigin {
    /// The training thread, which leaves its group by itself.
    Training,
    /// Any other source: the group has to be aborted.
    Other,
}

impl MembershipClient {
    /// Creates the client of a worker whose peers reach it at `address`.
    pub(crate) fn new(
        terms: JobTerms,
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
            begun: ronde_clock::now(),
            queue,
            state: Mutex::new(ClientState {
                machine,
                assignment: None,
                members: BTreeMap::new(),
                entered: None,
                group: None,
                over: None,
                checkpoint: None,
                drain_at: None,
            }),
            changed: Condvar::new(),
        }))
    }

    /// Sends the first report.
    pub(crate) fn begin(&self) {
        self.handle(WorkerEvent::Connected, EventOrigin::Other);
    }

    /// Processes a message from the supervisor.
    pub(crate) fn receive(&self, message: ToWorker) {
        self.handle(WorkerEvent::Coordinator(message), EventOrigin::Other);
    }

    /// Handles the loss of the supervisor or its request to end.
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

    /// Forgets the group without aborting it, because this worker needs it no more and may leave in good order while other
    /// members still use it. A member that does need this worker learns from its group that it has left.
    fn release_group(&self) {
        let group = self.lock().group.take();
        // Outside of the lock: the last owner of a group waits until its messages are sent.
        drop(group);
    }

    /// Ends the membership of a worker that leaves by itself.
    pub(crate) fn leave(&self) {
        self.release_group();
        self.lose("this worker has ended");
    }

    /// Sends reports when they are due, until the job is over. Runs on its own thread.
    pub(crate) fn tick(&self) {
        loop {
            let mut state = self.lock();
            let Some(wake) = state.machine.wake_at().filter(|_| state.over.is_none()) else {
                return;
            };
            if state.drain_at.take_if(|at| *at <= self.now()).is_some() {
                drop(state);
                self.handle(WorkerEvent::Drain, EventOrigin::Other);
                continue;
            }
            let wake = state.drain_at.map_or(wake, |at| at.min(wake));
            let wait = wake.since(self.now());
            if !wait.is_zero() {
                let waited = self.changed.wait_timeout(state, wait);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let is_due = self.now() >= wake;
            drop(state);
            if is_due {
                self.handle(WorkerEvent::Tick, EventOrigin::Other);
            }
        }
    }

    /// Returns the ids of a generation's members by rank, while it is among the newest.
    pub(crate) fn members(&self, generation: Generation) -> Vec<u64> {
        let state = self.lock();
        state.members.get(&generation).cloned().unwrap_or_default()
    }

    fn now(&self) -> Time {
        Time::default().after(ronde_clock::now() - self.begun)
    }

    fn lock(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, event: WorkerEvent, from: EventOrigin) {
        let mut aborts = None;
        let must_wake = {
            let mut state = self.lock();
            let wake = state.machine.wake_at();
            let mut must_wake = false;
            for command in state.machine.handle(self.now(), event) {
                must_wake |= matches!(
                    command,
                    WorkerCommand::Connect { .. }
                        | WorkerCommand::Checkpoint { .. }
                        | WorkerCommand::End(_)
                );
                self.execute(&mut state, command, from, &mut aborts);
            }
            must_wake || state.machine.wake_at() < wake
        };
        // Wakes waiting threads only if needed: this runs twice per step, and workers may use all
        // cores.
        if must_wake {
            self.changed.notify_all();
        }
        if let Some((group, reason)) = aborts {
            group.abort(&reason);
        }
    }

    fn execute(
        &self,
        state: &mut ClientState,
        command: WorkerCommand,
        from: EventOrigin,
        aborts: &mut Option<(Arc<dyn Collectives>, String)>,
    ) {
        match command {
            WorkerCommand::Report(report) => self.queue.report(report),
            WorkerCommand::Leave {
                generation, reason, ..
            } => {
                let group = state.group.take_if(|(of, _)| *of <= generation);
                if from == EventOrigin::Other {
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
                if state
                    .checkpoint
                    .is_none_or(|last| last.generation() < generation) =>
            {
                state.checkpoint = Some(CheckpointRequest::Received(generation));
            }
            // The training loop performs these by itself, in this order.
            _ => {}
        }
    }

    /// Converts an assignment to the form that the training loop needs.
    fn core_assignment(
        &self,
        assignment: &ronde_protocol::GenerationAssignment,
        rank: Rank,
    ) -> Option<Assignment> {
        let host = &assignment.members.get(rank.index())?.host;
        let here =
            |members: &[MemberInfo]| members.iter().filter(|m| m.host == *host).count() as u32;
        Some(Assignment {
            job: self.terms.job.clone(),
            generation: assignment.generation,
            policy: self.terms.settings.policy,
            rank,
            world_size: WorldSize::new(assignment.members.len() as u32)?,
            local_rank: here(&assignment.members[..rank.index()]),
            local_world_size: here(&assignment.members),
            peers: assignment.members.iter().map(|m| m.address).collect(),
            purpose: assignment.purpose,
            awaited: assignment.awaited,
            task: self.terms.task.clone(),
        })
    }

    /// Returns the worker of a rank in a generation.
    fn worker(&self, generation: Generation, rank: GroupRank) -> Option<WorkerId> {
        let state = self.lock();
        let members = state.members.get(&generation)?;
        members.get(rank.index()).copied().map(WorkerId)
    }

    /// Waits for an assignment to a later generation than `left`.
    fn wait(
        &self,
        left: Option<Generation>,
        timeout: Duration,
    ) -> Result<Assignment, NoAssignment> {
        let deadline = ronde_clock::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(assignment) = &state.assignment
                && Some(assignment.generation) > left
            {
                let assignment = assignment.clone();
                state.entered = Some(assignment.generation);
                return Ok(assignment);
            }
            if let Some(reason) = &state.over {
                return Err(NoAssignment::Over(reason.clone()));
            }
            if let Some(CheckpointRequest::Received(generation)) = state.checkpoint {
                state.checkpoint = Some(CheckpointRequest::Taken(generation));
                return Err(NoAssignment::Checkpoint(generation));
            }
            let wait = deadline.saturating_duration_since(ronde_clock::now());
            if wait.is_zero() {
                return Err(NoAssignment::Late);
            }
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl JobMember for MembershipClient {
    fn next(&self, departure: Option<Departure>) -> Result<Assignment, MembershipError> {
        let settings = &self.terms.settings;
        let Some(Departure {
            left,
            cause,
            unreachable,
        }) = departure
        else {
            let limit = settings.first_generation_max();
            return self.wait(None, limit).map_err(|why| match why {
                NoAssignment::Over(reason) => MembershipError::Ended { reason },
                NoAssignment::Checkpoint(generation) => {
                    MembershipError::CheckpointRequested { generation }
                }
                NoAssignment::Late => MembershipError::NotFormed {
                    limit_s: limit.as_secs(),
                },
            });
        };
        let failed = WorkerEvent::Failed {
            generation: left,
            suspect: unreachable.and_then(|peer| self.worker(left, peer)),
            is_unreachable: unreachable.is_some(),
            cause: cause.clone(),
        };
        self.handle(failed, EventOrigin::Training);
        if settings.policy == MembershipPolicy::Fixed {
            return Err(MembershipError::FixedMembers { cause });
        }
        let limit = settings.orphan_limit;
        self.wait(Some(left), limit).map_err(|why| match why {
            NoAssignment::Over(reason) => MembershipError::Ended { reason },
            NoAssignment::Checkpoint(generation) => {
                MembershipError::CheckpointRequested { generation }
            }
            NoAssignment::Late => MembershipError::Timeout {
                left,
                cause,
                limit_s: limit.as_secs(),
            },
        })
    }

    fn pending(&self) -> Option<Generation> {
        let state = self.lock();
        state
            .machine
            .newest()
            .filter(|newest| Some(*newest) > state.entered)
    }

    fn is_stopping(&self) -> bool {
        self.lock().machine.is_stopping()
    }

    fn drops_members(&self) -> bool {
        self.lock().machine.drops_members()
    }

    fn entered(&self, generation: Generation, group: Arc<dyn Collectives>) {
        let mut state = self.lock();
        state.entered = state.entered.max(Some(generation));
        if state.machine.generation() == Some(generation) && state.over.is_none() {
            state.group = Some((generation, group));
            return;
        }
        // The generation ended while its members were connecting.
        drop(state);
        group.abort("the generation has ended");
    }

    fn reached(&self, milestone: Milestone) {
        let Some(generation) = self.lock().entered else {
            return;
        };
        let event = match milestone {
            Milestone::Synchronized {
                next,
                is_complete: is_whole,
            } => WorkerEvent::CaughtUp {
                generation,
                next,
                is_whole,
            },
            Milestone::NotSaved(generation) => WorkerEvent::NotSaved { generation },
            Milestone::LacksState => WorkerEvent::LacksState { generation },
            Milestone::Healed => WorkerEvent::Healed { generation },
            Milestone::Reduced(step) => WorkerEvent::Reduced { generation, step },
            Milestone::Voted { step, newest } => WorkerEvent::Voted {
                generation,
                step,
                newest,
            },
        };
        self.handle(event, EventOrigin::Training);
    }

    fn farewell(&self) -> bool {
        let Some(generation) = self.lock().entered else {
            return true;
        };
        self.handle(WorkerEvent::Ended { generation }, EventOrigin::Training);
        self.release_group();
        if self.terms.settings.policy == MembershipPolicy::Fixed {
            // No other member can need this worker again.
            return true;
        }
        let limit = self.terms.settings.orphan_limit;
        loop {
            match self.wait(Some(generation), limit) {
                Ok(_) => return false,
                // The run is over and its model is written, so no checkpoint is needed.
                Err(NoAssignment::Checkpoint(_)) => {}
                // At the end of the run, a lost coordinator has no consequences.
                Err(_) => return true,
            }
        }
    }

    fn drain(&self) {
        if self.terms.settings.policy == MembershipPolicy::Elastic {
            let at = self.now().after(DRAIN_DELAY);
            self.lock().drain_at.get_or_insert(at);
            self.changed.notify_all();
        }
    }
}
