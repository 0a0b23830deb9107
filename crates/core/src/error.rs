//! [`Recovery`], which every error of ronde returns, and [`CollectiveError`].

use crate::rank::{Generation, GroupRank};

/// The action that a caller should take on an error. Callers use it instead of matching on the error's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// Repeat the call: it may succeed.
    Retry,
    /// Leave the group, which is lost; get a new assignment, heal, and continue.
    Rejoin,
    /// Stop and report the error to the user.
    Abort,
}

/// The reason why a collective or a message did not complete.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A peer's connection closed before or during an operation.
    #[error("{operation} {sequence} (generation {generation}): lost group rank {peer}: {cause}")]
    PeerLost {
        /// The name of the operation.
        operation: String,
        /// The number of the operation in its group.
        sequence: u64,
        /// The membership that the operation belonged to.
        generation: Generation,
        /// The lost peer.
        peer: GroupRank,
        /// The transport's error.
        cause: String,
    },
    /// A deadline passed.
    #[error(
        "{operation} {sequence} (generation {generation}): waited {waited_s:.1} s for group rank {peer}; \
         {received} of {expected} bytes received; limit {limit_s:.1} s"
    )]
    Timeout {
        /// The name of the operation.
        operation: String,
        /// The number of the operation in its group.
        sequence: u64,
        /// The membership that the operation belonged to.
        generation: Generation,
        /// The peer that did not respond in time.
        peer: GroupRank,
        /// Bytes received from that peer in this operation.
        received: usize,
        /// Bytes expected from that peer in this operation.
        expected: usize,
        /// Seconds waited.
        waited_s: f64,
        /// The limit in seconds.
        limit_s: f64,
    },
    /// Two ranks called different operations, or the same operation with different arguments.
    #[error("operation {sequence}: this rank called {mine}, group rank {peer} called {theirs}")]
    Mismatch {
        /// The number of the operation in its group.
        sequence: u64,
        /// The other rank.
        peer: GroupRank,
        /// This rank's call.
        mine: String,
        /// The peer's call.
        theirs: String,
    },
    /// A peer has another plan.
    #[error("group rank {peer} has another plan: {difference}")]
    OtherPlan {
        /// The other rank.
        peer: GroupRank,
        /// The parts that differ, with both values.
        difference: String,
    },
    /// A rank aborted the group.
    #[error("group aborted by {by}: {reason}")]
    Aborted {
        /// The rank: `"this rank"` or `"group rank 3"`.
        by: String,
        /// The reason.
        reason: String,
    },
    /// The arguments of a call are invalid.
    #[error("{operation}: {problem}")]
    Invalid {
        /// The name of the operation.
        operation: String,
        /// The problem of the call.
        problem: String,
    },
    /// A frame that a correct peer of this version never sends.
    #[error("group rank {peer} sent an invalid frame: {problem}")]
    Protocol {
        /// The sender.
        peer: GroupRank,
        /// The problem of the frame.
        problem: String,
    },
    /// A member has no memory for an operation. All members report the same rank.
    #[error("{operation}: group rank {rank} cannot allocate {bytes} bytes")]
    OutOfMemory {
        /// The name of the operation.
        operation: String,
        /// The member without memory.
        rank: GroupRank,
        /// The requested size in bytes.
        bytes: usize,
    },
    /// A member could not be connected to before the deadline.
    #[error("{what}: {cause}")]
    Unreachable {
        /// The member.
        peer: GroupRank,
        /// The attempted action, with the address.
        what: String,
        /// The system's error.
        cause: String,
    },
    /// A connection could not be established, or a socket could not be configured.
    #[error("{what}: {cause}")]
    Connect {
        /// The attempted action, with the address.
        what: String,
        /// The system's error.
        cause: String,
    },
}

impl CollectiveError {
    /// Returns the caller's action for the error.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::PeerLost { .. }
            | Self::Timeout { .. }
            | Self::Aborted { .. }
            | Self::Unreachable { .. }
            | Self::Connect { .. } => Recovery::Rejoin,
            Self::Mismatch { .. }
            | Self::OtherPlan { .. }
            | Self::Invalid { .. }
            | Self::OutOfMemory { .. }
            | Self::Protocol { .. } => Recovery::Abort,
        }
    }
}
