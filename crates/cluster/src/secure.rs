//! Connections between hosts: JSON lines in TLS 1.3 with the job's authority, one thread per
//! connection.
//!
//! A host without a certificate and a user's command authenticate with a join token ([`JOINING`]),
//! an agent with its certificate ([`MEMBERS`]). Every wait has a time limit.

mod dial;
mod listen;
mod pump;

pub(crate) use dial::{DialError, call, connect};
pub(crate) use listen::{
    AcceptHandler, AcceptedConnection, Authentication, ListenLimits, TlsListener,
};
pub(crate) use pump::{ConnectionEnd, Outbox, pump};

/// The ALPN protocol of clients that send a join token in their first line.
pub(crate) const JOINING: &[u8] = b"ronde-join/1";
/// The ALPN protocol of clients with a certificate of the job's authority.
pub(crate) const MEMBERS: &[u8] = b"ronde-control/1";
/// Maximum line length of an unauthenticated client.
pub(crate) const STRANGER_BYTES_MAX: usize = 4 << 10;
/// Maximum line length of a member: a task and thousands of members.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 20;
