//! [`Assignment`]: the rank, the peers and the task that a supervisor sends to a worker process.
//!
//! A job may be stopped while no group exists: its workers wait for others, or have just lost one. If their state is divided, they
//! form a last generation to save it ([`GenerationPurpose::Save`]). It takes the same steps as any other (agree on the state, catch
//! up, exchange slices), so a second loss at that moment is an ordinary loss. A whole state is saved by one worker alone, because
//! that needs no connection between workers.

use std::net::SocketAddr;

use ronde_core::{Generation, Rank, WorldSize};
use serde::{Deserialize, Serialize};

/// Whether the members of a job can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MembershipPolicy {
    /// Generations follow each other; the job continues when workers are lost, leave or join.
    #[default]
    Elastic,
    /// There is one generation, with all workers. The loss of a worker ends the job.
    Fixed,
}

/// The activity of a generation's members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GenerationPurpose {
    /// They train.
    #[default]
    Train,
    /// They save the state that they have together, and end: the job stops.
    Save,
}

/// A worker's rank, peers and task in one generation of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The name of the job; frames of another job are rejected.
    pub job: String,
    /// The version of the membership.
    pub generation: Generation,
    /// Whether a later generation may follow.
    pub policy: MembershipPolicy,
    /// The rank of this worker.
    pub rank: Rank,
    /// The number of workers.
    pub world_size: WorldSize,
    /// The index of this worker among the workers of its host.
    pub local_rank: u32,
    /// The number of workers on this host.
    pub local_world_size: u32,
    /// The address on which each rank's data plane listens, by rank, including this worker's.
    pub peers: Vec<SocketAddr>,
    /// The activity of the members.
    pub purpose: GenerationPurpose,
    /// The number of silent workers that may have parts of the state. While there are any, members that lack parts wait for them instead
    /// of returning to a checkpoint.
    pub awaited: u32,
    /// The task, opaque to the supervisor: the resolved run for `ronde train`, empty for a user's own
    /// program.
    pub task: String,
}

impl Assignment {
    /// Returns the assignment of a process that runs without a supervisor: a world of one.
    #[must_use]
    pub fn alone() -> Self {
        Self {
            job: "alone".to_owned(),
            generation: Generation::FIRST,
            policy: MembershipPolicy::Fixed,
            rank: Rank(0),
            world_size: WorldSize::ONE,
            local_rank: 0,
            local_world_size: 1,
            peers: Vec::new(),
            purpose: GenerationPurpose::Train,
            awaited: 0,
            task: String::new(),
        }
    }
}
