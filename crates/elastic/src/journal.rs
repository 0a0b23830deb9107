//! [`Record`]: the one durable record of a job, changed by compare-and-swap only.
//!
//! The record is lease and journal at once. A coordinator that takes the lease raises the term in it, and a
//! generation exists once it stands in it; so a coordinator that was deposed, however late it
//! notices, can publish neither a generation nor a checkpoint. That holds whatever clocks do. Nothing
//! else has to be replayed: the rest is learnt from the workers.

use ronde_core::{Generation, Step};
use serde::{Deserialize, Serialize};

use crate::{CoordinatorId, Member, StartFrom, Term, WorkerId};

/// How far the job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// It trains, or wants to.
    #[default]
    Running,
    /// It was asked to stop; its last generation has no members.
    Stopping,
    /// It stopped, with or without a checkpoint.
    Stopped,
    /// All steps are committed.
    Finished,
}

/// A generation that may still commit a step, for all that is known: none of its members is known to
/// have left it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenGeneration {
    /// Which.
    pub generation: Generation,
    /// All of its members.
    pub workers: Vec<WorkerId>,
}

/// What is known for certain of a job. The default is the record of a job that nobody has led yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Grows by one with every change; 0: nothing was written yet.
    pub version: u64,
    /// Term of the last coordinator.
    pub term: Term,
    /// The last coordinator, or `None` when it gave the lease back.
    pub holder: Option<CoordinatorId>,
    /// The newest generation; 0: none yet.
    pub generation: Generation,
    /// Its members by rank.
    pub members: Vec<Member>,
    /// The newest generation and all older ones that may still commit a step. A generation is over for
    /// good once one of its members has left it, for it commits with all of them or not at all.
    pub open: Vec<OpenGeneration>,
    /// What its members do when none of them holds a state.
    pub start: StartFrom,
    /// Next step of the newest checkpoint that counts.
    pub checkpoint: Option<Step>,
    /// How far the job is.
    pub phase: JobPhase,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            version: 0,
            term: Term(0),
            holder: None,
            generation: Generation(0),
            members: Vec::new(),
            open: Vec::new(),
            start: StartFrom::Checkpoint(None),
            checkpoint: None,
            phase: JobPhase::Running,
        }
    }
}

/// What a coordinator asks of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum StoreRequest {
    /// The record as it is.
    Read {
        /// Comes back in the reply.
        id: u64,
    },
    /// Write `record`, durably, if the version of the stored one is `record.version - 1`.
    Swap {
        /// Comes back in the reply.
        id: u64,
        /// What to write.
        record: Record,
    },
}

impl StoreRequest {
    /// The number of the request.
    #[must_use]
    pub fn id(&self) -> u64 {
        match self {
            Self::Read { id } | Self::Swap { id, .. } => *id,
        }
    }
}

/// The store's answer: the record as it stands after the request. A swap was done if that is the
/// record that it asked for. An answer may be lost, a request may be executed late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReply {
    /// Of the request.
    pub id: u64,
    /// What is stored.
    pub record: Record,
}

impl Record {
    /// Executes a request, as a store does: in one piece, and on disk before the reply leaves.
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
        let mut stored = Record::default();
        let mine = Record {
            version: 1,
            term: Term(1),
            ..Record::default()
        };
        let swap = |record: &Record| StoreRequest::Swap {
            id: 3,
            record: record.clone(),
        };
        assert_eq!(stored.execute(swap(&mine)).record, mine);
        let late = Record {
            version: 1,
            term: Term(9),
            ..Record::default()
        };
        let reply = stored.execute(swap(&late));
        assert_eq!((reply.id, reply.record), (3, mine));
    }
}
