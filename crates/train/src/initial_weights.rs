//! The initial weights of a run that a file provides: `model.init`.

use std::path::{Path, PathBuf};

use ronde_core::layout::StateLayout;
use ronde_engine::ModelConfig;
use ronde_saved_model::{
    InitialWeights, ModelError, ModelManifest, TensorExclusions, TensorProblem, WeightFile,
};

use crate::config::StartSection;
use crate::error::TrainError;
use crate::plan::Plan;

/// The file of `model.init`.
#[derive(Debug, Clone)]
pub struct InitialWeightFile {
    path: PathBuf,
    /// The tensors that are not loaded.
    exclusions: TensorExclusions,
    /// The model, whose tensors may have other names in the file; absent for a user's own model.
    model: Option<ModelConfig>,
}

impl InitialWeightFile {
    /// Returns the file that a run file names; `None` if it names none. A relative path is resolved against `base`; `model`
    /// is absent for a user's own model.
    #[must_use]
    pub fn of(section: &StartSection, base: &Path, model: Option<&ModelConfig>) -> Option<Self> {
        let path = section.init.as_ref()?;
        Some(Self {
            path: base.join(path),
            exclusions: TensorExclusions {
                drawn: section.init_new.clone(),
                ignored: section.init_ignore.clone(),
            },
            model: model.cloned(),
        })
    }

    /// Reads the file and matches it with the tensors of a model.
    ///
    /// # Errors
    /// The file cannot be read, the manifest beside it has a version that is not supported, or its tensors are not those of
    /// the model.
    pub fn read(&self, layout: &StateLayout) -> Result<InitialWeights, TrainError> {
        // The path may be on a shared folder that is mounted late, so it is examined when it is read.
        let path = InitialWeights::file_of(&self.path);
        ModelManifest::check_version_beside(&path)
            .and_then(|()| WeightFile::read(&path))
            .and_then(|file| {
                InitialWeights::new(file, self.model.as_ref(), layout, &self.exclusions)
            })
            .map_err(impossible)
    }
}

fn impossible(error: ModelError) -> TrainError {
    let message = error.to_string();
    if let Some((problem, hint)) = message.split_once("\n  help: ") {
        return TrainError::Impossible {
            problem: problem.to_owned(),
            hint: hint.to_owned(),
        };
    }
    let hint = match error {
        ModelError::Tensors { problems, .. } => hint_for(&problems),
        ModelError::Pattern { owner, .. } => match owner {
            "the file" => "change model.init_ignore".to_owned(),
            _ => "change model.init_new".to_owned(),
        },
        _ => {
            "set model.init to a safetensors file or the folder of a run; relative paths start at the run file, and the \
             hosts of the command and of rank 0 need the file"
                .to_owned()
        }
    };
    TrainError::Impossible {
        problem: message,
        hint,
    }
}

/// Returns the remedies for tensors that do not fit, one for each kind of problem.
fn hint_for(problems: &[TensorProblem]) -> String {
    let mut hints = Vec::new();
    for problem in problems {
        let hint = match problem {
            TensorProblem::NotFinite { .. } => {
                "use the weights of a training that has not diverged, or restore the file from a copy".to_owned()
            }
            TensorProblem::Format { .. } => {
                "convert tensors of whole numbers or of quantised values to F32".to_owned()
            }
            TensorProblem::Differs { name, .. } => format!(
                "if the file has an output layer of its own, set model.tied = false; otherwise choose one of the tensors, and \
                 leave out the other one: model.init_ignore = [\"{name}\"]"
            ),
            TensorProblem::Unknown { .. } => {
                "if the model is the right one, list tensors of the file that it does not need in model.init_ignore: \
                 init_ignore = [\"classifier.*\"]"
                    .to_owned()
            }
            _ => "list tensors that are not in the file, such as a new head, in model.init_new: \
                  init_new = [\"head.*\"]"
                .to_owned(),
        };
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    hints.join("; ")
}

impl Plan {
    /// Puts the hash of the initial weights into the identity, instead of the name of their file.
    pub fn bind_initial_weights(&mut self, blake3: &str) {
        self.identity.set("model.init", format!("blake3:{blake3}"));
        let start = &self.config.model.start;
        for (key, patterns) in [
            ("model.init_new", &start.init_new),
            ("model.init_ignore", &start.init_ignore),
        ] {
            if !patterns.is_empty() {
                self.identity.set(key, format!("{patterns:?}"));
            }
        }
    }
}
