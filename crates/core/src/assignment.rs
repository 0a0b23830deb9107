//! [`Assignment`]: what a supervisor hands to a worker process, all that it needs to find its peers.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{Generation, Rank, WorldSize};

/// A worker's place in one generation of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Names the job; frames of another job are refused.
    pub job: String,
    /// Version of the membership.
    pub generation: Generation,
    /// This worker.
    pub rank: Rank,
    /// Workers in all.
    pub world_size: WorldSize,
    /// Index among the workers of this host.
    pub local_rank: u32,
    /// Workers on this host.
    pub local_world_size: u32,
    /// Where each rank's data plane listens, by rank; this worker's own included.
    pub peers: Vec<SocketAddr>,
    /// What to do, opaque to the supervisor: the resolved run for `ronde train`, empty for a user's
    /// own program.
    pub task: String,
}

impl Assignment {
    /// The assignment of a process that runs without a supervisor: a world of one.
    #[must_use]
    pub fn alone() -> Self {
        Self {
            job: "alone".to_owned(),
            generation: Generation(0),
            rank: Rank(0),
            world_size: WorldSize::ONE,
            local_rank: 0,
            local_world_size: 1,
            peers: Vec::new(),
            task: String::new(),
        }
    }
}
