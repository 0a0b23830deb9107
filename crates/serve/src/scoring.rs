//! [`Scoring`]: computes the predictions of chunks of a data set.

use std::collections::VecDeque;
use std::sync::Arc;

use ronde_core::WorldSize;
use ronde_core::batch::BatchPlan;
use ronde_core::shards::ShardPlan;
use ronde_data::{Batch, Dataset, Loader, LoaderPlan, LoaderSettings, StepBatches};

use crate::chunks::ChunkPlan;
use crate::error::ServeError;
use crate::output::OutputFormat;
use crate::part_folder::PartFolder;
use crate::predicted_sample::PredictedSample;
use crate::prediction::Prediction;
use crate::predictor::Predictor;

/// A model that predicts samples by their numbers in a data set.
pub trait Scorer {
    /// Returns the prediction of each sample of a batch, without skipped ones. `numbers` are their numbers.
    ///
    /// # Errors
    /// When the samples do not fit the model.
    fn score(&mut self, batch: Batch, numbers: &[u64]) -> Result<Vec<Prediction>, ServeError>;
}

impl Scorer for Predictor {
    fn score(&mut self, batch: Batch, _: &[u64]) -> Result<Vec<Prediction>, ServeError> {
        self.predict(&batch.shape, batch.features)
    }
}

/// Computes the predictions of chunks of a data set and publishes them. A chunk's samples are read while an earlier chunk
/// is computed.
pub struct Scoring {
    scorer: Box<dyn Scorer>,
    dataset: Arc<dyn Dataset>,
    parts: PartFolder,
    format: OutputFormat,
    settings: LoaderSettings,
    /// The chunks whose samples are being read.
    loading: VecDeque<(u64, Loader)>,
}

impl Scoring {
    /// Combines a model, a data set and the folder of the finished parts.
    #[must_use]
    pub fn new(
        scorer: Box<dyn Scorer>,
        dataset: Arc<dyn Dataset>,
        (parts, format): (PartFolder, OutputFormat),
        settings: LoaderSettings,
    ) -> Self {
        Self {
            scorer,
            dataset,
            parts,
            format,
            settings,
            loading: VecDeque::new(),
        }
    }

    /// Begins to read the samples of a chunk.
    ///
    /// # Errors
    /// The threads that read cannot be started.
    pub fn begin(&mut self, chunk: u64) -> Result<(), ServeError> {
        let plan = ChunkPlan::new(self.dataset.len());
        let whole = ShardPlan::new(1, WorldSize::ONE);
        let batches = BatchPlan::new(self.dataset.len(), plan.batch_size(), false, false, 0);
        let Some((batches, shards)) = batches.zip(whole) else {
            return Ok(());
        };
        let plan = LoaderPlan {
            batches,
            shards,
            run: 0..1,
            steps: plan.batches(chunk),
            stride: 1,
        };
        let loader = Loader::start(Arc::clone(&self.dataset), plan, self.settings)?;
        self.loading.push_back((chunk, loader));
        Ok(())
    }

    /// Computes and publishes the first chunk that was begun. Returns its number; `None` if none was begun.
    ///
    /// # Errors
    /// Samples cannot be read or predicted, or the part cannot be written.
    pub fn finish(&mut self) -> Result<Option<u64>, ServeError> {
        let Some((chunk, mut loader)) = self.loading.pop_front() else {
            return Ok(None);
        };
        let (mut rows, mut skipped) = (Vec::new(), Vec::new());
        while let Some(StepBatches { batches, .. }) = loader.next()? {
            for mut batch in batches {
                skipped.extend(batch.skipped.iter().map(ToString::to_string));
                let numbers = batch.used_samples();
                batch.labels.clear();
                let predictions = self.scorer.score(batch, &numbers)?;
                let samples = numbers.into_iter().zip(predictions);
                rows.extend(samples.map(|(sample, prediction)| PredictedSample {
                    sample,
                    origin: self.dataset.origin(sample),
                    prediction,
                }));
            }
        }
        let part = self.format.encode(&rows)?;
        self.parts
            .publish((chunk, rows.len() as u64), skipped, &part)?;
        Ok(Some(chunk))
    }
}

#[cfg(test)]
mod tests;
