//! [`SubmitError`]: the reason that a job cannot be placed, found or reached.

use std::path::{Path, PathBuf};

use ronde_core::Recovery;

/// Errors of jobs and targets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// A request that is not valid: a name, a target, a list of hosts, a number of workers.
    #[error("{problem}\n  help: {help}")]
    Invalid {
        /// The request and its problem.
        problem: String,
        /// The next action.
        help: String,
    },
    /// A file or folder of this host cannot be used.
    #[error("cannot {action} {}: {cause}", path.display())]
    File {
        /// The verb: `read`, `write`, `create`, `remove`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// A record or another file of ronde has invalid contents.
    #[error("cannot read {}: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A host cannot be reached or cannot run the job.
    #[error("cannot use host `{host}`: {problem}{}", help.as_ref().map(|help| format!("\n  help: {help}")).unwrap_or_default())]
    Host {
        /// The host as the user named it.
        host: String,
        /// What failed, with the output of the tool.
        problem: String,
        /// The next action, if it is known.
        help: Option<String>,
        /// Whether the host may answer later.
        is_temporary: bool,
    },
    /// A program of this machine, such as `ssh` or `sbatch`, cannot be started or failed.
    #[error("cannot run `{program}`: {problem}")]
    Program {
        /// Its name.
        program: String,
        /// What failed.
        problem: String,
    },
    /// A job could not be placed, and may nevertheless run: a host or a scheduler did not answer.
    #[error(
        "{problem}\n  help: job `{job}` may run nevertheless; `ronde status {job}` shows it, and `ronde cancel {job}` ends it"
    )]
    MayRun {
        /// The job's name.
        job: String,
        /// What failed.
        problem: String,
    },
    /// The job was cancelled while it was placed.
    #[error("job `{job}` was cancelled while it was submitted")]
    Cancelled {
        /// The job's name.
        job: String,
    },
    /// The job ended before it was under way.
    #[error("job `{job}` ended with exit code {code} before its first step:\n{output}")]
    EndedEarly {
        /// The job's name.
        job: String,
        /// The exit code of its launcher.
        code: i32,
        /// The end of its output.
        output: String,
    },
}

impl SubmitError {
    /// Returns the recommended recovery.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Host {
                is_temporary: true, ..
            } => Recovery::Retry,
            _ => Recovery::Abort,
        }
    }

    pub(crate) fn invalid(problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Invalid {
            problem: problem.into(),
            help: help.into(),
        }
    }

    pub(crate) fn file(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |cause| Self::File {
            action,
            path,
            cause,
        }
    }

    pub(crate) fn damaged(path: &Path, problem: impl ToString) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }
}
