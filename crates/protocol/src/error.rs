//! [`ElasticError`]: the errors of this crate.

use ronde_core::Recovery;

/// Reasons why settings are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElasticError {
    /// Settings that contradict each other.
    #[error("invalid setting `{setting}`: {problem}")]
    Settings {
        /// The setting's name in [`crate::Settings`].
        setting: &'static str,
        /// The problem, with the offending numbers.
        problem: String,
    },
}

impl ElasticError {
    /// Returns the recommended recovery.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Settings { .. } => Recovery::Abort,
        }
    }
}
