//! [`Coordination`]: the coordinator of a job, with its record in the memory of this process. Pure: time
//! is an argument.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ronde_core::{Event as RunEvent, Rank, Step};
use ronde_elastic::{
    CoordinatorCommand, CoordinatorId, CoordinatorMachine, ElasticError, JobEnding, CoordinatorEvent, LossCause, WorkerSlot,
    SlotStatus, Reason, JobRecord, WorkerReport, Settings, Time, ToWorker, WorkerId,
};

use crate::narration::Narration;
use crate::outcome::End;

/// What the supervisor has to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Say something to the worker at a place.
    Tell(Rank, ToWorker),
    /// Start a worker at a place, with this name, and a certificate where the job has an authority.
    Start(Rank, WorkerId, Option<String>),
    /// End the worker at a place, which does not answer.
    Kill(Rank),
    /// Let people know.
    Say(RunEvent),
    /// The job is over.
    End(JobEnding, Reason),
}

/// The coordinator of a job whose places are numbered like ranks.
pub(crate) struct Coordination {
    machine: CoordinatorMachine,
    record: JobRecord,
    silence: Duration,
    slots: BTreeMap<WorkerId, Rank>,
    current: BTreeMap<Rank, WorkerId>,
    wake: Option<Time>,
    narration: Narration,
    /// A checkpoint that was published and that the machine has not heard of.
    published: Option<Step>,
}

impl Coordination {
    /// A coordinator of `places` places on this host.
    pub(crate) fn new(settings: Settings) -> Result<Self, ElasticError> {
        Ok(Self {
            machine: CoordinatorMachine::new(CoordinatorId(1), settings)?,
            record: JobRecord::default(),
            silence: settings.silence,
            slots: BTreeMap::new(),
            current: BTreeMap::new(),
            wake: None,
            narration: Narration::default(),
            published: None,
        })
    }

    /// Offers the places of this host.
    pub(crate) fn begin(&mut self, now: Duration, host: &str, slots: u32) -> Vec<Action> {
        let slots = (0..slots.into()).map(|slot| SlotStatus {
            slot: WorkerSlot(slot),
            worker: None,
            ended: None,
        });
        let event = CoordinatorEvent::HostUp {
            host: host.to_owned(),
            slots: slots.collect(),
        };
        self.handle(now, event)
    }

    /// A worker says how it is.
    pub(crate) fn reported(&mut self, now: Duration, report: WorkerReport) -> Vec<Action> {
        self.handle(now, CoordinatorEvent::Report(report))
    }

    /// A worker's process has ended.
    pub(crate) fn ended(&mut self, now: Duration, rank: Rank, end: End) -> Vec<Action> {
        let Some(worker) = self.current.remove(&rank) else {
            return Vec::new();
        };
        let cause = match end {
            End::Code(code) => LossCause::ExitCode(code),
            End::Signal(signal) => LossCause::Signal(signal),
        };
        let slot = WorkerSlot(rank.0.into());
        self.handle(
            now,
            CoordinatorEvent::Exited {
                worker,
                slot,
                cause,
            },
        )
    }

    /// A worker's connection is gone although its process has not ended.
    pub(crate) fn unlinked(&mut self, now: Duration, worker: u64) -> Vec<Action> {
        let event = CoordinatorEvent::Disconnected {
            worker: WorkerId(worker),
            cause: "its control connection was closed".to_owned(),
        };
        self.handle(now, event)
    }

    /// The job has to end in good order.
    pub(crate) fn stop(&mut self, now: Duration, by: &str) -> Vec<Action> {
        let by = by.to_owned();
        self.handle(now, CoordinatorEvent::Stop { by })
    }

    /// Looks at the time, and at what was recorded.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Action> {
        let time = Time::default().after(now);
        if let Some(next) = self.published.take() {
            let generation = self.record.generation;
            return self.handle(now, CoordinatorEvent::CheckpointWritten { generation, next });
        }
        match self.wake {
            Some(wake) if wake <= time => self.handle(now, CoordinatorEvent::Tick),
            _ => Vec::new(),
        }
    }

    /// What an event of a worker comes to: itself unless it was told before, and the news that a
    /// loss is made good.
    pub(crate) fn recorded(&mut self, now: Duration, event: RunEvent) -> Vec<RunEvent> {
        if let RunEvent::CheckpointSaved { step, .. } = event {
            self.published = self.published.max(Some(step));
        }
        self.narration.recorded(now, event, self.record.generation)
    }

    /// After how long a worker that is not heard counts as lost.
    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// Which process has a place.
    pub(crate) fn worker_at(&self, rank: Rank) -> Option<WorkerId> {
        self.current.get(&rank).copied()
    }

    fn handle(&mut self, now: Duration, event: CoordinatorEvent) -> Vec<Action> {
        let time = Time::default().after(now);
        let mut actions = Vec::new();
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for command in self.machine.handle(time, event) {
                match command {
                    CoordinatorCommand::Store(request) => {
                        events.push_back(CoordinatorEvent::Store(self.record.execute(request)));
                    }
                    other => self.act(now, other, &mut actions),
                }
            }
        }
        self.wake = self.machine.wake_at(time);
        actions
    }

    fn act(&mut self, now: Duration, command: CoordinatorCommand, actions: &mut Vec<Action>) {
        match command {
            CoordinatorCommand::Store(_) => {}
            CoordinatorCommand::Send { to, message } => {
                if let Some(&rank) = self.slots.get(&to) {
                    actions.push(Action::Tell(rank, message));
                }
            }
            CoordinatorCommand::Start { slot, worker, .. } => {
                let rank = Rank(slot.0 as u32);
                self.slots.retain(|_, at| *at != rank);
                self.slots.insert(worker, rank);
                self.current.insert(rank, worker);
                actions.push(Action::Start(rank, worker, None));
            }
            CoordinatorCommand::Kill { slot, .. } => actions.push(Action::Kill(Rank(slot.0 as u32))),
            CoordinatorCommand::Log(Reason::Leads { .. }) => {}
            CoordinatorCommand::Log(reason) => {
                let told = self.narration.say(now, &reason, self.record.generation);
                actions.extend(told.map(Action::Say));
            }
            CoordinatorCommand::End { ending, reason } => actions.push(Action::End(ending, reason)),
        }
    }
}
