//! [`FlightRecord`]: what one rank remembers of its last operations, to be written down and merged.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use ronde_core::{CollectiveError, DType, Generation, GroupRank};
use serde::{Deserialize, Serialize};

/// Version of the written form.
pub(super) const VERSION: u32 = 1;

/// The last operations (at most 1,000) of one rank in one group.
///
/// Times are seconds since the recorder began, on the clock of that rank; nothing is ever computed
/// from the clocks of two ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// Version of this form: 1.
    pub version: u32,
    /// The job.
    pub job: String,
    /// The group.
    pub group: String,
    /// Version of the membership.
    pub generation: Generation,
    /// Whose record it is.
    pub rank: GroupRank,
    /// Members of the group.
    pub size: u32,
    /// When the recorder began, in seconds since 1970, for people.
    pub began_unix_s: f64,
    /// When this record was taken.
    pub taken_s: f64,
    /// Older operations that are no longer remembered.
    pub forgotten: u64,
    /// Why the group has failed here, if it has.
    pub failure: Option<String>,
    /// Peers whose hosts had not acknowledged what was sent to them when it failed: a way between the
    /// two is cut, or that host is down. Of waits of half a deadline and more.
    #[serde(default)]
    pub unanswered: Vec<GroupRank>,
    /// Oldest first.
    pub operations: Vec<OperationRecord>,
}

/// One collective or message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationRecord {
    /// Number of the collective in its group; messages have none.
    pub sequence: Option<u64>,
    /// `all_reduce`, `barrier`, ..., `send`, `receive`.
    pub kind: String,
    /// The call in full words, operator and algorithm included.
    pub call: String,
    /// The algorithm that runs it; `None` where there is only one way, shared memory included.
    #[serde(default)]
    pub algorithm: Option<String>,
    /// Element type.
    pub dtype: DType,
    /// Elements; `None` where they differ between ranks.
    pub len: Option<u64>,
    /// Bytes of this rank's buffer.
    pub bytes: u64,
    /// The other end of a message.
    pub peer: Option<GroupRank>,
    /// The tag of a message.
    pub tag: Option<u32>,
    /// When the caller asked for it.
    pub issued_s: f64,
    /// When a collective's turn came.
    pub started_s: Option<f64>,
    /// When it was complete or had failed. Of a collective over shared memory of at most 8 bytes whose
    /// wait was short: when the last rank had come.
    pub ended_s: Option<f64>,
    /// Whether it ended by failing.
    pub failed: bool,
    /// When the first bytes of each peer's part of a collective came, by peer; not in groups of more
    /// than 1,024. Over connections only of those peers that the algorithm makes this rank hear, over
    /// shared memory of all, and by their own look at the clock: when their turn for it had come.
    pub arrivals: Vec<FirstArrival>,
}

/// The first bytes from one peer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FirstArrival {
    /// The peer.
    pub peer: GroupRank,
    /// Seconds after this rank issued the operation; negative when the peer was ahead.
    pub after_s: f64,
}

type FailureCallback = dyn Fn(&FlightRecord, &CollectiveError) + Send + Sync;

/// What to do with the record when a group fails; called once per group and rank.
///
/// It runs on the group's progress thread after every waiting caller and every peer was told, and
/// before dropping the group returns.
#[derive(Clone)]
pub struct FailureHook(Arc<FailureCallback>);

impl FailureHook {
    /// Calls `hook`.
    pub fn new(hook: impl Fn(&FlightRecord, &CollectiveError) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    /// Writes the record into a folder; see [`FlightRecord::write_into`]. A file that cannot be written
    /// is left out: the failure itself is told elsewhere.
    #[must_use]
    pub fn write_into(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        Self::new(move |record, _| drop(record.write_into(&folder)))
    }

    pub(crate) fn call(&self, record: &FlightRecord, error: &CollectiveError) {
        (self.0)(record, error);
    }
}

impl fmt::Debug for FailureHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FailureHook(..)")
    }
}
