//! [`ValueOrigin`]: the source of a value of a run.

use std::fmt;
use std::ops::Range;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueOrigin {
    /// The default.
    Default,
    /// The run file.
    File {
        /// The byte range of the value in the file.
        span: Range<usize>,
    },
    /// An environment variable.
    Environment {
        /// The name of the variable.
        name: String,
    },
    /// An argument `--set a.b=c`.
    Set {
        /// The text `a.b=c`.
        text: String,
    },
    /// A flag of the command.
    Flag {
        /// The name of the flag: `--workers`.
        name: String,
    },
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { .. } => f.write_str("run file"),
            Self::Environment { name } => write!(f, "environment {name}"),
            Self::Set { text } => write!(f, "--set {text}"),
            Self::Flag { name } => write!(f, "flag {name}"),
        }
    }
}
