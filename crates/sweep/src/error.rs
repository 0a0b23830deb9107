//! [`SweepError`]: the problem of a sweep.

use ronde_core::Recovery;

/// An error of a sweep.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// The file is not valid TOML, or has an unknown or missing key.
    #[error("invalid sweep file: {problem}")]
    Syntax {
        /// The problem, with its line.
        problem: String,
    },
    /// A value is not valid.
    #[error("invalid {key} in the sweep file: {problem}")]
    Value {
        /// The key.
        key: String,
        /// The problem.
        problem: String,
    },
    /// The stored state of a sweep belongs to another file.
    #[error("the sweep file has changed since its first run: {what}")]
    Changed {
        /// The difference.
        what: String,
    },
    /// The stored state of a sweep cannot be read.
    #[error("damaged state of a sweep: {problem}")]
    State {
        /// The problem.
        problem: String,
    },
}

impl SweepError {
    /// Returns the recommended recovery: none of these errors ends by waiting.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }

    pub(crate) fn value(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Value {
            key: key.into(),
            problem: problem.into(),
        }
    }
}
