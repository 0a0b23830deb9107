//! [`FinishedModel`]: the model of a finished run, on a worker that has all of it.
//!
//! The rest of the training is dropped, so only the state and the layers stay in memory. For a model that is too large for one
//! worker, `Trainer::train_to_folder` of `ronde` returns another type without weights, so that no method of a model can fail
//! because a rank lacks a part of it.

use std::io;
use std::path::Path;

use ronde_core::{Rank, Shard};
use ronde_engine::{
    Activation, Chain, EngineError, EvaluationSize, LayerExt, LayerSetting, PartPlace,
};
use ronde_parallel::{ModelState, ParallelError, evaluate_guarded};
use ronde_saved_model::{NamedTensor, PublishedModel};

use crate::error::TrainError;
use crate::export::{self, ModelDescription, WholeTensor};
use crate::plan::Plan;
use crate::training::TrainingResult;

/// The model of a finished run, on a worker that has all of it.
pub struct FinishedModel {
    plan: Plan,
    rank: Rank,
    steps: u64,
    chain: Chain,
    state: ModelState,
    /// The tensors that the layers have in parts, joined.
    joined: Vec<(WholeTensor, Vec<f32>)>,
    sample: Vec<usize>,
}

impl FinishedModel {
    /// Creates the model of a run from its layers and its whole state, which the layers share.
    pub(crate) fn new(
        plan: Plan,
        (rank, steps): (Rank, u64),
        (mut chain, state): (Chain, ModelState),
        sample: Vec<usize>,
    ) -> Self {
        chain.set_parts(&PartPlace::all(chain.parts()));
        if let Some(last) = chain.layers_mut().last_mut() {
            last.set(LayerSetting::OutputApart(false));
        }
        for layer in 0..chain.len() {
            state.load_into(&mut chain, layer);
        }
        Self {
            plan,
            rank,
            steps,
            chain,
            joined: export::joined_tensors(&state),
            state,
            sample,
        }
    }

    /// Returns the rank of this worker at the end of the run.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns parameters and buffers in one flat vector, and the ranges of the tensors in it. Layers in parts have a tensor for
    /// each part.
    #[must_use]
    pub fn state(&self) -> &ModelState {
        &self.state
    }

    /// Returns parameters and buffers by name, each of them whole. Cost: none.
    pub fn tensors(&self) -> impl Iterator<Item = NamedTensor<'_>> {
        let joined = self.joined.iter();
        let joined = joined.map(|(tensor, values)| tensor.named(values));
        export::tensors_without_parts(&self.state).chain(joined)
    }

    /// Returns the outputs of the model for samples in evaluation mode; `shape` is `[samples, ..]`.
    ///
    /// # Errors
    /// When the shape is not that of the samples of the run, or the model failed.
    pub fn predict(
        &mut self,
        shape: &[usize],
        features: Vec<f32>,
    ) -> Result<Activation, TrainError> {
        let expected = &self.sample;
        let fits = shape.get(1..) == Some(expected.as_slice())
            && shape
                .iter()
                .try_fold(1, |all: usize, len| all.checked_mul(*len))
                == Some(features.len());
        if !fits {
            return Err(TrainError::Model(EngineError::Shape {
                layer: "0".to_owned(),
                what: "input",
                got: shape.to_vec(),
                expected: format!(
                    "[samples, ..] with samples of shape {expected:?}, for {} features",
                    features.len()
                ),
            }));
        }
        if shape[0] == 0 {
            return Ok(Activation::from_host(&[0], Vec::new()));
        }
        let size = EvaluationSize::of(&self.chain, expected);
        let input = Activation::from_host(shape, features);
        let outputs = size.forward(input, |part| evaluate_guarded(&mut self.chain, part));
        let outputs = outputs.map_err(|source| {
            let shard = Shard(0);
            TrainError::Predict(Box::new(ParallelError::Engine { shard, source }))
        });
        Ok(outputs?.on_host())
    }

    /// Returns the layers with the trained weights.
    #[must_use]
    pub fn into_chain(self) -> Chain {
        self.chain
    }

    /// Returns the blake3 hash of the weights as a safetensors file, 64 hexadecimal digits.
    ///
    /// # Errors
    /// The format does not support a tensor.
    pub fn blake3(&self) -> Result<String, TrainError> {
        let mut hasher = blake3::Hasher::new();
        let written = ronde_saved_model::write_safetensors(self.tensors(), &mut hasher);
        written.map_err(|error: io::Error| TrainError::Serialise {
            problem: error.to_string(),
        })?;
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Writes weights and manifest to a folder; an earlier model is replaced atomically.
    ///
    /// # Errors
    /// A file cannot be written. No incomplete file remains under the final names.
    pub fn save(
        &self,
        folder: &Path,
        model: ModelDescription,
        trained: &TrainingResult,
    ) -> Result<PublishedModel, TrainError> {
        let steps = trained.model_steps(self.steps);
        let manifest = export::manifest(
            folder,
            &self.plan,
            steps,
            model.evaluated(trained, self.steps),
        )?;
        Ok(ronde_saved_model::save(folder, self.tensors(), &manifest)?)
    }
}
