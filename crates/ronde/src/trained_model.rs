//! [`TrainedModel`]: the model of a finished run, for inference in the same process.

use std::path::Path;

use ronde_core::Rank;
use ronde_engine::{Activation, Chain};
use ronde_model::{NamedTensor, PublishedModel};
use ronde_parallel::ModelState;
use ronde_train::export::{self, ModelDescription};
use ronde_train::training::TrainingResult;
use ronde_train::{TrainError, Training};

use crate::Error;

/// The model of a finished run: equal on all ranks.
pub struct TrainedModel {
    training: Training,
    trained: TrainingResult,
    model: ModelDescription,
}

impl TrainedModel {
    pub(crate) fn new(
        training: Training,
        trained: TrainingResult,
        model: ModelDescription,
    ) -> Self {
        Self {
            training,
            trained,
            model,
        }
    }

    /// Returns the result of the training.
    #[must_use]
    pub fn summary(&self) -> &TrainingResult {
        &self.trained
    }

    /// Returns whether this is rank 0 at the end of the run, which reports for all ranks.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.training.rank() == Rank(0)
    }

    /// Returns parameters and buffers in one flat vector, and the ranges of the tensors in it.
    #[must_use]
    pub fn state(&self) -> &ModelState {
        self.training.state()
    }

    /// Returns parameters and buffers by name. Cost: none.
    pub fn tensors(&self) -> impl Iterator<Item = NamedTensor<'_>> {
        export::tensors(self.state())
    }

    /// Returns the parameter or buffer of a name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<NamedTensor<'_>> {
        self.tensors().find(|tensor| tensor.name == name)
    }

    /// Returns the outputs of the model for samples, in evaluation mode: with running statistics and without dropout.
    /// `features` are row-major and have the shape `[samples, ..]`, as the samples of the data set. No other rank is
    /// involved.
    ///
    /// # Errors
    /// When the shape is not that of the samples that the model was trained on, or has another number of features.
    ///
    /// ```no_run
    /// # fn of(mut trained: ronde::TrainedModel, image: Vec<f32>) -> Result<(), ronde::Error> {
    /// let logits = trained.predict(&[1, 1, 8, 8], image)?;
    /// println!("{:?}", logits.as_slice());
    /// # Ok(())
    /// # }
    /// ```
    pub fn predict(&mut self, shape: &[usize], features: Vec<f32>) -> Result<Activation, Error> {
        Ok(self.training.predict(shape, features)?)
    }

    /// Returns the model with the trained weights.
    #[must_use]
    pub fn into_chain(self) -> Chain {
        self.training.into_chain()
    }

    /// Returns the blake3 hash of the weights as a safetensors file, 64 hexadecimal digits. Equal on all ranks.
    ///
    /// # Errors
    /// The format does not support a tensor.
    pub fn blake3(&self) -> Result<String, Error> {
        let mut hasher = blake3::Hasher::new();
        ronde_model::write_safetensors(self.tensors(), &mut hasher).map_err(|error| {
            let problem = error.to_string();
            TrainError::Serialise { problem }
        })?;
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Writes weights and configuration to a folder. Call this on one rank only.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn save(&self, folder: &Path) -> Result<PublishedModel, Error> {
        std::fs::create_dir_all(folder).map_err(|source| TrainError::File {
            action: "create",
            path: folder.to_owned(),
            source,
        })?;
        let steps = self.trained.model_steps(self.training.steps());
        let model = self.model.clone().evaluated(&self.trained);
        Ok(export::save(folder, &self.training, steps, model)?)
    }
}
