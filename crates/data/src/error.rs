//! [`DataError`]: errors while opening or reading data sets.

use std::fmt;
use std::path::PathBuf;

use ronde_core::Recovery;
use ronde_store::StoreError;

use crate::bad_record::BadRecord;

/// An error while opening or reading a data set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A folder or a bucket could not be opened or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The folder of relative paths is not valid UTF-8, so that the addresses of its files have no text.
    #[error(
        "cannot use the path {path:?}: it is not valid UTF-8\n  help: rename the folder, or train in another one"
    )]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// A record cannot be used.
    #[error("{0}")]
    Record(BadRecord),
    /// A file does not have the expected format.
    #[error("{file}: {problem}")]
    Format {
        /// The file.
        file: String,
        /// The cause.
        problem: String,
    },
    /// A description of features, label or format is invalid.
    #[error("invalid data.{key}: {problem}")]
    Schema {
        /// The key of the run file.
        key: String,
        /// The cause.
        problem: String,
    },
    /// A feature is not compiled into this build.
    #[error("{what} is not part of this build; build ronde with `--features full`")]
    NotBuilt {
        /// The feature.
        what: String,
    },
    /// Files cannot be packed into shards.
    #[error("cannot pack files: {what}: {problem}")]
    Pack {
        /// A file, a destination or a setting.
        what: String,
        /// The cause.
        problem: String,
    },
    /// An index or a token file cannot be stored.
    #[error("cannot {operation} {}: {cause}", path.display())]
    Index {
        /// The operation.
        operation: &'static str,
        /// The folder or file.
        path: PathBuf,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// All files together have no sample.
    #[error("no samples in {addresses}")]
    Empty {
        /// The addresses.
        addresses: String,
    },
    /// No sample was found before a limit was reached.
    #[error("cannot check {addresses}: no sample was found in the time for it")]
    Unread {
        /// The addresses.
        addresses: String,
    },
    /// More records are bad than may be skipped.
    #[error(
        "{bad} of {records} records ({bad_bytes} of {bytes} bytes) in {addresses} are bad, more than data.bad_record_limit = {limit} allows; the first: {first}\n  \
         help: `ronde data inspect` lists them; use other files, or raise data.bad_record_limit"
    )]
    TooManyBad {
        /// The addresses.
        addresses: String,
        /// The number of bad records.
        bad: u64,
        /// The number of all records.
        records: u64,
        /// The bytes of the files that cannot be used because of them.
        bad_bytes: u64,
        /// The bytes of all files.
        bytes: u64,
        /// The share that may be skipped.
        limit: f64,
        /// The first bad record.
        first: Box<BadRecord>,
    },
    /// The validation split leaves no sample for training or for evaluation.
    #[error(
        "invalid validation share {share}: of {samples} samples, none would remain for training or for evaluation"
    )]
    Validation {
        /// The share.
        share: f64,
        /// The number of all samples.
        samples: u64,
    },
    /// An address with wildcards is invalid.
    #[error("invalid file pattern `{pattern}`: {problem}")]
    Pattern {
        /// The address from the run file.
        pattern: String,
        /// The cause.
        problem: String,
    },
    /// An address matches no file.
    #[error("no such file: {pattern}{}", after_pattern(pattern, contents))]
    NoFiles {
        /// The address from the run file.
        pattern: String,
        /// The contents of the folder.
        contents: String,
    },
    /// All files of a folder are left out because of their names.
    #[error(
        "no data files in {pattern}: all {count} are left out because of their names, the first: {first}\n  \
         help: data files have the extension of a known format, and are not hidden, backup or partial files; set \
         data.format to use the files whatever their names are, or name them with wildcards"
    )]
    LeftOut {
        /// The address from the run file.
        pattern: String,
        /// The number of files, and of folders that were not entered.
        count: usize,
        /// The first name.
        first: String,
    },
    /// Some files that an address names do not exist.
    #[error("{count} of the files of `{pattern}` do not exist: {names}")]
    MissingFiles {
        /// The address from the run file.
        pattern: String,
        /// The number of missing files.
        count: usize,
        /// The first missing names.
        names: String,
    },
    /// The settings of the data cache are invalid.
    #[error("invalid setting of the data cache: {problem}")]
    CacheSettings {
        /// Their problem.
        problem: String,
    },
    /// The files to download exceed the limit of the data cache.
    #[error(
        "cannot download {bytes} bytes to the data cache: it has room for {room} bytes (its limit is {bytes_max} bytes, of \
         which a tenth stays free): raise the limit, or use data.cache = \"stream\""
    )]
    CacheTooSmall {
        /// The bytes of the files.
        bytes: u64,
        /// The bytes that fit.
        room: u64,
        /// The limit in bytes.
        bytes_max: u64,
    },
    /// A shape is invalid.
    #[error(
        "invalid shape {shape:?}: expected 1 to {elements_max} elements and at most {axes_max} axes"
    )]
    Shape {
        /// The shape.
        shape: Vec<usize>,
        /// The maximum number of elements.
        elements_max: usize,
        /// The maximum number of axes.
        axes_max: usize,
    },
    /// A number of classes is invalid.
    #[error("invalid number of classes {classes}: expected 1 to {classes_max}")]
    Classes {
        /// The number.
        classes: u32,
        /// The maximum number of classes.
        classes_max: u32,
    },
    /// A share of masked letters is invalid.
    #[error("invalid share {share} of masked letters: expected above 0 and below 1")]
    MaskedShare {
        /// The share.
        share: f64,
    },
    /// A synthetic set has too many samples, or none for training.
    #[error("invalid number of samples: {samples} for training and {test_samples} for tests")]
    SampleCount {
        /// The number of training samples.
        samples: u64,
        /// The number of test samples.
        test_samples: u64,
    },
    /// The lengths of features, labels and shape of a set in memory are inconsistent.
    #[error("{features} features and {labels} labels do not match {elements} features per sample")]
    Lengths {
        /// The number of features.
        features: usize,
        /// The number of labels.
        labels: usize,
        /// The elements of one sample.
        elements: usize,
    },
    /// A label of a set in memory is not below the number of classes.
    #[error("sample {sample} has label {label}, but there are {classes} classes")]
    Label {
        /// The sample.
        sample: u64,
        /// The label.
        label: u32,
        /// The number of classes.
        classes: u32,
    },
    /// A sample number is out of range.
    #[error("no sample {sample}: the data set has {samples} samples")]
    NoSuchSample {
        /// The requested sample.
        sample: u64,
        /// The number of samples.
        samples: u64,
    },
    /// A buffer for a sample has the wrong length.
    #[error("the buffer has {given} elements, but the sample has {needed}")]
    BufferLength {
        /// The length of the buffer.
        given: usize,
        /// The elements of a sample.
        needed: usize,
    },
    /// A plan of batches was made for a set of another size.
    #[error("the batches are planned for {planned} samples, but the data set has {samples}")]
    PlanMismatch {
        /// The samples of the plan.
        planned: u64,
        /// The samples of the set.
        samples: u64,
    },
    /// A range of shards is out of range.
    #[error("no shards {start}..{end}: the plan has {shards} logical shards")]
    NoSuchShards {
        /// The first requested shard.
        start: u32,
        /// The end of the requested shards.
        end: u32,
        /// The number of shards of the plan.
        shards: u32,
    },
    /// The prefetch thread could not be started.
    #[error("cannot start the prefetch thread: {cause}")]
    Thread {
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The prefetch thread ended before step `step`, after an earlier error or a panic in a data set.
    #[error("the prefetch thread ended before step {step}")]
    LoaderEnded {
        /// The requested step.
        step: u64,
    },
}

/// Returns the end of the message about an address without files, which does not repeat that the address itself is missing.
fn after_pattern(pattern: &str, contents: &str) -> String {
    let missing = format!("{pattern} does not exist");
    match contents.strip_prefix(&missing) {
        Some(rest) => rest.to_owned(),
        None => format!(": {contents}"),
    }
}

impl From<BadRecord> for DataError {
    fn from(bad: BadRecord) -> Self {
        Self::Record(bad)
    }
}

impl DataError {
    /// Returns the error for a file that does not have the expected format.
    pub(crate) fn format(file: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self::Format {
            file: file.into(),
            problem: problem.to_string(),
        }
    }

    /// Returns the error for an invalid key of the run file.
    pub(crate) fn schema(key: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self::Schema {
            key: key.into(),
            problem: problem.to_string(),
        }
    }

    /// Returns the error for an invalid address with wildcards.
    pub(crate) fn pattern(pattern: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self::Pattern {
            pattern: pattern.into(),
            problem: problem.to_string(),
        }
    }

    /// Returns how the caller can recover: retry after a timeout, as the store states, and abort otherwise.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Store(source) => source.recovery(),
            _ => Recovery::Abort,
        }
    }
}
