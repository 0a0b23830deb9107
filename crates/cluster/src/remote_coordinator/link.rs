//! [`CoordinatorLink`]: an agent's connection to a coordinator, and its state.

use std::sync::Arc;
use std::time::Duration;

use ronde_protocol::{Term, WorkerSlot};

use crate::messages::{FromAgent, PROTOCOL};
use crate::secure::Outbox;

/// The identity that an agent presents to each coordinator.
pub(crate) struct AgentIdentity {
    pub(crate) host: String,
    /// A number that differs for every agent process.
    pub(crate) agent: u64,
    /// The number of slots.
    pub(crate) slots: u32,
    /// The number of the job's events that it knows, if it follows all of them.
    pub(crate) follows: Option<u64>,
}

impl AgentIdentity {
    pub(super) fn hello(&self, first: Option<WorkerSlot>) -> FromAgent {
        FromAgent::Hello {
            protocol: PROTOCOL,
            host: self.host.clone(),
            agent: self.agent,
            count: self.slots,
            first,
            follows: self.follows,
        }
    }
}

/// The connection to a coordinator.
pub(super) enum CoordinatorLink {
    /// There is none; the dialer tries all addresses.
    Disconnected,
    /// The coordinator has not accepted this agent yet.
    Greeting(Arc<Outbox>),
    /// It has, and has not reported yet whether it leads.
    Accepted(Arc<Outbox>),
    /// It has not led since then.
    StandsBy {
        outbox: Arc<Outbox>,
        since: Duration,
    },
    /// It leads in this term.
    Leads { outbox: Arc<Outbox>, term: Term },
}

impl CoordinatorLink {
    pub(super) fn outbox(&self) -> Option<&Arc<Outbox>> {
        match self {
            Self::Disconnected => None,
            Self::Greeting(outbox)
            | Self::Accepted(outbox)
            | Self::StandsBy { outbox, .. }
            | Self::Leads { outbox, .. } => Some(outbox),
        }
    }

    /// Returns the connection if the coordinator has accepted this agent.
    pub(super) fn accepted(&self) -> Option<&Arc<Outbox>> {
        match self {
            Self::Greeting(_) => None,
            other => other.outbox(),
        }
    }

    /// Processes a coordinator's report of the term in which it leads. Returns true if it has begun to lead.
    pub(super) fn heard_term(&mut self, leads: Option<Term>, now: Duration) -> bool {
        let Some(outbox) = self.accepted().cloned() else {
            return false;
        };
        match (leads, &self) {
            (Some(term), Self::Leads { term: before, .. }) if *before == term => false,
            (Some(term), _) => {
                *self = Self::Leads { outbox, term };
                true
            }
            (None, Self::StandsBy { .. }) => false,
            (None, _) => {
                *self = Self::StandsBy { outbox, since: now };
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_begin_of_a_term_is_noticed_once_and_only_after_the_acceptance() {
        let outbox = Arc::new(Outbox::new().unwrap());
        let at = Duration::from_secs;
        let term = |term| Some(Term(term));
        let mut link = CoordinatorLink::Disconnected;
        assert!(!link.heard_term(term(1), at(0)));
        link = CoordinatorLink::Greeting(Arc::clone(&outbox));
        assert!(!link.heard_term(term(1), at(0)) && link.accepted().is_none());
        link = CoordinatorLink::Accepted(outbox);
        assert!(link.heard_term(term(1), at(1)));
        assert!(!link.heard_term(term(1), at(2)));
        for seconds in [3, 4] {
            assert!(!link.heard_term(None, at(seconds)));
            let stands_by =
                matches!(&link, CoordinatorLink::StandsBy { since, .. } if *since == at(3));
            assert!(stands_by);
        }
        assert!(link.heard_term(term(1), at(5)));
        assert!(link.heard_term(term(2), at(6)));
        assert!(link.outbox().is_some());
    }
}
