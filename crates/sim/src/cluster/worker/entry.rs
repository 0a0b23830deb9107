//! [`SimulatedEntry`]: the way of a worker into a group.

use ronde_protocol::Rejoin;
use ronde_protocol::transaction::StateReport;

/// A worker on its way into a group, or between two steps while slices move.
#[derive(Debug)]
pub(super) struct SimulatedEntry {
    pub(super) rejoin: Rejoin,
    /// The reports of all members.
    pub(super) reports: Vec<StateReport>,
    /// Injected: slices count as received before they are.
    pub(super) counts_early: bool,
}

impl SimulatedEntry {
    pub(super) fn new(rejoin: Rejoin) -> Self {
        Self {
            rejoin,
            reports: Vec::new(),
            counts_early: false,
        }
    }
}
