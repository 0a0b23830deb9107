//! The initial weights of a run that a file provides: `model.init`.

use std::path::Path;

use ronde_core::layout::StateLayout;
use ronde_engine::ModelConfig;
use ronde_model::{InitialWeights, ModelError, WeightFile};

use crate::config::StartSection;
use crate::{Plan, TrainError};

/// Reads the file of `model.init` and matches it with the tensors of a model; `None` if there is no such file. A relative
/// path is resolved against `base`; `model` is absent for a user's own model. Every worker reads the file, and the plan
/// has its hash, so all workers start with the same bits.
///
/// # Errors
/// The file cannot be read, or its tensors are not those of the model.
pub fn read(
    section: &StartSection,
    base: &Path,
    model: Option<&ModelConfig>,
    layout: &StateLayout,
) -> Result<Option<InitialWeights>, TrainError> {
    let Some(path) = &section.init else {
        return Ok(None);
    };
    let impossible = |error: ModelError| {
        TrainError::Impossible {
        hint: match error {
            ModelError::Tensors { .. } => {
                "list tensors that are not in the file, such as a new head, in model.init_new: \
                 init_new = [\"head.*\"]"
            }
            ModelError::Pattern { .. } => "change model.init_new",
            _ => {
                "set model.init to a safetensors file or the folder of a run; relative paths start at the run file, and \
                 every host needs the file at the same path, such as in a shared folder"
            }
        }
        .to_owned(),
        problem: error.to_string(),
    }
    };
    let path = InitialWeights::file_of(&base.join(path));
    let file = WeightFile::read(&path).map_err(impossible)?;
    let weights = InitialWeights::new(file, model, layout, &section.init_new);
    weights.map(Some).map_err(impossible)
}

impl Plan {
    /// Puts the hash of the initial weights into the identity, in place of the name of their file.
    pub fn bind_initial_weights(&mut self, weights: &InitialWeights) {
        self.identity
            .set("model.init", format!("blake3:{}", weights.blake3()));
        let drawn = &self.config.model.start.init_new;
        if !drawn.is_empty() {
            self.identity.set("model.init_new", format!("{drawn:?}"));
        }
    }
}
