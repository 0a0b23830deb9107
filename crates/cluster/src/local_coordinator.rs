//! [`LocalCoordinator`]: the coordinator of a job with its record in the memory of this process.
//! Pure: time is an argument.
//!
//! This is the default of a job: one process less than with a separate coordinator, no disk, and the fastest start on one machine.
//! The job then ends with its launcher.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ronde_core::{Event as RunEvent, Rank, Step};
use ronde_protocol::{
    CoordinatorCommand, CoordinatorEvent, CoordinatorId, CoordinatorMachine, ElasticError,
    JobEnding, JobRecord, LossCause, Reason, Settings, SlotStatus, Time, ToWorker, WorkerId,
    WorkerReport, WorkerSlot,
};

use crate::job_history::JobHistory;
use crate::outcome::ProcessExit;

/// An action for the supervisor.
#[derive(Debug)]
pub(crate) enum SupervisorAction {
    /// Send a message to the worker of a rank.
    Send(Rank, ToWorker),
    /// Start a worker in a rank with this id, and with a certificate if the job has an authority.
    Start(Rank, WorkerId, Option<String>),
    /// Kill the unresponsive worker of a rank.
    Kill(Rank),
    /// Record an event.
    Record(RunEvent),
    /// The job is over.
    End(JobEnding, Reason),
}

/// The coordinator of a job whose slots are numbered like ranks.
pub(crate) struct LocalCoordinator {
    machine: CoordinatorMachine,
    record: JobRecord,
    settings: Settings,
    slots: BTreeMap<WorkerId, Rank>,
    current: BTreeMap<Rank, WorkerId>,
    wake: Option<Time>,
    narration: JobHistory,
    /// The next step of a published checkpoint that the machine was not notified of yet.
    published: Option<Step>,
}

impl LocalCoordinator {
    /// Returns the coordinator of a job on this host.
    pub(crate) fn new(settings: Settings) -> Result<Self, ElasticError> {
        // No other coordinator can lead: a lease that expires while this process lacks CPU time would
        // only discard its knowledge about the workers.
        let settings = Settings {
            lease: settings
                .orphan_limit
                .saturating_sub(settings.silence)
                .max(settings.lease),
            hosts_may_join: false,
            ..settings
        };
        Ok(Self {
            machine: CoordinatorMachine::new(CoordinatorId(1), settings)?,
            record: JobRecord::default(),
            settings,
            slots: BTreeMap::new(),
            current: BTreeMap::new(),
            wake: None,
            narration: JobHistory::default(),
            published: None,
        })
    }

    /// Offers the slots of this host.
    pub(crate) fn begin(&mut self, now: Duration, host: &str, slots: u32) -> Vec<SupervisorAction> {
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

    /// Processes a worker's report.
    pub(crate) fn reported(
        &mut self,
        now: Duration,
        report: WorkerReport,
    ) -> Vec<SupervisorAction> {
        self.handle(now, CoordinatorEvent::Report(report))
    }

    /// Notes that a worker's process lacks CPU time.
    pub(crate) fn busy(&mut self, now: Duration, worker: WorkerId) -> Vec<SupervisorAction> {
        self.handle(now, CoordinatorEvent::Busy { worker })
    }

    /// Processes the end of a worker's process.
    pub(crate) fn ended(
        &mut self,
        now: Duration,
        rank: Rank,
        end: ProcessExit,
    ) -> Vec<SupervisorAction> {
        let Some(worker) = self.current.remove(&rank) else {
            return Vec::new();
        };
        let cause = match end {
            ProcessExit::Code(code) => LossCause::ExitCode(code),
            ProcessExit::Signal(signal) => LossCause::Signal(signal),
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

    /// Processes the loss of a worker's connection while its process still runs.
    pub(crate) fn unlinked(&mut self, now: Duration, worker: u64) -> Vec<SupervisorAction> {
        let event = CoordinatorEvent::Disconnected {
            worker: WorkerId(worker),
            cause: "its control connection was closed".to_owned(),
        };
        self.handle(now, event)
    }

    /// Requests the end of the job in good order.
    pub(crate) fn stop(&mut self, now: Duration, by: &str) -> Vec<SupervisorAction> {
        let by = by.to_owned();
        self.handle(now, CoordinatorEvent::Stop { by })
    }

    /// Processes elapsed time and published checkpoints.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<SupervisorAction> {
        let time = Time::default().after(now);
        if let Some(generation) = self.record.generation
            && let Some(next) = self.published.take()
        {
            return self.handle(
                now,
                CoordinatorEvent::CheckpointWritten { generation, next },
            );
        }
        match self.wake {
            Some(wake) if wake <= time => self.handle(now, CoordinatorEvent::Tick),
            _ => Vec::new(),
        }
    }

    /// Returns the events to record for an event of a worker: the event itself unless it is a
    /// repetition, and possibly the recovery from a loss.
    pub(crate) fn recorded(&mut self, now: Duration, event: RunEvent) -> Vec<RunEvent> {
        if let RunEvent::CheckpointSaved { step, .. } = event {
            self.published = self.published.max(Some(step));
        }
        self.narration.recorded(now, event, self.record.generation)
    }

    /// Returns the settings of the membership.
    pub(crate) fn settings(&self) -> Settings {
        self.settings
    }

    /// Returns the worker that runs as `rank`.
    pub(crate) fn worker_at(&self, rank: Rank) -> Option<WorkerId> {
        self.current.get(&rank).copied()
    }

    fn handle(&mut self, now: Duration, event: CoordinatorEvent) -> Vec<SupervisorAction> {
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

    fn act(
        &mut self,
        now: Duration,
        command: CoordinatorCommand,
        actions: &mut Vec<SupervisorAction>,
    ) {
        match command {
            CoordinatorCommand::Store(_) => {}
            CoordinatorCommand::Send { to, message } => {
                if let Some(&rank) = self.slots.get(&to) {
                    actions.push(SupervisorAction::Send(rank, message));
                }
            }
            CoordinatorCommand::Start { slot, worker, .. } => {
                let rank = Rank(slot.0 as u32);
                self.slots.retain(|_, at| *at != rank);
                self.slots.insert(worker, rank);
                self.current.insert(rank, worker);
                actions.push(SupervisorAction::Start(rank, worker, None));
            }
            CoordinatorCommand::Kill { slot, .. } => {
                actions.push(SupervisorAction::Kill(Rank(slot.0 as u32)))
            }
            CoordinatorCommand::Log(Reason::Leads { .. }) => {}
            CoordinatorCommand::Log(reason) => {
                let events = self.narration.say(now, &reason, self.record.generation);
                actions.extend(events.into_iter().map(SupervisorAction::Record));
            }
            CoordinatorCommand::End { ending, reason } => {
                actions.push(SupervisorAction::End(ending, reason))
            }
        }
    }
}
