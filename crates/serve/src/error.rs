//! [`ServeError`]: errors of predictions.

use std::io;
use std::path::PathBuf;

use ronde_core::Recovery;
use ronde_data::DataError;
use ronde_engine::EngineError;
use ronde_model::ModelError;

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
    /// Returns how to recover from the error: none is repaired by a retry.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }
}
