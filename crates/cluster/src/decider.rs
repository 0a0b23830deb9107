//! [`Decider`]: whoever decides about the workers that a supervisor has started: a coordinator in this
//! process, or one that this host's agent talks to.

use std::time::Duration;

use ronde_core::{Event, Rank};
use ronde_elastic::{WorkerReport, WorkerId};

use crate::coordination::{Action, Coordination};
use crate::outcome::End;
use crate::remote::Remote;

/// Whoever decides.
pub(crate) enum Decider {
    /// A coordinator in this process, with its record in memory.
    Here(Box<Coordination>),
    /// Another process, for this host and others.
    There(Box<Remote>),
}

impl Decider {
    /// Offers the places of this host.
    pub(crate) fn begin(&mut self, now: Duration, host: &str, slots: u32) -> Vec<Action> {
        match self {
            Self::Here(here) => here.begin(now, host, slots),
            Self::There(remote) => {
                remote.offer();
                Vec::new()
            }
        }
    }

    /// A worker says how it is.
    pub(crate) fn reported(&mut self, now: Duration, report: WorkerReport) -> Vec<Action> {
        match self {
            Self::Here(here) => here.reported(now, report),
            Self::There(remote) => {
                remote.reported(report);
                Vec::new()
            }
        }
    }

    /// A worker's process has ended.
    pub(crate) fn ended(&mut self, now: Duration, rank: Rank, end: End) -> Vec<Action> {
        match self {
            Self::Here(here) => here.ended(now, rank, end),
            Self::There(remote) => {
                remote.ended(rank, end);
                Vec::new()
            }
        }
    }

    /// A worker's connection is gone although its process has not ended.
    pub(crate) fn unlinked(&mut self, now: Duration, worker: u64) -> Vec<Action> {
        match self {
            Self::Here(here) => here.unlinked(now, worker),
            Self::There(remote) => {
                remote.unlinked(worker);
                Vec::new()
            }
        }
    }

    /// The job has to end in good order.
    pub(crate) fn stop(&mut self, now: Duration, by: &str) -> Vec<Action> {
        match self {
            Self::Here(here) => here.stop(now, by),
            Self::There(remote) => {
                remote.stop_well(by);
                Vec::new()
            }
        }
    }

    /// Whether whoever ends this process means the whole job: not on a host that only joined it.
    pub(crate) fn ends_the_job(&self) -> bool {
        match self {
            Self::Here(_) => true,
            Self::There(remote) => remote.follows.is_some(),
        }
    }

    /// Looks at the time, and at what has come.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Action> {
        match self {
            Self::Here(here) => here.tick(now),
            Self::There(remote) => remote.tick(),
        }
    }

    /// What an event of a worker comes to on this host.
    pub(crate) fn recorded(&mut self, now: Duration, event: Event) -> Vec<Event> {
        match self {
            Self::Here(here) => here.recorded(now, event),
            Self::There(remote) => {
                remote.recorded(event);
                Vec::new()
            }
        }
    }

    /// After how long a worker that is not heard counts as lost.
    pub(crate) fn silence(&self) -> Duration {
        match self {
            Self::Here(here) => here.silence(),
            Self::There(remote) => remote.welcome.settings.silence,
        }
    }

    /// Which process has a place.
    pub(crate) fn worker_at(&self, rank: Rank) -> Option<WorkerId> {
        match self {
            Self::Here(here) => here.worker_at(rank),
            Self::There(remote) => remote.worker_at(rank),
        }
    }
}
