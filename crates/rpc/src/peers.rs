//! [`RpcPeer`] and [`CallTarget`]: the workers of a job and how a call names one.

use std::fmt;
use std::net::SocketAddr;

use ronde_identity::Member;

/// Another worker: its name, its role and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcPeer {
    /// The name, unique in the job.
    pub name: String,
    /// The role, such as `"server"`, which several workers may have.
    pub role: String,
    /// The address at which the worker listens.
    pub address: SocketAddr,
    /// The member that its certificate names; only used with TLS.
    pub member: Option<Member>,
}

/// The worker that a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallTarget<'a> {
    /// The worker with this name.
    Worker(&'a str),
    /// Any worker with this role: one that is connected, and of those the one with the fewest calls in flight.
    Role(&'a str),
}

impl fmt::Display for CallTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(name) => write!(f, "name `{name}`"),
            Self::Role(role) => write!(f, "role `{role}`"),
        }
    }
}
