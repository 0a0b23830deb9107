//! Simulated worlds for the state machines of `ronde-protocol`: processes on hosts, links, storage and time.
//!
//! One seed determines everything: the size, the faults and their times, every delay. The state machines are the real ones. The
//! [`harness`] runs a world and checks its invariants; each world has known bugs, which the invariants must find:
//!
//! - [`cluster`]: coordinators and workers of synchronous training;
//! - [`served`]: rounds of parameter servers;
//! - [`gossip`]: rounds of replicas that average in pairs.

#![forbid(unsafe_code)]

pub mod clock;
pub mod cluster;
pub mod gossip;
pub mod harness;
pub mod network;
pub mod rng;
pub mod served;
pub mod timeline;
