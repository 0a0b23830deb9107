//! [`StartOrder`]: starts a detached process on this host for a submitter on another one.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::SubmitError;
use crate::job_paths::JobPaths;
use crate::process_folder::{ProcessCommand, ProcessFolder, ProcessState};

/// Time limit for a launcher to begin its run.
const BEGIN_MAX: Duration = Duration::from_secs(60);
/// The word for the file with the token in an order.
pub(super) const TOKEN_WORD: &str = "{token}";

/// A process to start, sent to its host over standard input, because it may have a token.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartOrder {
    /// The folder of the process.
    pub folder: PathBuf,
    /// The command.
    pub command: ProcessCommand,
    /// The join token that an agent needs; `{token}` among the words is the file with it.
    pub token: Option<String>,
    /// The folder of the job whose coordinator this process starts; then the start takes until it listens.
    pub leads: Option<PathBuf>,
    /// Whether that job has a coordinator.
    pub is_elastic: bool,
}

/// The result of a start.
#[derive(Serialize, Deserialize)]
pub struct StartReport {
    /// The state of the process.
    pub state: ProcessState,
    /// The end of its output.
    pub output: String,
    /// The address of the coordinator, if the process has started one.
    pub address: Option<String>,
    /// The join token of the job.
    pub token: Option<String>,
}

impl std::fmt::Debug for StartReport {
    /// Formats everything except the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at {:?}: {}", self.state, self.address, self.output)
    }
}

impl StartOrder {
    /// Starts the process with `program` and waits until it has begun or ended.
    ///
    /// # Errors
    /// The folder cannot be written, or the program cannot be started.
    pub fn execute(&self, program: &Path) -> Result<StartReport, SubmitError> {
        let process = ProcessFolder::new(&self.folder);
        let token_file = self.folder.join("token");
        let word = |word: &String| match word.as_str() {
            TOKEN_WORD => token_file.display().to_string(),
            word => word.to_owned(),
        };
        process.prepare(&ProcessCommand {
            arguments: self.command.arguments.iter().map(word).collect(),
            directory: self.command.directory.clone(),
        })?;
        if let Some(token) = &self.token {
            write_secret(&token_file, token)?;
        }
        process.start(program)?;
        let mut report = StartReport {
            state: process.state()?,
            output: String::new(),
            address: None,
            token: None,
        };
        if let Some(folder) = &self.leads {
            let paths = JobPaths::new(folder);
            ronde_clock::wait_until(BEGIN_MAX, || {
                report.state = process.state().unwrap_or(ProcessState::Lost);
                if self.is_elastic {
                    report.address = paths.coordinator(0);
                }
                let has_begun = match self.is_elastic {
                    true => report.address.is_some(),
                    false => paths.has_begun(false),
                };
                has_begun || !matches!(report.state, ProcessState::Running { .. })
            });
            report.token = std::fs::read_to_string(paths.token()).ok();
        }
        report.output = process.last_output();
        Ok(report)
    }
}

/// Writes a file that only its owner may read.
fn write_secret(path: &Path, text: &str) -> Result<(), SubmitError> {
    let write = || {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(path)?.write_all(text.as_bytes())
    };
    write().map_err(SubmitError::file("write", path))
}
