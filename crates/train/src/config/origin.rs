//! [`Origin`]: where a value of a run came from.

use std::fmt;
use std::ops::Range;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The run file.
    File {
        /// Bytes of the value in the text of the file.
        span: Range<usize>,
    },
    /// An environment variable.
    Environment {
        /// Name of the variable.
        name: String,
    },
    /// An argument `--set a.b=c`.
    Set {
        /// The text `a.b=c`.
        text: String,
    },
    /// A flag of the command.
    Flag {
        /// Name of the flag: `--workers`.
        name: String,
    },
}

impl fmt::Display for Origin {
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
