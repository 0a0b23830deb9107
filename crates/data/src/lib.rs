//! Data sources, decoding and prefetching: every sample exactly once per epoch, on any number of workers.
//!
//! Start with [`dataset`] (the interface of sources), then [`loader`] (how samples become the batches of a rank's shards).
//! `ronde_core::batch` and `ronde_core::shards` decide which sample belongs to which shard and rank; this crate only reads
//! samples.
//!
//! ```
//! use ronde_core::{GroupRank, WorldSize, batch::BatchPlan, shards::ShardPlan};
//! use ronde_data::{DataConfig, Loader, LoaderPlan, LoaderSettings, OpenContext, open};
//!
//! let digits = open(&DataConfig::Digits {}, &OpenContext::new(std::path::Path::new("."), 42))?;
//! let batches = BatchPlan::new(digits.train.len(), 64, false, true, 42).unwrap();
//! let shards = ShardPlan::new(8, WorldSize::new(2).unwrap()).unwrap();
//! let plan = LoaderPlan {
//!     batches,
//!     shards: shards.clone(),
//!     run: shards.run(GroupRank(1)),
//!     steps: 0..2,
//!     stride: 1,
//! };
//! let mut loader = Loader::start(digits.train, plan, LoaderSettings::default())?;
//! while let Some(step) = loader.next()? {
//!     assert_eq!(step.batches.len(), 4);
//!     assert_eq!(step.batches[0].shape, [8, 1, 8, 8]);
//! }
//! # Ok::<(), ronde_data::DataError>(())
//! ```

#![forbid(unsafe_code)]

mod bad_record;
pub mod cache;
pub mod config;
pub mod dataset;
pub mod decode;
pub mod decoders;
mod demo;
mod error;
mod file_tasks;
pub mod format;
#[cfg(feature = "full")]
mod image_files;
pub mod index;
pub mod inspect;
pub mod loader;
mod local_files;
mod memory;
mod model_order;
mod names;
mod open_context;
pub mod pack;
pub mod picture;
mod pipeline;
mod read_limit;
pub mod records;
pub mod source;
mod stored;
mod tokenized;
mod vocabulary;

pub use config::DataConfig;
pub use dataset::{
    BadRecordPolicy, Dataset, DatasetDescription, DatasetExt, FetchedSamples, FileContent, IGNORED,
    Locality, SampleOrigin, Split, Targets, Traffic,
};
pub use demo::{RatingsConfig, SquareImagesConfig};
pub use error::DataError;
#[cfg(feature = "full")]
pub use image_files::ImageFiles;
pub use loader::{Batch, Loader, LoaderPlan, LoaderSettings, LoaderTimes, StepBatches};
pub use local_files::files_of_patterns;
pub use memory::MemoryDataset;
pub use model_order::{InModelOrder, ModelForm, SignatureError};
pub use names::standard_name;
pub use open_context::{DataEvent, OpenContext};
pub use pipeline::open;
pub use read_limit::{OpenedPart, ReadLimit, SamplesRead, read_samples};
pub use vocabulary::{EncodeError, Vocabulary};
