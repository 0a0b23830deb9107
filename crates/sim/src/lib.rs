//! A simulated cluster for the machines of `ronde-elastic`: hosts, links, processes, a store and time.
//!
//! Everything comes from one seed: the topology, what goes wrong and when, every delay. The machines
//! are the real ones; the data plane carries real subtrees of real gradients, so that "the same bits"
//! is checked on bits. First a script of faults runs, then nothing goes wrong any more and the job has
//! to come to its end. [`invariants`] look at every fact on the way.

#![forbid(unsafe_code)]

pub mod clock;
pub mod coordinator;
pub mod disk;
pub mod effect;
pub mod fact;
pub mod faults;
pub mod group;
pub mod invariants;
pub mod model;
pub mod network;
pub mod replica;
pub mod rng;
pub mod sabotage;
pub mod simulate;
pub mod worker;
pub mod world;

pub use faults::{Fault, Script};
pub use sabotage::Sabotage;
pub use simulate::{Simulated, Summary, Violation, simulate};
