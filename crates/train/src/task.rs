//! [`WorkerTask`]: the task that the command sends to each worker of a run through the supervisor.

use std::path::{Path, PathBuf};

use ronde_core::{FormatHeader, ParentPlan};
use serde::{Deserialize, Serialize};

use crate::config::{DEFAULT_RUN_FILE, Document, RunConfig};
use crate::error::TrainError;

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
    /// The run cannot be written as a run file, or a folder is not valid UTF-8.
    pub fn new(config: &RunConfig, base: PathBuf, output: PathBuf) -> Result<Self, TrainError> {
        text_path(&base)?;
        text_path(&output)?;
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
    /// # Errors
    /// A folder is not valid UTF-8.
    pub fn encode(&self) -> Result<String, TrainError> {
        text_path(&self.base)?;
        text_path(&self.output)?;
        serde_json::to_string(self).map_err(|error| TrainError::BrokenTask {
            problem: error.to_string(),
        })
    }

    /// Decodes the text of [`WorkerTask::encode`].
    ///
    /// # Errors
    /// The text is invalid or of another version.
    pub fn decode(text: &str) -> Result<(Self, RunConfig), TrainError> {
        let broken = |problem: String| TrainError::BrokenTask { problem };
        let task: Self = serde_json::from_str(text).map_err(|error| broken(error.to_string()))?;
        let checked = task.header.check(FormatHeader::RUN);
        checked.map_err(|error| broken(error.to_string()))?;
        let (config, _) = Document::load(&task.run, "task", &[], &[])
            .map_err(|error| broken(error.render(false)))?;
        Ok((task, config))
    }
}

/// Returns a path as text: run files, tasks and checkpoints have paths as text.
///
/// # Errors
/// The path is not valid UTF-8.
pub fn text_path(path: &Path) -> Result<&str, TrainError> {
    path.to_str().ok_or_else(|| TrainError::Impossible {
        problem: format!("cannot use the path {path:?}: it is not valid UTF-8"),
        hint: "rename the folder, or use another one".to_owned(),
    })
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

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn folders_that_are_not_utf8_are_errors() {
        let latin1 = PathBuf::from(OsStr::from_bytes(b"/caf\xe9"));
        let config = RunConfig::example();
        for (base, output) in [
            (latin1.clone(), PathBuf::from("/out")),
            (PathBuf::from("/base"), latin1),
        ] {
            let error = WorkerTask::new(&config, base.clone(), output.clone()).unwrap_err();
            assert!(error.to_string().contains(r#""/caf\xE9""#), "{error}");
            let mut task = WorkerTask::new(&config, "/a".into(), "/b".into()).unwrap();
            assert!(task.encode().is_ok());
            (task.base, task.output) = (base, output);
            assert!(task.encode().is_err());
        }
    }
}
