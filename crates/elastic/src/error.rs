//! [`ElasticError`]: the errors of this crate.

use ronde_core::Recovery;

/// Reasons why settings or a recovery are invalid.
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
    /// A generation in which no member has a complete state, and which may not start from a
    /// checkpoint.
    #[error(
        "none of the {members} members holds the state, and the generation may not start from a \
         checkpoint"
    )]
    NoState {
        /// Number of members in the generation.
        members: usize,
    },
}

impl ElasticError {
    /// Returns the recommended recovery.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Settings { .. } => Recovery::Abort,
            Self::NoState { .. } => Recovery::Rejoin,
        }
    }
}
