//! [`GroupConfig`]: a member's settings for a group; all but the rank must agree between members.

use std::sync::Arc;
use std::time::Duration;

use ronde_core::{Generation, GroupRank, PlanIdentity};
use ronde_schedule::{Algorithm, Hosts};
use serde::{Deserialize, Serialize};

use crate::connect::ConnectionPool;
use crate::flight::FailureHook;
use crate::security::Security;
use crate::stream_executor::LINGER;

/// How members of a group reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TransportChoice {
    /// Shared memory between members on one host that run as the same user, connections otherwise.
    #[default]
    Auto,
    /// Shared memory; joining fails on all ranks if a member cannot use it, with its rank and the cause.
    SharedMemory,
    /// Connections, for the whole group if any member requests this and none requires shared memory.
    Tcp,
}

/// Whether a group measures the cost of its connections, to choose algorithms by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Calibration {
    /// No measurement: algorithms are chosen by default costs, which are the same in every run.
    Off,
    /// Measure while joining, for about this long. Short operations run first, then longer ones while
    /// time is left. Where bytes cross between hosts, up to eight times this long is spent first until the
    /// links' rate has settled, because some links pass the first bytes faster; up to 24 times if it
    /// does not settle because a packet was lost.
    Within(Duration),
}

impl Default for Calibration {
    /// Within 30 milliseconds.
    fn default() -> Self {
        Self::Within(Duration::from_millis(30))
    }
}

/// A condition that ends the joining of a group early; checked every few milliseconds.
#[derive(Clone)]
pub struct JoinCancellation(Arc<dyn Fn() -> bool + Send + Sync>);

impl JoinCancellation {
    /// Cancels joining once `is_requested` returns true; it must return at once.
    #[must_use]
    pub fn when(is_requested: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_requested))
    }

    pub(crate) fn is_requested(&self) -> bool {
        (self.0)()
    }
}

impl std::fmt::Debug for JoinCancellation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JoinCancellation")
    }
}

/// The settings of one member of a group.
#[derive(Debug, Clone)]
pub struct GroupConfig {
    /// Name of the group in messages and buffer names, such as `dp`. Must agree.
    pub name: String,
    /// The job that the group belongs to; opaque. Must agree.
    pub job: String,
    /// Version of the membership. Must agree.
    pub generation: Generation,
    /// This member's index in the group.
    pub rank: GroupRank,
    /// Everything the result depends on. Must agree, or joining fails with the parts that differ.
    pub plan: PlanIdentity,
    /// Deadline of every operation, from when it starts to run.
    ///
    /// The error names the rank that delays the operation. Over connections, half of the deadline is
    /// used to find that rank: ranks that wait report it, with the ranks they wait for, and a host
    /// acknowledges received bytes within about 0.2 s, whatever its processes do. A process that is
    /// stopped, a host that is cut off, or one whose packets are lost in one direction only is named by
    /// all other ranks. It names itself ([`ronde_core::CollectiveError::PeerLost`] with its own rank) when
    /// more than half of all members acknowledge nothing. Three cases cannot be decided: when a single
    /// path is cut, one of its two ends is named; when a group is split into halves of equal size, each
    /// half names the other; and with a deadline below 0.5 s, a path that fails in one direction may
    /// be blamed on the wrong end.
    pub timeout: Duration,
    /// Deadline for all members to be connected.
    pub connect_timeout: Duration,
    /// How long a member that leaves a failed group waits for the others to read the cause. If a peer is
    /// stopped, it waits for all of this time; choose a short time if all members are notified in
    /// another way.
    pub linger_failed: Duration,
    /// When to stop waiting for the other members; `None` waits until the deadline.
    pub give_up: Option<JoinCancellation>,
    /// Algorithm to prefer; `None` uses the one with the shortest predicted time, by the costs that the
    /// group has measured (see [`GroupConfig::calibration`]). Must agree.
    ///
    /// The bits of a plain floating-point sum depend on the algorithm, so they may differ between two
    /// runs that measured different costs. The bits of an exact sum do not. To get the same bits of plain
    /// sums in every run, set an algorithm or switch calibration off.
    pub algorithm: Option<Algorithm>,
    /// Which members share a host. Must agree. With `None`, [`crate::ProcessGroup::connect`] finds out
    /// (processes of one system and one network namespace share a host); elsewhere it means one host.
    pub hosts: Option<Hosts>,
    /// Whether the group measures its connections when it joins with
    /// [`crate::ProcessGroup::connect`]; if members differ, the shortest time is used. Groups that
    /// share memory, that prefer an algorithm, or whose parent has measured do not measure; sub-groups
    /// use their parent's costs. See [`crate::ProcessGroup::calibrate`].
    pub calibration: Calibration,
    /// Whether connections are plain or TLS. Must be the same kind on all members. Ignored between
    /// threads of one process.
    pub security: Security,
    /// Connections to each other member, 1 to 16. Large payloads are spread over them; small ones use
    /// the first. `None` chooses: see [`crate::ProcessGroup::connect`]. Must agree. Ignored between
    /// threads of one process.
    pub connections: Option<usize>,
    /// For a sub-group, the rank of each of its members in the group that was divided first; otherwise empty. Only for reports.
    pub members: Vec<GroupRank>,
    /// Called with the flight record when the group fails; `None` does nothing.
    pub on_failure: Option<FailureHook>,
    /// How [`crate::ProcessGroup::connect`] reaches the other members, which may request different transports.
    pub transport: TransportChoice,
    /// The connections of this process's previous group of the job, which [`crate::ProcessGroup::connect`] continues where
    /// it can; `None` makes new ones. Sub-groups always make new ones.
    pub connection_pool: Option<ConnectionPool>,
}

impl GroupConfig {
    /// Returns the settings of a member of a group with an empty plan, generation 0, 60 s for
    /// operations, 30 s to connect, a short calibration, and plain connections on loopback addresses only.
    #[must_use]
    pub fn new(name: impl Into<String>, job: impl Into<String>, rank: GroupRank) -> Self {
        Self {
            name: name.into(),
            job: job.into(),
            generation: Generation(0),
            rank,
            plan: PlanIdentity::default(),
            timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(30),
            linger_failed: LINGER,
            give_up: None,
            algorithm: None,
            hosts: None,
            calibration: Calibration::default(),
            security: Security::default(),
            connections: None,
            members: Vec::new(),
            on_failure: None,
            transport: TransportChoice::Auto,
            connection_pool: None,
        }
    }
}
