//! [`ModelError`]: errors of reading, writing and converting saved models.

use std::fmt;
use std::io;
use std::path::PathBuf;

use ronde_core::Recovery;
use ronde_engine::EngineError;

/// The maximum number of tensors that a message names.
const NAMED_MAX: usize = 8;

/// An error of reading, writing or converting a saved model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", .path.display())]
    File {
        /// `"read"`, `"write"`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A path is neither a folder nor a file of a saved model.
    #[error(
        "cannot find a model at {}\n  \
         help: pass the folder of a finished run, such as runs/digits, or its model.safetensors",
        .path.display()
    )]
    NoModel {
        /// The path.
        path: PathBuf,
    },
    /// A file is not what its name promises: it is damaged, cut off, or of another format.
    #[error("cannot read {}: {problem}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem, with the numbers.
        problem: String,
    },
    /// The manifest was written by a newer release.
    #[error(
        "cannot read {}: its format version is {found}, and this release of ronde supports up to version {supported}\n  \
         help: install the release that saved the model, or a newer one",
        .path.display()
    )]
    Newer {
        /// The manifest.
        path: PathBuf,
        /// The version in the manifest.
        found: u32,
        /// The newest version that this release reads.
        supported: u32,
    },
    /// The weights are not those that the manifest describes.
    #[error(
        "cannot use {}: its BLAKE3 hash is {found}, and {} expects {expected}\n  \
         help: restore both files from one copy; the weights are damaged or belong to another model",
        .path.display(), .manifest.display()
    )]
    Hash {
        /// The weights.
        path: PathBuf,
        /// The manifest.
        manifest: PathBuf,
        /// The hash of the weights.
        found: String,
        /// The hash in the manifest.
        expected: String,
    },
    /// The tensors of a file do not fit the model.
    #[error("cannot load the weights of {} into the model: {}", .path.display(), listed(.problems))]
    Tensors {
        /// The file with the tensors.
        path: PathBuf,
        /// Every tensor that does not fit.
        problems: Vec<TensorProblem>,
    },
    /// A library has no module like the model.
    #[error(
        "cannot use the names of {naming}: it has no model like `{model}`\n  \
         help: pass `--names ronde`, or leave `--names` out"
    )]
    NoCounterpart {
        /// The kind of the model.
        model: &'static str,
        /// The naming.
        naming: &'static str,
    },
    /// The destination of an export cannot be written.
    #[error("cannot write the exported model: {0}")]
    Write(io::Error),
    /// The model cannot be written in a format.
    #[error("cannot export the model as {format}: {problem}")]
    NotExportable {
        /// The format.
        format: &'static str,
        /// The problem, with the numbers.
        problem: String,
    },
    /// No tensor of a file has a name of the model.
    #[error(
        "cannot load the weights of {} into the model: no tensor has a name that the model uses: the file has {found}; the \
         model has {expected}",
        .path.display()
    )]
    ForeignNames {
        /// The file.
        path: PathBuf,
        /// The first names in the file.
        found: String,
        /// The first names of the model.
        expected: String,
    },
    /// A pattern selects no tensor.
    #[error("invalid pattern `{pattern}` of tensors that are not loaded: {owner} has {expected}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// `"the model"` or `"the file"`.
        owner: &'static str,
        /// The names of the model or the file.
        expected: String,
    },
    /// The model was defined by a program, so this one cannot build it.
    #[error(
        "cannot build the model of {}: it is not a built-in model\n  \
         help: build it in the program that defines it, and load the weights with `SavedModel::load_into`",
        .path.display()
    )]
    OwnModel {
        /// The manifest.
        path: PathBuf,
    },
    /// The model cannot be built.
    #[error("cannot build the model of {}: {source}", .path.display())]
    Engine {
        /// The manifest.
        path: PathBuf,
        /// The engine's error.
        source: EngineError,
    },
}

impl ModelError {
    /// Returns how to recover from the error: none is repaired by a retry.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }

    pub(crate) fn damaged(path: &std::path::Path, problem: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }
}

/// A tensor that does not fit a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorProblem {
    /// The model has a tensor that the file lacks.
    Missing {
        /// The name.
        name: String,
    },
    /// The file has a tensor that the model lacks.
    Unknown {
        /// The name.
        name: String,
    },
    /// The file has two tensors with different values for one of the model.
    Differs {
        /// The name.
        name: String,
        /// The tensor from which the model would take its values.
        from: String,
    },
    /// The shapes differ.
    Shape {
        /// The name.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape in the model.
        expected: Vec<usize>,
    },
    /// The file has values of a type that is not a floating-point format.
    Format {
        /// The name.
        name: String,
        /// The type in the file.
        found: String,
    },
    /// The file has values that are infinite or not a number.
    NotFinite {
        /// The name.
        name: String,
        /// The number of such values.
        count: usize,
    },
}

impl fmt::Display for TensorProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name } => write!(f, "`{name}` is missing"),
            Self::Unknown { name } => write!(f, "the model has no tensor `{name}`"),
            Self::Differs { name, from } => write!(
                f,
                "`{name}` has other values than `{from}`, and the model has one tensor for both"
            ),
            Self::Shape {
                name,
                found,
                expected,
            } => write!(
                f,
                "`{name}` has shape {found:?}, and the model expects {expected:?}"
            ),
            Self::Format { name, found } => write!(
                f,
                "`{name}` has values of type {found}; expected F32, F16, BF16 or F64"
            ),
            Self::NotFinite { name, count } => write!(
                f,
                "`{name}` has values that are infinite or not a number: {count}"
            ),
        }
    }
}

fn listed(problems: &[TensorProblem]) -> String {
    let shown = problems.iter().take(NAMED_MAX).map(ToString::to_string);
    let mut text = shown.collect::<Vec<_>>().join("; ");
    if let Some(more) = problems.len().checked_sub(NAMED_MAX).filter(|&n| n > 0) {
        text.push_str(&format!("; and {more} more"));
    }
    text
}
