//! Connections between hosts: TLS 1.3 with the job's authority, lines of JSON inside, one thread each.
//!
//! A host that has no certificate yet, and a user's command, come with a join token ([`JOINING`]); an
//! agent comes with its certificate ([`MEMBERS`]). Everything that waits has a limit.

mod dial;
mod listen;
mod pump;

pub(crate) use dial::{DialError, call, connect};
pub(crate) use listen::{Greeted, Listener, Reception, Way};
pub(crate) use pump::{Outbox, Pumped, pump};

/// The protocol of those who show a join token in their first line.
pub(crate) const JOINING: &[u8] = b"ronde-join/1";
/// The protocol of those who show a certificate of the job's authority.
pub(crate) const MEMBERS: &[u8] = b"ronde-control/1";
/// Longest line of somebody who has not shown who he is.
pub(crate) const STRANGER_BYTES_MAX: usize = 4 << 10;
/// Longest line of a member: a task, thousands of members.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 20;
