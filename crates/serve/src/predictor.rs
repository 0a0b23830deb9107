//! [`Predictor`]: a model that predicts samples.

use ronde_engine::{Activation, Chain};

use crate::error::ServeError;
use crate::prediction::Prediction;
use crate::prediction_form::PredictionForm;

/// A model that predicts samples. The bits of a prediction do not depend on the samples that are computed together.
pub struct Predictor {
    chain: Chain,
    form: PredictionForm,
}

impl Predictor {
    /// Combines a model and the form of its outputs.
    #[must_use]
    pub fn new(chain: Chain, form: PredictionForm) -> Self {
        Self { chain, form }
    }

    /// Predicts samples of `shape`, `[samples, ..]`, from their features, row-major. Returns one prediction for each.
    ///
    /// # Errors
    /// When the features do not fit the model, or its outputs do not fit the form.
    pub fn predict(
        &mut self,
        shape: &[usize],
        features: Vec<f32>,
    ) -> Result<Vec<Prediction>, ServeError> {
        let samples = shape.first().copied().unwrap_or(0);
        if samples == 0 {
            return Ok(Vec::new());
        }
        let output = self
            .chain
            .evaluate(Activation::from_host(shape, features))?;
        let outputs = output.as_slice();
        let each = outputs.len() / samples;
        (0..samples)
            .map(|sample| self.form.read(&outputs[sample * each..(sample + 1) * each]))
            .collect()
    }
}
