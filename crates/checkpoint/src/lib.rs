//! Checkpoints of a sharded state: saved by N ranks, loaded by any number, verified byte by byte.
//!
//! ```text
//! every rank: Saver::begin (copies) -> a thread hashes and writes -> SavedPart
//! one rank:   publish(all parts) -> manifest, written last, by a conditional put
//! to resume:  last_good -> Checkpoint::load or read_into -> claim the step to resume from
//! ```
//!
//! The caller exchanges the [`SavedPart`]s between ranks. `docs/checkpoints.md` describes the layout of the folder, the
//! format and the guarantees.

#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("slices are little-endian and written from memory without conversion");

mod catalog;
mod checkpoint;
mod claim;
mod cutting;
mod envelope;
mod error;
mod export;
mod fence;
mod last_good;
mod lineage;
mod manifest;
mod names;
mod publish;
mod reading;
mod retention;
mod saved_part;
mod saver;
mod vector;
mod verify;
mod writer;

pub use catalog::{CheckpointEntry, CheckpointStatus, list};
pub use checkpoint::{Checkpoint, LoadedVector, ReadRequest};
pub use claim::Claim;
pub use error::{CheckpointError, SkippedCheckpoint, ThreadFailure};
pub use export::to_safetensors;
pub use fence::Fence;
pub use last_good::{LastGood, last_good, last_good_with, latest};
pub use lineage::Lineage;
pub use manifest::{Digest, FileRecord, Manifest, PartRecord, SliceFile, SliceRecord};
pub use publish::{PublishOutcome, PublishRequest, publish};
pub use retention::{Proof, Retention, RetentionReport, retain};
pub use saved_part::SavedPart;
pub use saver::{CopyCost, SaveRequest, Saver, Slice};
pub use vector::{StateVector, VectorTensor, share};
pub use verify::{VerifiedCheckpoint, VerifyReport, verify_all};
