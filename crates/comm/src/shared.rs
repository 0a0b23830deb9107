//! Shared memory within a host: members that run on one host as one user reduce directly from each
//! other's memory. The streams between them remain, for messages and to detect failures: when a peer
//! aborts or its connection ends, every wait here ends.

mod atomics;
mod collective;
mod control;
mod executor;
mod failure;
mod flags;
mod flow;
mod gather;
mod halt;
mod join;
mod mapping;
mod pieces;
mod pool;
mod queue;
mod scatter;
mod tree;
mod wait;

pub(crate) use executor::is_direct;
pub(crate) use join::{JoinParameters, MemoryJoin, join};
pub(crate) use queue::SharedQueue;
