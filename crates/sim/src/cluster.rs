//! A simulated cluster: coordinators with a store, workers that train, hosts, links and the storage of the job.
//!
//! The data plane carries real subtrees of real gradients, so that the promise of equal bits is checked on bits. In half of the
//! seeds the state is divided among the workers. First a script of faults runs; then there are no more faults and the job has to
//! finish. The invariants check every fact.

mod coordinator;
mod counts;
mod disk;
mod effect;
mod fact;
mod faults;
mod group;
mod injected_bug;
mod invariants;
mod model;
mod replica;

mod worker;
mod world;

pub use counts::ClusterSummary;
pub use faults::{Fault, Script};
pub use injected_bug::InjectedBug;
pub use model::SimulatedDivision;
pub use world::ClusterWorld;
