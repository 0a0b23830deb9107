//! [`ElasticError`]: what this crate refuses.

use ronde_core::Recovery;

/// Why settings or a recovery are impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElasticError {
    /// Settings that contradict themselves.
    #[error("{setting}: {problem}")]
    Settings {
        /// Which setting, by its name in [`crate::Settings`].
        setting: &'static str,
        /// What is wrong, with the numbers.
        problem: String,
    },
    /// A generation was formed in which nobody has a complete state, and it may not begin from a
    /// checkpoint.
    #[error("none of the {members} members holds the state, and the generation may not begin anew")]
    NoState {
        /// Members of the generation.
        members: usize,
    },
}

impl ElasticError {
    /// What to do about it.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Settings { .. } => Recovery::Abort,
            Self::NoState { .. } => Recovery::Rejoin,
        }
    }
}
