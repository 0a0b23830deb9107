//! A simulated round of decentralised training: the decisions of `ronde_protocol::gossip` with processes that die, are away for a while
//! and join, and messages that are lost, repeated and late.
//!
//! One seed determines everything. First faults happen; then there are no more, and the round has to finish. Each update must be
//! in the log of exactly one process. Without faults, the replicas together have each update once, no process waits for another one
//! longer than two messages take, and a slow process delays the end by a few of its own updates at most.

mod process;
mod script;
mod world;

pub use script::{GossipBug, GossipScript, MemberChange};
pub use world::{GossipCounts, GossipWorld};
