//! [`WorkerTask`]: the task that the command sends to each worker of a run through the supervisor.

use std::path::PathBuf;

use ronde_core::{FormatHeader, ParentPlan};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::config::{DEFAULT_RUN_FILE, Document, RunConfig};

/// A resolved run, its base folder and its output folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerTask {
    header: FormatHeader,
    run: String,
    /// The folder that relative paths of data files are resolved against: that of the run file.
    pub base: PathBuf,
    /// The absolute path of the folder for results.
    pub output: PathBuf,
    /// Whether the run resumes from a checkpoint.
    #[serde(default)]
    pub resumes: bool,
    /// The plans from which the run continues, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lineage: Vec<ParentPlan>,
}

impl WorkerTask {
    /// Creates a task for a resolved run.
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
            lineage: Vec::new(),
        })
    }

    /// Encodes the task as text.
    ///
    /// # Panics
    /// Never, because all parts are text.
    #[must_use]
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("a task is text and paths")
    }

    /// Decodes the text of [`WorkerTask::encode`].
    ///
    /// # Errors
    /// The text is invalid or of another version.
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
    /// Returns the embedded example run, as a starting point.
    ///
    /// # Panics
    /// Never, because a test reads the example.
    #[must_use]
    pub fn example() -> Self {
        match Document::load(DEFAULT_RUN_FILE, "the embedded example", &[], &[]) {
            Ok((config, _)) => config,
            Err(error) => panic!("the embedded example is invalid: {}", error.render(false)),
        }
    }
}
