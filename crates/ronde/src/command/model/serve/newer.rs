//! [`NewerModels`]: notices that the file of a served model was replaced.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ronde_saved_model::SavedModel;
use ronde_serve::{ModelSource, ServeError, ServedModel};

use super::start;
use crate::command::console::message;
use crate::command::model::model_data::ModelDataArguments;

/// How often a model that cannot be loaded is tried again: it may not be written completely yet.
const ATTEMPTS_MAX: u32 = 5;

/// The time and the length of each file of a model; they change when it is replaced.
type FileStamps = [Option<(SystemTime, u64)>; 2];

/// The newer versions of a saved model, from the same files.
pub(super) struct NewerModels {
    arguments: ModelDataArguments,
    weights: PathBuf,
    /// The hash of the served model.
    blake3: String,
    seen: FileStamps,
    /// The failed attempts to load the present files.
    failures: u32,
}

fn stamps(weights: &Path) -> FileStamps {
    [weights.to_path_buf(), weights.with_extension("json")].map(|path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    })
}

impl NewerModels {
    /// Follows the files of a model that is about to be served.
    pub(super) fn of(arguments: &ModelDataArguments, saved: &SavedModel) -> Self {
        let weights = saved.weights().path().to_path_buf();
        Self {
            arguments: arguments.clone(),
            blake3: saved.manifest().blake3.clone(),
            // They may have been replaced since the model was opened, so the first look opens them once more.
            seen: [None; 2],
            failures: 0,
            weights,
        }
    }

    /// Opens the files, unless they have the served model.
    fn open(&self) -> Result<Option<ServedModel>, String> {
        let data = self.arguments.open_alone(true)?;
        if data.saved.manifest().blake3 == self.blake3 {
            return Ok(None);
        }
        start::served(data).map(Some)
    }
}

impl ModelSource for NewerModels {
    fn newer(&mut self) -> Option<ServedModel> {
        let now = stamps(&self.weights);
        if now == self.seen {
            return None;
        }
        match self.open() {
            Ok(model) => {
                (self.seen, self.failures) = (now, 0);
                model
            }
            Err(problem) => {
                self.failures += 1;
                if self.failures == ATTEMPTS_MAX {
                    (self.seen, self.failures) = (now, 0);
                    let problem = problem.trim_start_matches("error: ");
                    message!(
                        "warning: cannot load the newer model, so the present one stays: {problem}"
                    );
                }
                None
            }
        }
    }

    fn replaced(&mut self, outcome: Result<&str, ServeError>) {
        match outcome {
            Ok(hash) => {
                hash.clone_into(&mut self.blake3);
                message!("serving a newer model: {hash}");
            }
            Err(error) => message!("warning: {error}; the present one stays"),
        }
    }
}
