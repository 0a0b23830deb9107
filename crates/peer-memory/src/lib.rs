//! Values of another process of this host, read in its memory: one copy instead of two through a socket.
//!
//! A process that lends values has a [`LendingMark`] and sends its [`LendingOffer`] to its peers. A peer that may read this
//! memory opens it as [`PeerMemory`]. The protocol between the two (which values are lent, and when they were read) belongs to
//! the users of this crate.

mod peer_memory;

pub use peer_memory::{LendingMark, LendingOffer, PeerMemory};
