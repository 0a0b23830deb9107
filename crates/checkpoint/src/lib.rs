//! Checkpoints of a sharded state: saved by N ranks, loaded by any number, verified byte by byte.
//!
//! ```text
//! every rank: Saver::begin (copies) -> a thread hashes and writes -> SavedPart
//! one rank:   publish(all parts) -> manifest, put last, on a condition
//! to resume:  last_good -> Checkpoint::load or read_into -> claim the step to go on from
//! ```
//!
//! Plain types go in and come out; how ranks exchange their [`SavedPart`]s is the caller's business. The layout of the
//! folder, the format and the guarantees are in `docs/checkpoints.md`.

#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("slices are little-endian, written from memory as they are");

mod catalog;
mod checkpoint;
mod clock;
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
mod saver;
mod vector;
mod writer;

pub use catalog::{Listed, Standing, list};
pub use checkpoint::{Checkpoint, LoadedVector, ReadInto};
pub use error::{CheckpointError, Skipped};
pub use export::to_safetensors;
pub use fence::Fence;
pub use last_good::{LastGood, last_good, last_good_with, latest};
pub use lineage::{Claim, Lineage};
pub use manifest::{Digest, FileRecord, Manifest, PartRecord, SliceFile, SliceRecord};
pub use publish::{Publish, Published, publish};
pub use retention::{Proof, Removed, Retention, retain};
pub use saver::{Copied, Save, SavedPart, Saver, Slice};
pub use vector::{TensorPlace, Vector, share};
