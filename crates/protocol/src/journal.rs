//! [`JobRecord`]: the only durable record of a job, changed only by compare-and-swap.
//!
//! The record is both lease and journal. A coordinator that takes the lease increments the term in
//! it, and a generation exists only after it is written there. A coordinator that has lost the
//! lease can therefore publish neither a generation nor a checkpoint, however late it notices. This
//! holds for any behaviour of clocks. Nothing else needs to be replayed: the rest is learned from
//! the workers.

use ronde_core::{Generation, Step};
use serde::{Deserialize, Serialize};

use crate::membership::{CoordinatorId, MemberInfo, StartFrom, Term, WorkerId};

/// The phase of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// The job trains, or is about to.
    #[default]
    Running,
    /// A stop was requested; the last generation has no members.
    Stopping,
    /// The job stopped, with or without a checkpoint.
    Stopped,
    /// All steps are committed.
    Finished,
}

/// A generation that may still commit a step, as far as is known: no member of it is known to have
/// left it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenGeneration {
    /// The generation's number.
    pub generation: Generation,
    /// All of its members.
    pub workers: Vec<WorkerId>,
}

/// The durable facts about a job. The default is the record of a job that no coordinator has led.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The number of changes so far; 0 if nothing was written.
    pub version: u64,
    /// The term of the last coordinator.
    pub term: Term,
    /// The last coordinator, or `None` if it released the lease.
    pub holder: Option<CoordinatorId>,
    /// The newest generation, once there is one.
    pub generation: Option<Generation>,
    /// Its members by rank.
    pub members: Vec<MemberInfo>,
    /// The newest generation and all older ones that may still commit a step. A generation ends as
    /// soon as one of its members has left it, because a step is committed by all members or by
    /// none.
    pub open: Vec<OpenGeneration>,
    /// The start of members when none of them holds a state.
    pub start: StartFrom,
    /// The next step of the newest published checkpoint.
    pub checkpoint: Option<Step>,
    /// The phase of the job.
    pub phase: JobPhase,
}

impl Default for JobRecord {
    fn default() -> Self {
        Self {
            version: 0,
            term: Term(0),
            holder: None,
            generation: None,
            members: Vec::new(),
            open: Vec::new(),
            start: StartFrom::Checkpoint(None),
            checkpoint: None,
            phase: JobPhase::Running,
        }
    }
}

/// A coordinator's request to the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum StoreRequest {
    /// Reads the record.
    Read {
        /// The number that the reply repeats.
        id: u64,
    },
    /// Durably writes `record` if the version of the stored record is `record.version - 1`.
    Swap {
        /// The number that the reply repeats.
        id: u64,
        /// The record to write.
        record: JobRecord,
    },
}

impl StoreRequest {
    /// Returns the number of the request.
    #[must_use]
    pub fn id(&self) -> u64 {
        match self {
            Self::Read { id } | Self::Swap { id, .. } => *id,
        }
    }
}

/// The store's answer: the record after the request. A swap succeeded if this equals the record
/// that it contained. An answer may be lost, and a request may be executed late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReply {
    /// The number of the request.
    pub id: u64,
    /// The stored record.
    pub record: JobRecord,
}

impl JobRecord {
    /// Returns the number of the generation after the newest one.
    #[must_use]
    pub fn next_generation(&self) -> Generation {
        self.generation.map_or(Generation::FIRST, Generation::next)
    }

    /// Executes a request as a store does: atomically, and on disk before the reply is sent.
    pub fn execute(&mut self, request: StoreRequest) -> StoreReply {
        let id = request.id();
        if let StoreRequest::Swap { record, .. } = request
            && record.version == self.version + 1
        {
            *self = record;
        }
        StoreReply {
            id,
            record: self.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_next_version_is_written() {
        let mut stored = JobRecord::default();
        let mine = JobRecord {
            version: 1,
            term: Term(1),
            ..JobRecord::default()
        };
        let swap = |record: &JobRecord| StoreRequest::Swap {
            id: 3,
            record: record.clone(),
        };
        assert_eq!(stored.execute(swap(&mine)).record, mine);
        let late = JobRecord {
            version: 1,
            term: Term(9),
            ..JobRecord::default()
        };
        let reply = stored.execute(swap(&late));
        assert_eq!((reply.id, reply.record), (3, mine));
    }
}
