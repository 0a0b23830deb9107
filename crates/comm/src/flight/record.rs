//! [`FlightRecord`]: the last operations of one rank, in a form that can be stored and merged.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use ronde_core::{CollectiveError, DType, Generation, GroupRank};
use serde::{Deserialize, Serialize};

/// Version of the stored form.
pub(super) const VERSION: u32 = 1;

/// The last operations (at most 1,000) of one rank in one group.
///
/// Times are seconds since the recorder started, on the clock of that rank; clocks of two ranks are
/// never compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// Version of the stored form: 1.
    pub version: u32,
    /// The name of the job.
    pub job: String,
    /// The name of the group.
    pub group: String,
    /// Version of the membership.
    pub generation: Generation,
    /// The rank that recorded it.
    pub rank: GroupRank,
    /// The number of members of the group.
    pub size: u32,
    /// For a sub-group, the rank of each of its members in the group that was divided first; otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<GroupRank>,
    /// When the recorder started, in seconds since 1970, for people.
    pub began_unix_s: f64,
    /// When this record was taken.
    pub taken_s: f64,
    /// The number of older operations that are no longer kept.
    pub forgotten: u64,
    /// The error with which the group failed here, if it has.
    pub failure: Option<String>,
    /// Peers whose hosts had not acknowledged this rank's packets when it failed: a path between the
    /// two is cut, or that host is down. Only of waits of half a deadline and more.
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
    /// The full call, operator and algorithm included.
    pub call: String,
    /// The algorithm that runs it; `None` if there is only one, also over shared memory.
    #[serde(default)]
    pub algorithm: Option<String>,
    /// Element type.
    pub dtype: DType,
    /// Number of elements; `None` if it differs between ranks.
    pub len: Option<u64>,
    /// Bytes of this rank's buffer.
    pub bytes: u64,
    /// The peer of a message.
    pub peer: Option<GroupRank>,
    /// The tag of a message.
    pub tag: Option<u32>,
    /// When the caller started it.
    pub issued_s: f64,
    /// When a collective started to run.
    pub started_s: Option<f64>,
    /// When it completed or failed. For a collective over shared memory of at most 8 bytes with a
    /// short wait: when the last rank entered it.
    pub ended_s: Option<f64>,
    /// Whether it failed.
    pub failed: bool,
    /// When the first bytes of each peer's part of a collective arrived, by peer; not in groups of more
    /// than 1,024. Over connections, only of the peers from which the algorithm makes this rank receive;
    /// over shared memory of all peers, by their own clock readings when they entered it.
    pub arrivals: Vec<FirstArrival>,
}

/// The arrival of the first bytes from one peer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FirstArrival {
    /// The rank of the peer.
    pub peer: GroupRank,
    /// Seconds after this rank started the operation; negative when the peer was ahead.
    pub after_s: f64,
}

type FailureCallback = dyn Fn(&FlightRecord, &CollectiveError) + Send + Sync;

/// Called with the record when a group fails, once per group and rank.
///
/// It runs on the group's progress thread after every waiting caller and every peer was notified, and
/// before dropping the group returns.
#[derive(Clone)]
pub struct FailureHook(Arc<FailureCallback>);

impl FailureHook {
    /// Creates a hook that calls `hook`.
    pub fn new(hook: impl Fn(&FlightRecord, &CollectiveError) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    /// Creates a hook that writes the record into a folder; see [`FlightRecord::write_into`]. Errors of
    /// writing are ignored, because the failure itself is reported elsewhere.
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
