//! [`StartError`]: the reason that a run does not start.

/// The reason that a run does not start.
pub(crate) enum StartError {
    /// An error that the user has to resolve.
    Invalid(String),
    /// There is nothing to train; the message is a result, not an error.
    Finished(String),
}

impl From<String> for StartError {
    fn from(message: String) -> Self {
        Self::Invalid(message)
    }
}
