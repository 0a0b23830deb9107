//! A simulated cluster for the state machines of `ronde-protocol`: hosts, links, processes, a store and time.
//!
//! One seed determines everything: the topology, the faults and their times, every delay. The state machines are
//! the real ones. The data plane carries real subtrees of real gradients, so that the promise of equal bits is
//! checked on bits. In half of the seeds the state is divided among the workers. First a script of faults runs; then there are no more faults and the job has to finish. The
//! [`invariants`] check every fact.

#![forbid(unsafe_code)]

pub mod clock;
pub mod coordinator;
pub mod disk;
pub mod effect;
pub mod fact;
pub mod faults;
pub mod gossip;
pub mod group;
pub mod injected_bug;
pub mod invariants;
pub mod model;
pub mod network;
pub mod replica;
pub mod rng;
pub mod served;
pub mod simulate;
pub mod worker;
pub mod world;

pub use faults::{Fault, Script};
pub use injected_bug::InjectedBug;
pub use simulate::{Simulated, Summary, Violation, simulate};
