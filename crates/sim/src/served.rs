//! A simulated round of parameter servers: the decisions of `ronde_protocol::served` with processes that die, and messages that are
//! lost, repeated, late and damaged.
//!
//! One seed determines everything. First faults happen; then there are no more, and the round has to finish. Every slot must
//! have applied every update once, with the samples of that update; no gradient may be staler than the bound; a copy must have
//! applied the same updates in the same order as its slot.

mod process;
mod script;
mod world;

pub use script::{ServedBug, ServedScript};
pub use world::{ServedCounts, ServedWorld};
