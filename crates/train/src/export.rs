//! Writes the model of a run: its weights, and a manifest with the settings of the plan.

use std::path::Path;

use ronde_core::FormatHeader;
use ronde_model::{BestEvaluation, ModelEvaluation, ModelManifest, NamedTensor, PublishedModel};
use ronde_parallel::ModelState;

use crate::{Plan, TrainError, TrainingResult};

/// Writes weights and manifest into `folder` after a number of steps; an earlier model is replaced atomically.
///
/// # Errors
/// A file cannot be written. No incomplete file remains under the final names.
pub fn save(
    folder: &Path,
    state: &ModelState,
    (plan, steps): (&Plan, u64),
    model: ModelDescription,
) -> Result<PublishedModel, TrainError> {
    let identity = plan.identity.parts();
    let manifest = ModelManifest {
        header: FormatHeader::of(FormatHeader::MODEL),
        run: plan.config.run.name.clone(),
        model: model.config,
        input_shape: model.input_shape,
        classes: model.classes,
        steps,
        plan: plan.identity.hex(),
        identity: identity
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        blake3: String::new(),
        evaluation: model.evaluation,
        best: model.best,
    };
    Ok(ronde_model::save(folder, tensors(state), &manifest)?)
}

/// Returns the tensors of a state by name, as a model is written. Cost: none.
pub fn tensors(state: &ModelState) -> impl Iterator<Item = NamedTensor<'_>> {
    state.tensors().iter().map(|tensor| NamedTensor {
        name: &tensor.entry.name,
        shape: &tensor.entry.shape,
        values: &state.values()[tensor.range.clone()],
    })
}

/// The parts of the model's configuration that are not in the plan.
#[derive(Debug, Clone)]
pub struct ModelDescription {
    /// The configuration of a built-in model.
    pub config: Option<ronde_engine::ModelConfig>,
    /// The shape of one sample.
    pub input_shape: Vec<usize>,
    /// The number of classes.
    pub classes: u32,
    /// The last evaluation.
    pub evaluation: Option<ModelEvaluation>,
    /// The evaluation that chose the model, if one did.
    pub best: Option<BestEvaluation>,
}

impl ModelDescription {
    /// Adds the evaluation of the model of a training, and whether it is the best one.
    #[must_use]
    pub fn evaluated(self, trained: &TrainingResult) -> Self {
        let evaluation = trained.evaluation.as_ref().map(|found| {
            let metrics = found
                .metrics
                .iter()
                .map(|(name, value)| (name.clone(), *value));
            let all = metrics.chain([("loss".to_owned(), found.loss)]);
            ModelEvaluation {
                samples: found.samples,
                values: all.filter(|(_, value)| value.is_finite()).collect(),
            }
        });
        let best = trained.best.as_ref().map(|best| BestEvaluation {
            metric: best.metric.clone(),
            step: best.step.0,
        });
        Self {
            evaluation,
            best,
            ..self
        }
    }
}
