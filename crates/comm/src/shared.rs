//! Shared memory inside a host: members that run on one host as one user reduce straight out of each
//! other's memory. The streams between them stay, for messages and as the sign of life: a peer whose
//! connection ends, or that aborts, ends every wait here.

mod atomics;
mod collective;
mod control;
mod counts;
mod exchange;
mod flags;
mod flow;
mod gather;
mod halt;
mod join;
mod lane;
mod mapping;
mod pieces;
mod pool;
mod ring;
mod scatter;
mod tree;
mod wait;

pub(crate) use exchange::is_direct;
pub(crate) use join::{Terms, join};
pub(crate) use lane::Lane;
pub(crate) use mapping::Mapping;
pub(crate) use ring::{Reader, SLOT_BYTES, Writer};
