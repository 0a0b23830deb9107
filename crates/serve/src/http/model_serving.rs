//! [`ModelServing`]: a model with the requests that wait for it. A newer model replaces it as a whole.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use super::batch_queue::BatchQueue;
use super::prediction_worker::{self, BatchLimits, PredictionJob};
use super::served_model::ServedModel;
use super::serving_state::ServingState;
use super::text_worker::{self, TextJob};
use crate::error::ServeError;

/// A model with the requests that wait for it. Its threads compute them, and end when the queues are closed and empty.
pub(super) struct ModelServing {
    pub(super) model: ServedModel,
    pub(super) predictions: BatchQueue<PredictionJob>,
    pub(super) texts: BatchQueue<TextJob>,
}

impl ModelServing {
    /// Creates queues of at most `queue_max` requests each.
    pub(super) fn new(model: ServedModel, queue_max: usize) -> Self {
        Self {
            model,
            predictions: BatchQueue::new(queue_max),
            texts: BatchQueue::new(queue_max),
        }
    }

    /// Refuses further requests. Those that wait are computed.
    pub(super) fn close(&self) {
        self.predictions.close();
        self.texts.close();
    }

    /// Returns the number of waiting requests.
    pub(super) fn waiting(&self) -> usize {
        self.predictions.len() + self.texts.len()
    }

    /// Starts the threads that compute: those of predictions, and one for texts if the model generates them.
    pub(super) fn start(
        self: &Arc<Self>,
        server: &Arc<ServingState>,
    ) -> Result<Vec<JoinHandle<()>>, ServeError> {
        let mut threads = Vec::new();
        let limits = BatchLimits {
            samples_max: server.settings.batch_max.get(),
            wait: server.settings.batch_wait,
        };
        let failed = |cause| ServeError::Start { cause };
        for number in 0..server.settings.workers.get() {
            let (this, server) = (Arc::clone(self), Arc::clone(server));
            let predictor = self.model.predictor()?;
            let thread = Builder::new().name(format!("predict {number}"));
            let work = move || {
                let (model, queue) = (&this.model, &this.predictions);
                prediction_worker::work(model, predictor, queue, limits, &server.metrics);
            };
            threads.push(thread.spawn(work).map_err(failed)?);
        }
        if let Some(task) = self.model.text_task() {
            let (this, server) = (Arc::clone(self), Arc::clone(server));
            let chain = self.model.chain()?;
            let thread = Builder::new().name("generate".to_owned());
            let work = move || {
                let (model, queue) = (&this.model, &this.texts);
                text_worker::work(
                    (model, task),
                    chain,
                    queue,
                    limits.samples_max,
                    &server.metrics,
                );
            };
            threads.push(thread.spawn(work).map_err(failed)?);
        }
        Ok(threads)
    }
}
