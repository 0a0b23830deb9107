//! [`Pipeline`]: the steps from records to samples, to which every `[data]` section of a run file expands.
//!
//! ```text
//! files, embedded files -> format -> features and targets -> samples, decoded when a batch needs them, or once
//! a generator           -> samples
//! ```
//!
//! The source `records` states all steps. The other sources are presets.

mod decoded;
mod letters;
mod preset;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use ronde_store::StoredObject;

use crate::config::DataConfig;
use crate::dataset::Split;
use crate::decode::Schema;
use crate::demo::{EmbeddedFile, Generator, SplitSizes};
use crate::error::DataError;
use crate::format::object::{InMemory, ObjectReader, failed, is_gzip};
use crate::format::{CsvLines, RECORD_BYTES_MAX};
use crate::open_context::DataEvent;
use crate::open_context::OpenContext;
use crate::records::{self, RecordsConfig};
use crate::source::{FolderNames, expand};

/// The steps from records to samples.
#[derive(Debug)]
pub(crate) enum Pipeline<'a> {
    /// Records of files, which are indexed, and decoded when a batch needs them.
    Stored(&'a RecordsConfig),
    /// Records of files, which are decoded once, when the set is opened.
    Decoded(Box<DecodedRecords<'a>>),
    /// The letters of a file, in windows of `context` letters. The last tenth of the file is for evaluation.
    Letters {
        file: FileOrigin<'a>,
        context: usize,
        /// The share of the letters that are hidden and predicted; absent: the next letters are predicted.
        masked: Option<f64>,
    },
    /// Samples that are computed when a batch needs them.
    Computed {
        generator: Generator,
        counts: SplitSizes,
    },
}

/// Records of files whose samples fit in memory.
#[derive(Debug)]
pub(crate) struct DecodedRecords<'a> {
    train: FileOrigin<'a>,
    test: TestOrigin<'a>,
    format: CsvLines,
    schema: Schema,
}

/// The origin of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FileOrigin<'a> {
    /// A path; a relative one starts from the folder of the run file.
    Path(&'a Path),
    Embedded(EmbeddedFile),
}

/// The origin of the samples for evaluation.
#[derive(Debug, Clone, Copy)]
enum TestOrigin<'a> {
    None,
    File(FileOrigin<'a>),
    /// The samples of the training file from this one on.
    From(usize),
}

/// Opens a data set. Cost: the files of all sources but `records` are read and decoded completely; those of `records` are read
/// once if they were not indexed before.
///
/// # Errors
/// Files that are missing or have no samples, and invalid parameters.
pub fn open(config: &DataConfig, opening: &OpenContext) -> Result<Split, DataError> {
    if opening.base.to_str().is_none() {
        return Err(DataError::Path {
            path: opening.base.clone(),
        });
    }
    match Pipeline::of(config)? {
        Pipeline::Stored(records) => records::open(records, opening),
        Pipeline::Decoded(records) => decoded::open(&records, opening),
        Pipeline::Letters {
            file,
            context,
            masked,
        } => {
            let masks = masked.map(|share| letters::LetterMasks::new(share, opening.seed));
            letters::open(&file.open(opening)?, context, masks)
        }
        Pipeline::Computed { generator, counts } => generator.split(counts, opening.seed),
    }
}

impl FileOrigin<'_> {
    fn open(self, opening: &OpenContext) -> Result<OpenedFile, DataError> {
        match self {
            Self::Embedded(file) => Ok(OpenedFile {
                object: unpacked(Arc::new(file.open()))?,
                name: None,
            }),
            Self::Path(path) => {
                let opener = opening.opener(opening.remote.clone());
                let path = opening.base.join(path);
                let address = path.to_str().map(str::to_owned);
                let address = address.ok_or_else(|| DataError::Path { path: path.clone() })?;
                let names = FolderNames::KnownFormats;
                let found = expand(
                    std::slice::from_ref(&address),
                    &opening.base,
                    &opener,
                    names,
                )?;
                for notice in found.notices(&path.display().to_string()) {
                    (opening.report)(&DataEvent::Finding(notice));
                }
                let [file] = &*found.files else {
                    let contents = format!("expected one file, found {}", found.files.len());
                    let pattern = address;
                    return Err(DataError::NoFiles { pattern, contents });
                };
                Ok(OpenedFile {
                    object: unpacked(file.open()?.into())?,
                    name: path
                        .file_name()
                        .map(OsStr::to_string_lossy)
                        .map(Cow::into_owned),
                })
            }
        }
    }
}

/// Returns the contents of a file compressed by gzip, in memory, and any other file as it is. Unpacked once, it can be read in
/// parts.
fn unpacked(object: Arc<dyn StoredObject>) -> Result<Arc<dyn StoredObject>, DataError> {
    let mut magic = vec![0; object.bytes().min(3) as usize];
    object.read_at(0, &mut magic)?;
    if !is_gzip(&magic) {
        return Ok(object);
    }
    let location = object.location().to_owned();
    let packed = BufReader::with_capacity(1 << 18, ObjectReader::new(object, 0));
    let mut bytes = Vec::new();
    MultiGzDecoder::new(packed)
        .take(RECORD_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed(&location, 0, error))?;
    if bytes.len() as u64 > RECORD_BYTES_MAX {
        return Err(DataError::format(
            location,
            format_args!(
                "its unpacked contents exceed {RECORD_BYTES_MAX} bytes: split it, or do not compress it"
            ),
        ));
    }
    Ok(Arc::new(InMemory::new(&location, bytes)))
}

/// An open file, not compressed.
struct OpenedFile {
    object: Arc<dyn StoredObject>,
    /// The name for messages about changed data; `None` if the file is part of the program.
    name: Option<String>,
}

#[cfg(test)]
mod tests;
