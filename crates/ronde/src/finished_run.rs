//! [`FinishedRun`]: the end of a run whose model is in the folder of the run.

use std::path::{Path, PathBuf};

use ronde_train::training::TrainingResult;

/// The end of a run whose model is in the folder of the run only: see [`crate::Trainer::train_to_folder`].
#[derive(Debug, Clone)]
pub struct FinishedRun {
    pub(crate) trained: TrainingResult,
    pub(crate) is_first: bool,
    pub(crate) folder: PathBuf,
}

impl FinishedRun {
    /// Returns the result of the training.
    #[must_use]
    pub fn summary(&self) -> &TrainingResult {
        &self.trained
    }

    /// Returns whether this is rank 0 at the end of the run, which reports for all ranks.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// Returns the folder in which rank 0 has written the model; [`ronde_saved_model::SavedModel::open`] reads it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
