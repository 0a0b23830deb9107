//! [`GroupConfig`]: what a member brings to a group; all but the rank must agree between members.

use std::sync::Arc;
use std::time::Duration;

use ronde_core::{Generation, GroupRank, PlanIdentity};
use ronde_schedule::{Algorithm, Hosts};

use crate::stream_executor::LINGER;
use crate::{FailureHook, Security};

/// How members of a group reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TransportChoice {
    /// Shared memory between members of one host that belong to one user, connections otherwise.
    #[default]
    Auto,
    /// Shared memory, or else joining fails on all ranks, saying which one cannot and why.
    SharedMemory,
    /// Connections, for the whole group when one member says so and none requires shared memory.
    Tcp,
}

/// Whether a group measures what its connections cost, to choose algorithms by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Calibration {
    /// It does not: algorithms are chosen by default costs, alike in every run.
    Off,
    /// It does while joining, for about so long. Short operations are run first, longer ones while
    /// they fit. Where bytes cross between hosts up to eight times as long goes before that, until the
    /// links' rate has settled, for links that let some bytes pass faster at first; up to 24 times where it
    /// does not, because a packet was lost.
    Within(Duration),
}

impl Default for Calibration {
    /// Within 30 milliseconds.
    fn default() -> Self {
        Self::Within(Duration::from_millis(30))
    }
}

/// Ends the joining of a group early: asked every few milliseconds.
#[derive(Clone)]
pub struct JoinCancellation(Arc<dyn Fn() -> bool + Send + Sync>);

impl JoinCancellation {
    /// Gives up once `is_wanted` says so; it must return at once.
    #[must_use]
    pub fn when(is_wanted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_wanted))
    }

    pub(crate) fn is_wanted(&self) -> bool {
        (self.0)()
    }
}

impl std::fmt::Debug for JoinCancellation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JoinCancellation")
    }
}

/// One member's part of a group.
#[derive(Debug, Clone)]
pub struct GroupConfig {
    /// Name of the group, for messages and buffers: `dp`. Must agree.
    pub name: String,
    /// The job that the group belongs to; opaque. Must agree.
    pub job: String,
    /// Version of the membership. Must agree.
    pub generation: Generation,
    /// This member's index in the group.
    pub rank: GroupRank,
    /// All that the result depends on. Must agree, or joining fails naming the parts that differ.
    pub plan: PlanIdentity,
    /// Deadline of every operation, from when it begins to run.
    ///
    /// The error names the rank that holds it up. Over connections half the deadline is for finding out
    /// who: those that wait say so, and for whom; and hosts acknowledge what is sent to them, whatever their
    /// processes do, within a fifth of a second or so. So a process that is stopped, a host that is cut
    /// off, that is not heard (mute) or hears nothing (deaf) is named by all others, and names itself
    /// ([`ronde_core::CollectiveError::PeerLost`] with its own rank) where more than half of all members
    /// acknowledge nothing. It cannot be told which of two ends of a single way is to blame, of which one
    /// is named, nor which half of a group that is cut in halves (two ranks, two hosts of as many), of which
    /// each names the other; nor, with a deadline below half a second, who is mute or deaf.
    pub timeout: Duration,
    /// Deadline for all members to be connected.
    pub connect_timeout: Duration,
    /// How long a member that leaves a group that has failed stays for the others to read why. A peer that is
    /// stopped lets it wait all that time; short where somebody else tells all members.
    pub linger_failed: Duration,
    /// When to stop waiting for the others to join; `None` waits until the limit.
    pub give_up: Option<JoinCancellation>,
    /// Algorithm to prefer; `None` takes the one that should take the least time, by the costs that
    /// the group has measured (see [`GroupConfig::calibration`]). Must agree.
    ///
    /// The bits of a plain sum of floating-point numbers depend on the algorithm, so that they may
    /// differ between two runs that have measured something else. Those of an exact sum do not. For
    /// plain sums with the same bits in every run name an algorithm, or switch the calibration off.
    pub algorithm: Option<Algorithm>,
    /// Which members share a host. Must agree. `None` has [`crate::ProcessGroup::connect`] find out
    /// (processes of one system and one network namespace share a host), and means one host elsewhere.
    pub hosts: Option<Hosts>,
    /// Whether the group measures its connections when it is joined by
    /// [`crate::ProcessGroup::connect`]; where members differ the shortest time counts. Groups that
    /// share memory, that prefer an algorithm, or whose parent has measured, do not; sub-groups choose
    /// by their parent's costs. See [`crate::ProcessGroup::calibrate`].
    pub calibration: Calibration,
    /// Whether connections are plain or TLS. Must be of the same kind. Of no account between threads
    /// of one process.
    pub security: Security,
    /// Connections to each other member, 1 to 16; large payloads are spread over them, small ones go on
    /// the first. `None` chooses: see [`crate::ProcessGroup::connect`]. Must agree. Of no account between
    /// threads of one process.
    pub connections: Option<usize>,
    /// What to do with the flight record when the group fails; `None` does nothing.
    pub on_failure: Option<FailureHook>,
    /// How [`crate::ProcessGroup::connect`] reaches the others. Members settle differences.
    pub transport: TransportChoice,
}

impl GroupConfig {
    /// A member of a group with an empty plan, generation 0, a minute for operations, half a
    /// minute to connect, a short calibration, and plain connections on loopback addresses only.
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
            on_failure: None,
            transport: TransportChoice::Auto,
        }
    }
}
