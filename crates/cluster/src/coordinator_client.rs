//! [`CoordinatorClient`]: the coordinator that decides about a supervisor's workers: one in this
//! process, or one in another process that this host's agent is connected to.

use std::time::Duration;

use ronde_core::{Event, Rank};
use ronde_protocol::{Settings, WorkerId, WorkerReport};

use crate::local_coordinator::{LocalCoordinator, SupervisorAction};
use crate::outcome::ProcessExit;
use crate::remote_coordinator::RemoteCoordinator;

/// The coordinator.
pub(crate) enum CoordinatorClient {
    /// A coordinator in this process, with its record in memory.
    Local(Box<LocalCoordinator>),
    /// A coordinator in another process, for this host and others.
    Remote(Box<RemoteCoordinator>),
}

impl CoordinatorClient {
    /// Offers the slots of this host.
    pub(crate) fn begin(&mut self, now: Duration, host: &str, slots: u32) -> Vec<SupervisorAction> {
        match self {
            Self::Local(local) => local.begin(now, host, slots),
            Self::Remote(remote) => {
                remote.offer();
                Vec::new()
            }
        }
    }

    /// Processes a worker's report.
    pub(crate) fn reported(
        &mut self,
        now: Duration,
        report: WorkerReport,
    ) -> Vec<SupervisorAction> {
        match self {
            Self::Local(local) => local.reported(now, report),
            Self::Remote(remote) => {
                remote.reported(report);
                Vec::new()
            }
        }
    }

    /// Notes that a worker's process lacks CPU time.
    pub(crate) fn busy(&mut self, now: Duration, worker: WorkerId) -> Vec<SupervisorAction> {
        match self {
            Self::Local(local) => local.busy(now, worker),
            Self::Remote(remote) => {
                remote.busy(worker);
                Vec::new()
            }
        }
    }

    /// Processes the end of a worker's process.
    pub(crate) fn ended(
        &mut self,
        now: Duration,
        rank: Rank,
        end: ProcessExit,
    ) -> Vec<SupervisorAction> {
        match self {
            Self::Local(local) => local.ended(now, rank, end),
            Self::Remote(remote) => {
                remote.ended(rank, end);
                Vec::new()
            }
        }
    }

    /// Processes the loss of a worker's connection while its process still runs.
    pub(crate) fn unlinked(&mut self, now: Duration, worker: u64) -> Vec<SupervisorAction> {
        match self {
            Self::Local(local) => local.unlinked(now, worker),
            Self::Remote(remote) => {
                remote.unlinked(worker);
                Vec::new()
            }
        }
    }

    /// Requests the end of the job in good order.
    pub(crate) fn stop(&mut self, now: Duration, by: &str) -> Vec<SupervisorAction> {
        match self {
            Self::Local(local) => local.stop(now, by),
            Self::Remote(remote) => {
                remote.stop_well(by);
                Vec::new()
            }
        }
    }

    /// Returns whether ending this process ends the whole job: false on a host that only joined it.
    pub(crate) fn ends_the_job(&self) -> bool {
        match self {
            Self::Local(_) => true,
            Self::Remote(remote) => remote.me.follows.is_some(),
        }
    }

    /// Processes elapsed time and received messages.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<SupervisorAction> {
        match self {
            Self::Local(local) => local.tick(now),
            Self::Remote(remote) => remote.tick(),
        }
    }

    /// Returns the events to record on this host for an event of a worker.
    pub(crate) fn recorded(&mut self, now: Duration, event: Event) -> Vec<Event> {
        match self {
            Self::Local(local) => local.recorded(now, event),
            Self::Remote(remote) => {
                remote.recorded(event);
                Vec::new()
            }
        }
    }

    /// Returns the settings of the membership.
    pub(crate) fn settings(&self) -> Settings {
        match self {
            Self::Local(local) => local.settings(),
            Self::Remote(remote) => remote.welcome.settings,
        }
    }

    /// Returns the worker in a slot.
    pub(crate) fn worker_at(&self, rank: Rank) -> Option<WorkerId> {
        match self {
            Self::Local(local) => local.worker_at(rank),
            Self::Remote(remote) => remote.worker_at(rank),
        }
    }
}
