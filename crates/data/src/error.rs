//! [`DataError`]: why samples could not be had.

use std::path::PathBuf;

use ronde_core::Recovery;
use ronde_store::StoreError;

use crate::format::BadRecord;

/// Why a data set could not be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file could not be opened or read.
    #[error("cannot read {}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// A folder or a bucket could not be opened or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record that cannot be used.
    #[error("{0}")]
    Record(BadRecord),
    /// A file that is not of the format that it is read as.
    #[error("{file}: {problem}")]
    Format {
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A description of features, label or format that cannot be.
    #[error("data.{key}: {problem}")]
    Schema {
        /// The key of the run file.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Something that this build cannot do.
    #[error("{what} is not part of this build; build ronde with `--features full`")]
    NotBuilt {
        /// What was asked for.
        what: String,
    },
    /// Files that cannot be packed into shards.
    #[error("{what}: {problem}")]
    Pack {
        /// A file, a place or a setting.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An index cannot be kept.
    #[error("{operation} {}: {cause}", path.display())]
    Index {
        /// What was tried.
        operation: &'static str,
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// Files without a single sample.
    #[error("there are no samples in {addresses}")]
    Empty {
        /// The addresses.
        addresses: String,
    },
    /// All samples, or none, are kept apart to measure on.
    #[error("validation = {share} leaves nothing of {samples} samples to train or to measure on")]
    Validation {
        /// The share.
        share: f64,
        /// All samples.
        samples: u64,
    },
    /// An address with wildcards that is none.
    #[error("{pattern:?} stands for no files: {problem}")]
    Pattern {
        /// The address, as it was written.
        pattern: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An address that stands for no file.
    #[error("no file is meant by {pattern:?}: {there}")]
    NoFiles {
        /// The address, as it was written.
        pattern: String,
        /// What is there instead.
        there: String,
    },
    /// Files that an address names are not there.
    #[error("{count} of the files of {pattern:?} are not there: {names}")]
    MissingFiles {
        /// The address, as it was written.
        pattern: String,
        /// How many.
        count: usize,
        /// The first of them.
        names: String,
    },
    /// Settings of a data cache that make no sense.
    #[error("the data cache: {problem}")]
    CacheSettings {
        /// What is wrong with them.
        problem: String,
    },
    /// Files were to be downloaded first that are more than a data cache may hold.
    #[error(
        "{bytes} bytes are to be downloaded, but the data cache has room for {room} (its limit is {bytes_max}, of which a \
         tenth stays free): raise the limit, or use data.cache = \"stream\""
    )]
    CacheTooSmall {
        /// Bytes of the files.
        bytes: u64,
        /// Bytes that fit.
        room: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// A file holds something that is no sample.
    #[error("{} line {line}, column {column}: {problem}, found {value:?}", path.display())]
    Cell {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Column (field) of the line, from 1.
        column: usize,
        /// The text of the field, shortened.
        value: String,
        /// What was expected.
        problem: String,
    },
    /// A file has no sample.
    #[error("{} has no sample", path.display())]
    NoSamples {
        /// The file.
        path: PathBuf,
    },
    /// A file holds more than this loader keeps in memory.
    #[error("{} line {line}: more than {limit} {what}", path.display())]
    Limit {
        /// The file.
        path: PathBuf,
        /// Line at which the limit was reached, from 1.
        line: u64,
        /// The limit.
        limit: u64,
        /// What is limited.
        what: &'static str,
    },
    /// A shape that no sample can have.
    #[error(
        "shape {shape:?} is not possible: a sample has 1 to {elements_max} elements and at most {axes_max} axes"
    )]
    Shape {
        /// The shape.
        shape: Vec<usize>,
        /// Most elements.
        elements_max: usize,
        /// Most axes.
        axes_max: usize,
    },
    /// A count of classes that is not possible.
    #[error("{classes} classes are not possible: 1 to {classes_max} are")]
    Classes {
        /// The count.
        classes: u32,
        /// Most classes.
        classes_max: u32,
    },
    /// A number that features cannot be divided by.
    #[error("features cannot be divided by scale = {scale}")]
    Scale {
        /// The number.
        scale: f32,
    },
    /// A made-up set has too many samples, or none to train on.
    #[error("{samples} samples and {test_samples} test samples are not possible")]
    SampleCount {
        /// Samples to train on.
        samples: u64,
        /// Samples to measure on.
        test_samples: u64,
    },
    /// Features, labels and shape of a set in memory do not fit together.
    #[error("{features} features, {labels} labels and {elements} features a sample do not fit")]
    Lengths {
        /// Count of features.
        features: usize,
        /// Count of labels.
        labels: usize,
        /// Elements of one sample.
        elements: usize,
    },
    /// A label of a set in memory is not below the count of classes.
    #[error("sample {sample} has label {label}, but there are {classes} classes")]
    Label {
        /// The sample.
        sample: u64,
        /// Its label.
        label: u32,
        /// Count of classes.
        classes: u32,
    },
    /// A sample that is not in the set.
    #[error("sample {sample} of a data set of {samples}")]
    NoSuchSample {
        /// The sample that was asked for.
        sample: u64,
        /// Count of samples.
        samples: u64,
    },
    /// A buffer of the wrong length was given for a sample.
    #[error("a buffer of {given} elements for a sample of {needed}")]
    BufferLength {
        /// Length of the buffer.
        given: usize,
        /// Elements of a sample.
        needed: usize,
    },
    /// A plan of batches was made for a set of another size.
    #[error("the batches are planned for {planned} samples, the data set has {samples}")]
    PlanMismatch {
        /// Samples of the plan.
        planned: u64,
        /// Samples of the set.
        samples: u64,
    },
    /// Shards were asked for that the plan does not have.
    #[error("shards {start}..{end} of a plan with {shards} logical shards")]
    NoSuchShards {
        /// First shard asked for.
        start: u32,
        /// End of the shards asked for.
        end: u32,
        /// Shards of the plan.
        shards: u32,
    },
    /// The prefetch thread could not be started.
    #[error("cannot start the prefetch thread: {cause}")]
    Thread {
        /// What the system said.
        cause: std::io::Error,
    },
    /// The prefetch thread ended before step `step`: after an earlier error, or a panic of a set.
    #[error("the prefetch thread ended before step {step}")]
    LoaderEnded {
        /// The step that was due.
        step: u64,
    },
}

impl DataError {
    /// What can be done about it: nothing here, as data do not come back by asking again.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Io { cause, .. } if cause.kind() == std::io::ErrorKind::TimedOut => {
                Recovery::Retry
            }
            Self::Store(source) => source.recovery(),
            _ => Recovery::Abort,
        }
    }
}
