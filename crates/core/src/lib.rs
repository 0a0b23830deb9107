//! The vocabulary and the pure mathematics of ronde: no I/O, no threads, no clock.
//!
//! All other crates are based on this one. Read [`shards`] first, then [`exact`], [`mesh`] and [`step_layout`]:
//! together they explain why the trained bits do not depend on the cluster.

#![forbid(unsafe_code)]

pub mod background_spans;
pub mod batch;
pub mod buffer;
pub mod byte_reader;
pub mod collectives;
pub mod conveniences;
pub mod counts;
pub mod csv_field;
pub mod data_signature;
pub mod dtype;
pub mod error;
pub mod event;
pub mod exact;
pub mod header;
pub mod histogram;
pub mod identity;
mod invalid_value;
pub mod layout;

pub mod lineage;
pub mod mesh;
pub mod norm;
pub mod order;
pub mod part_transfers;
pub mod permutation;
pub mod philox;
pub mod prometheus_text;
pub mod protobuf;
pub mod rank;
pub mod recording;
pub mod rounds;
pub mod seed;

pub mod shards;
pub mod skipped_update;
pub mod spans;
pub mod sparse;
pub mod staleness;
pub mod step_layout;
pub mod token_texts;
pub mod units;
pub mod weight_hash;
pub mod words;

pub use buffer::{Buffer, Element, Memory, MemoryKind};
pub use collectives::{Collectives, Group, Operation, PointToPoint, Tag, Work};
pub use conveniences::CollectivesExt;
pub use counts::BatchCounts;
pub use data_signature::{DataSignature, NameList, NameMatch};
pub use dtype::{DType, ReduceOp};
pub use error::{CollectiveError, Recovery};
pub use event::{Event, NullTracker, Tracker};
pub use header::{FormatHeader, HeaderError};
pub use identity::{OUTSIDE_IDENTITY, PlanIdentity, outside_identity};
pub use invalid_value::InvalidValue;
pub use lineage::ParentPlan;
pub use mesh::{Mesh, MeshError};
pub use part_transfers::{PartTransfer, PartTransfers};
pub use rank::{Epoch, Generation, GroupRank, Rank, Shard, Step, WorldSize};
pub use skipped_update::{SkippedUpdate, SkippedUpdates};
pub use token_texts::TokenTexts;
