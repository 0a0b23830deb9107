//! [`Problem`]: one thing that is wrong with a run, by the path of the value that it is about.

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The run cannot start.
    Error,
    /// The run can start, but not as its author may think.
    Notice,
}

/// Something wrong with a value of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Whether it stops the run.
    pub severity: Severity,
    /// Dotted path of the value: `train.global_batch_size`. Empty for the whole run.
    pub path: String,
    /// What is wrong, with the numbers.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Problem {
    /// A problem that stops the run.
    #[must_use]
    pub fn error(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            path: path.into(),
            message: message.into(),
            hint: None,
        }
    }

    /// Something that the author of the run should know.
    #[must_use]
    pub fn notice(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Notice,
            ..Self::error(path, message)
        }
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }
}
