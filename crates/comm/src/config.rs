//! [`GroupConfig`]: what a member brings to a group; all but the rank must agree between members.

use std::time::Duration;

use ronde_core::{Generation, GroupRank, PlanIdentity};
use ronde_schedule::{Algorithm, Hosts};

use crate::{FailureHook, Security};

/// How members of a group reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TransportChoice {
    /// Shared memory when all members are on one host and belong to one user, streams otherwise.
    #[default]
    Auto,
    /// Shared memory, or else joining fails on all ranks, saying which one cannot and why.
    SharedMemory,
    /// Streams, for the whole group when one member says so and none requires shared memory.
    Tcp,
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
    pub timeout: Duration,
    /// Deadline for all members to be connected.
    pub connect_timeout: Duration,
    /// Algorithm to prefer; `None` chooses by operation, size and bytes. Must agree.
    pub algorithm: Option<Algorithm>,
    /// Which members share a host, for the hierarchical algorithm; `None` when all do. Must agree.
    pub hosts: Option<Hosts>,
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
    /// minute to connect, and plain connections on loopback addresses only.
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
            algorithm: None,
            hosts: None,
            security: Security::default(),
            connections: None,
            on_failure: None,
            transport: TransportChoice::Auto,
        }
    }
}
