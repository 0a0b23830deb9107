//! [`Format`]: file formats that hold records, and how their records are parsed.
//!
//! A file is read in three separate steps, so that each can run where it is cheapest:
//!
//! 1. [`RecordFile::scan`] runs once per file and finds its [`Extent`]s, which an index stores.
//! 2. [`RecordFile::ranges`] returns the byte ranges that an extent needs. The caller reads them, because it also
//!    knows which other ranges are needed and can read adjacent ones together.
//! 3. [`RecordFile::parse`] parses the bytes, on the thread that decodes them or on the one that read them.

mod config;
mod content;
mod csv_lines;
mod extent;
pub(crate) mod folder;
pub mod npy;
pub(crate) mod object;
#[cfg(feature = "full")]
mod parquet;
mod record;
mod record_file;
mod selection;
mod shared_bytes;
#[cfg(test)]
pub(crate) mod testing;
mod text;
pub mod tfrecord;
mod tokens;
pub mod webdataset;
mod window;

pub use crate::bad_record::BadRecord;
pub use config::{FormatConfig, FormatKind, FormatTable};
pub use csv_lines::CsvLines;
pub use extent::{EvenLayout, Extent};
pub use folder::ImageFolder;
pub use npy::{Npy, Npz};
#[cfg(feature = "full")]
pub use parquet::Parquet;
pub use record::{NumberType, Record, Value};
pub use record_file::{EXTENT_BYTES_MAX, Format, RecordFile, Records, ScanItem};
pub(crate) use record_file::{ItemSink, RECORD_BYTES_MAX};
pub use selection::{FieldNames, FieldSelection};
pub use shared_bytes::SharedBytes;
pub(crate) use text::TokenizedText;
pub use tfrecord::TfRecord;
pub use tokens::Tokens;
pub use webdataset::WebDataset;
