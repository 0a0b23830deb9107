//! [`TrainedModel`]: the model of a finished run, for inference in the same process.

use std::path::Path;

use ronde_core::Rank;
use ronde_engine::{Activation, Chain};
use ronde_parallel::ModelState;
use ronde_saved_model::{NamedTensor, PublishedModel};
use ronde_train::export::ModelDescription;
use ronde_train::training::TrainingResult;
use ronde_train::{FinishedModel, TrainError};

use crate::error::Error;

/// The model of a finished run: equal on all ranks.
pub struct TrainedModel {
    model: FinishedModel,
    trained: TrainingResult,
    description: ModelDescription,
}

impl TrainedModel {
    pub(crate) fn new(
        model: FinishedModel,
        trained: TrainingResult,
        description: ModelDescription,
    ) -> Self {
        Self {
            model,
            trained,
            description,
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
        self.model.rank() == Rank(0)
    }

    /// Returns parameters and buffers in one flat vector, and the ranges of the tensors in it. Layers in parts have a tensor for
    /// each part.
    #[must_use]
    pub fn state(&self) -> &ModelState {
        self.model.state()
    }

    /// Returns parameters and buffers by name, each of them whole. Cost: none.
    pub fn tensors(&self) -> impl Iterator<Item = NamedTensor<'_>> {
        self.model.tensors()
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
        Ok(self.model.predict(shape, features)?)
    }

    /// Returns the model with the trained weights.
    #[must_use]
    pub fn into_chain(self) -> Chain {
        self.model.into_chain()
    }

    /// Returns the blake3 hash of the weights as a safetensors file, 64 hexadecimal digits. Equal on all ranks.
    ///
    /// # Errors
    /// The format does not support a tensor.
    pub fn blake3(&self) -> Result<String, Error> {
        Ok(self.model.blake3()?)
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
        let description = self.description.clone();
        Ok(self.model.save(folder, description, &self.trained)?)
    }
}
