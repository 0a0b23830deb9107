//! Shared memory within a host: members that run on one host as one user reduce directly from each
//! other's memory. The streams between them remain, for messages and to detect failures: when a peer
//! aborts or its connection ends, every wait here ends.
//!
//! Buffers that the group allocates are in shared memory: rank r sums its slice directly from all of them, in tree order for the
//! exact sum, and writes the result into all of them. Other memory is copied in pieces; small payloads travel inside the control
//! slots in one phase. A wait spins, yields, then sleeps on a futex. After a failure, no shared memory is reused, so a late writer
//! does no harm. Members are trusted not to write out of turn.

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
