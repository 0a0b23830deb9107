//! Shared memory inside a host: members that run on one host as one user reduce straight out of each
//! other's memory. The streams between them stay, for messages and as the sign of life: a peer whose
//! connection ends, or that aborts, ends every wait here.

mod atomics;
mod collective;
mod control;
mod counts;
mod executor;
mod flags;
mod flow;
mod gather;
mod halt;
mod join;
mod mapping;
mod pieces;
mod pool;
mod queue;
mod ring;
mod scatter;
mod tree;
mod wait;

pub(crate) use executor::is_direct;
pub(crate) use join::{JoinParameters, join};
pub(crate) use mapping::Mapping;
pub(crate) use queue::SharedQueue;
pub(crate) use ring::{RingReader, RingWriter, SLOT_BYTES};
