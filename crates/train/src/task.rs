//! [`Task`]: what the command hands to each worker of a run, through the supervisor.

use std::path::PathBuf;

use ronde_core::FormatHeader;
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::config::{DEFAULT_RUN_FILE, Document, RunConfig};

/// The resolved run and where relative paths start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    header: FormatHeader,
    run: String,
    /// Folder that relative paths of data files start from: the run file's.
    pub base: PathBuf,
    /// Folder of the results, absolute.
    pub output: PathBuf,
    /// Whether the run goes on from a checkpoint.
    #[serde(default)]
    pub resumes: bool,
}

impl Task {
    /// A task for a resolved run.
    ///
    /// # Errors
    /// The run cannot be written as a run file.
    pub fn new(config: &RunConfig, base: PathBuf, output: PathBuf) -> Result<Self, TrainError> {
        Ok(Self {
            header: FormatHeader::of(FormatHeader::RUN),
            run: config.to_toml()?,
            base,
            output,
            resumes: false,
        })
    }

    /// The text that travels to the workers.
    ///
    /// # Panics
    /// Never: all parts are text.
    #[must_use]
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("a task is text and paths")
    }

    /// Reads what [`Task::encode`] wrote.
    ///
    /// # Errors
    /// Text of another version or none at all.
    pub fn decode(text: &str) -> Result<(Self, RunConfig), TrainError> {
        let broken = |problem: String| TrainError::BrokenTask { problem };
        let task: Self = serde_json::from_str(text).map_err(|error| broken(error.to_string()))?;
        task.header.check(FormatHeader::RUN).map_err(broken)?;
        let (config, _) = Document::load(&task.run, "task", &[], &[])
            .map_err(|error| broken(error.render(false)))?;
        Ok((task, config))
    }
}

impl RunConfig {
    /// The run of the embedded example: to start from and change.
    ///
    /// # Panics
    /// Never: a test reads the example.
    #[must_use]
    pub fn example() -> Self {
        match Document::load(DEFAULT_RUN_FILE, "the embedded example", &[], &[]) {
            Ok((config, _)) => config,
            Err(error) => panic!("the embedded example is wrong: {}", error.render(false)),
        }
    }
}
