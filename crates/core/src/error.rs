//! [`Recovery`], which every error of ronde answers, and the error of the collectives' seam.

use crate::{Generation, GroupRank};

/// What a caller should do about an error, so that nobody matches on text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// The same call may succeed: nothing is broken.
    Retry,
    /// The group is lost; get a new assignment, heal, and go on.
    Rejoin,
    /// Nothing will help: stop and tell the user.
    Abort,
}

/// Why a collective or a message did not complete.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A peer's connection closed in the middle or before an operation.
    #[error("{operation} {sequence} (generation {generation}): lost group rank {peer}: {cause}")]
    PeerLost {
        /// Kind of operation, for messages.
        operation: String,
        /// Number of the operation in its group.
        sequence: u64,
        /// Membership that the operation belonged to.
        generation: Generation,
        /// The peer that went away.
        peer: GroupRank,
        /// What the transport saw.
        cause: String,
    },
    /// A deadline passed.
    #[error(
        "{operation} {sequence} (generation {generation}): waited {waited_s:.1} s for group rank {peer}; \
         {received} of {expected} bytes received; limit {limit_s:.1} s"
    )]
    Timeout {
        /// Kind of operation, for messages.
        operation: String,
        /// Number of the operation in its group.
        sequence: u64,
        /// Membership that the operation belonged to.
        generation: Generation,
        /// The peer waited for.
        peer: GroupRank,
        /// Bytes got so far from that peer in this operation.
        received: usize,
        /// Bytes expected from that peer in this operation.
        expected: usize,
        /// Seconds waited.
        waited_s: f64,
        /// The limit in seconds.
        limit_s: f64,
    },
    /// Two ranks called different operations, or the same one with other arguments.
    #[error("operation {sequence}: this rank called {mine}, group rank {peer} called {theirs}")]
    Mismatch {
        /// Number of the operation in its group.
        sequence: u64,
        /// The peer that differs.
        peer: GroupRank,
        /// This rank's call.
        mine: String,
        /// The peer's call.
        theirs: String,
    },
    /// A peer has another plan, named by what differs.
    #[error("group rank {peer} has another plan: {difference}")]
    OtherPlan {
        /// The peer that differs.
        peer: GroupRank,
        /// Which parts differ, with both values.
        difference: String,
    },
    /// Somebody aborted the group.
    #[error("group aborted by {by}: {reason}")]
    Aborted {
        /// Who: `"this rank"` or `"group rank 3"`.
        by: String,
        /// Why.
        reason: String,
    },
    /// The caller asked for what cannot be.
    #[error("{operation}: {problem}")]
    Invalid {
        /// Kind of operation, for messages.
        operation: String,
        /// What is wrong with the call.
        problem: String,
    },
    /// A frame that no honest peer of this version sends.
    #[error("group rank {peer} sent a broken frame: {problem}")]
    Protocol {
        /// The sender.
        peer: GroupRank,
        /// What is wrong with it.
        problem: String,
    },
    /// A connection could not be made or a socket not be set up.
    #[error("{what}: {cause}")]
    Connect {
        /// What was tried, with the address.
        what: String,
        /// The system's answer.
        cause: String,
    },
}

impl CollectiveError {
    /// What to do about it.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::PeerLost { .. }
            | Self::Timeout { .. }
            | Self::Aborted { .. }
            | Self::Connect { .. } => Recovery::Rejoin,
            Self::Mismatch { .. }
            | Self::OtherPlan { .. }
            | Self::Invalid { .. }
            | Self::Protocol { .. } => Recovery::Abort,
        }
    }
}
