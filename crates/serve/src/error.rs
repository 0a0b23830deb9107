//! [`ServeError`]: errors of predictions.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use ronde_core::Recovery;
use ronde_data::DataError;
use ronde_engine::EngineError;
use ronde_saved_model::ModelError;

/// An error of computing or writing predictions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A saved model cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model cannot compute.
    #[error("cannot compute predictions: {0}")]
    Engine(#[from] EngineError),
    /// Samples cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The outputs of a model do not have the expected number of values.
    #[error(
        "cannot interpret the outputs of the model: it has {found} outputs for each sample, expected {expected}"
    )]
    OutputCount {
        /// The number of outputs of a sample.
        found: usize,
        /// A description of the expected number.
        expected: String,
    },
    /// The samples of a data set do not fit the model.
    #[error(
        "cannot predict samples of shape {found:?} with {found_classes} classes or values: the model was trained on \
         shape {expected:?} with {expected_classes}"
    )]
    Samples {
        /// The shape of the data set's samples.
        found: Vec<usize>,
        /// The number of classes or values of the data set.
        found_classes: u32,
        /// The shape of the model's input.
        expected: Vec<usize>,
        /// The number of classes or values of the model.
        expected_classes: u32,
    },
    /// The address of a server cannot be used.
    #[error("cannot listen at {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        cause: io::Error,
    },
    /// A newer model cannot replace the served one.
    #[error(
        "cannot serve the newer model: it is for samples of shape {shape:?} with {classes} classes or values, but requests are \
         for shape {expected_shape:?} with {expected_classes}"
    )]
    OtherModel {
        /// The shape of the newer model's samples.
        shape: Vec<usize>,
        /// The number of its classes or values.
        classes: u32,
        /// The shape of the served model's samples.
        expected_shape: Vec<usize>,
        /// The number of its classes or values.
        expected_classes: u32,
    },
    /// A newer model has other names of classes or columns than the served one.
    #[error(
        "the newer model has other classes or columns than the served one, or has them in another order"
    )]
    OtherNames,
    /// The system refuses a thread of a server.
    #[error("cannot start the server: {cause}")]
    Start {
        /// The operating system's error.
        cause: io::Error,
    },
    /// A setting of the generation of text is invalid.
    #[error("invalid {setting} `{found}`: expected {expected}")]
    Generation {
        /// The setting.
        setting: &'static str,
        /// Its value.
        found: String,
        /// A description of the valid values.
        expected: &'static str,
    },
    /// A prompt cannot be used.
    #[error(
        "cannot use the prompts in {}: {}{problem}", .path.display(),
        .line.map_or_else(String::new, |line| format!("line {line}: "))
    )]
    Prompt {
        /// The file.
        path: PathBuf,
        /// The line, from 1; `None`: the whole file.
        line: Option<u64>,
        /// The cause.
        problem: String,
    },
    /// The model does not generate texts from the given samples.
    #[error(
        "cannot generate text with a model of kind `{kind}` from these samples: expected `gpt` with prompts, or `transformer`"
    )]
    NoText {
        /// The kind of the model.
        kind: &'static str,
    },
    /// The data of a translating model does not have the start of a translation.
    #[error(
        "cannot translate prompts: the data set does not define the token that begins a translation\n  \
         help: predict a data set, whose samples have it"
    )]
    NoStart,
    /// The scores of the next token have no greatest finite value.
    #[error("cannot choose the next token: the outputs of the model are not finite numbers")]
    TokenScores,
    /// Predictions cannot be written in the format of the output.
    #[error("cannot write predictions: {cause}")]
    Encode {
        /// The cause.
        cause: io::Error,
    },
    /// This build cannot write the format of the output.
    #[error("cannot write predictions: this build does not write {format}")]
    NotBuilt {
        /// The format.
        format: &'static str,
    },
    /// The name of an output does not name a format.
    #[error("cannot write predictions to {}: {problem}", .path.display())]
    OutputFile {
        /// The output.
        path: PathBuf,
        /// The cause, with the valid values.
        problem: String,
    },
    /// The folder of an output has the parts of another job.
    #[error(
        "cannot continue the predictions in {}: {difference}\n  \
         help: pass `--force` to start again, or write to another file", .path.display()
    )]
    OtherParts {
        /// The folder.
        path: PathBuf,
        /// The first difference.
        difference: String,
    },
    /// More samples cannot be used than the data set allows, or none can.
    #[error(
        "cannot write predictions: {skipped} of {samples} samples are bad records, such as {first}\n  \
         help: repair the records, or raise `data.bad_record_limit`"
    )]
    TooManySkipped {
        /// The number of skipped samples.
        skipped: usize,
        /// The number of samples.
        samples: u64,
        /// The first bad record.
        first: String,
    },
    /// Another command writes the same output.
    #[error("cannot use {}: another command that writes this output is running", .path.display())]
    PartsInUse {
        /// The folder.
        path: PathBuf,
    },
    /// A part of the output is missing or has other contents than its record.
    #[error(
        "cannot use {}: it is damaged\n  help: run the same command again; it computes this part again",
        .path.display()
    )]
    DamagedPart {
        /// The part.
        path: PathBuf,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", .path.display())]
    File {
        /// `"read"`, `"write"`, `"create"`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl ServeError {
    pub(crate) fn file(action: &'static str, path: &std::path::Path, source: io::Error) -> Self {
        Self::File {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Returns how to recover from the error: none is repaired by a retry.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }
}
