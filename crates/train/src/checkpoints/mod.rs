//! Checkpoints of a run: when they are saved, which rank does what, and how a run resumes from one.
//!
//! ```text
//! rank 0 requests a save with its vote -> after that step each rank copies its share, a thread writes it
//!   -> each rank reports its file with its next votes -> rank 0 publishes the manifest, then removes old ones
//! a run that starts without a state: rank 0 loads the newest valid checkpoint and sends it to the other ranks
//! ```
//!
//! Training waits only for the copy in memory. Ranks exchange their reports with the votes on steps, so all
//! ranks know the same about a pending save, and losing a peer cancels it.

mod context;
mod cursor;
mod layout;
mod load;
mod newest;
mod notes;
mod publish_thread;
mod run_checkpoints;
mod wait;

pub use context::{ProcessContext, Resume, open};
pub use newest::{NewestCheckpoint, newest, newest_intact};
pub use run_checkpoints::RunCheckpoints;

pub(crate) use layout::{ReplicaLayout, other_names, vector_names};
pub(crate) use load::{LoadedCheckpoint, load};
pub(crate) use run_checkpoints::{RankPosition, StateSnapshot};
pub(crate) use wait::{SlowWait, poll_interval, wait_for_all};
