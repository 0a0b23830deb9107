//! [`ConfigProblem`]: an error or a notice about one value of a run.

/// The severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The run cannot start.
    Error,
    /// The run can start, but may behave unexpectedly.
    Notice,
}

/// An error or a notice about a value of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The severity.
    pub severity: Severity,
    /// The dotted path of the value: `train.global_batch_size`. Empty for the whole run.
    pub path: String,
    /// The message, with the values.
    pub message: String,
    /// The next action for the user.
    pub hint: Option<String>,
}

impl ConfigProblem {
    /// Creates a problem that stops the run.
    #[must_use]
    pub fn error(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            path: path.into(),
            message: message.into(),
            hint: None,
        }
    }

    /// Creates a notice.
    #[must_use]
    pub fn notice(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Notice,
            ..Self::error(path, message)
        }
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }
}
