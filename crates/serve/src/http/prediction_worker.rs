//! [`PredictionJob`]s and the threads that compute them in batches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ronde_data::decode::ImageError;
use tokio::sync::oneshot;

use super::batch_queue::BatchQueue;
use super::metrics::ServerMetrics;
use super::requests::PredictRequest;
use super::served_model::ServedModel;
use crate::error::ServeError;
use crate::prediction::Prediction;
use crate::predictor::Predictor;

/// Why a request has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum ComputeFailure {
    /// The request does not fit the model.
    #[error("{0}")]
    Request(Arc<ServeError>),
    #[error("invalid `images`: image {number}: {cause}")]
    Image { number: usize, cause: ImageError },
    /// The server has a fault.
    #[error("cannot compute the request: the model failed; see the log of the server")]
    Server,
}

/// A request for predictions, and where its result is sent.
pub(super) struct PredictionJob {
    pub(super) request: PredictRequest,
    pub(super) reply: oneshot::Sender<Result<Vec<Prediction>, ComputeFailure>>,
}

/// When a batch is closed.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchLimits {
    /// The largest number of samples.
    pub(super) samples_max: usize,
    /// The longest time that the first request waits for others.
    pub(super) wait: Duration,
}

/// Computes batches until the queue is closed and empty.
pub(super) fn work(
    model: &ServedModel,
    mut predictor: Predictor,
    queue: &BatchQueue<PredictionJob>,
    limits: BatchLimits,
    metrics: &ServerMetrics,
) {
    while let Some(mut batch) = queue.next_batch(limits.samples_max, limits.wait) {
        // The clients of these requests are gone, or have waited too long.
        batch.retain(|job| !job.reply.is_closed());
        if batch.is_empty() {
            continue;
        }
        let requests: Vec<&PredictRequest> = batch.iter().map(|job| &job.request).collect();
        metrics.count_batch(requests.iter().map(|request| request.samples).sum());
        let computed = compute(model, &mut predictor, &requests, limits.samples_max);
        let results: Vec<_> = match computed {
            Ok(mut predictions) => {
                let mut rest = predictions.drain(..);
                let each = requests.iter().map(|request| request.samples);
                each.map(|samples| Ok(rest.by_ref().take(samples).collect()))
                    .collect()
            }
            Err(failure) if requests.len() == 1 => vec![Err(failure)],
            // One request must not fail those that are computed with it.
            Err(_) => {
                let each = requests.iter();
                each.map(|one| compute(model, &mut predictor, &[one], limits.samples_max))
                    .collect()
            }
        };
        for (job, result) in batch.into_iter().zip(results) {
            // The client may be gone.
            let _ = job.reply.send(result);
        }
    }
}

/// Computes requests together, at most `samples_max` samples at once.
fn compute(
    model: &ServedModel,
    predictor: &mut Predictor,
    requests: &[&PredictRequest],
    samples_max: usize,
) -> Result<Vec<Prediction>, ComputeFailure> {
    let input_shape = &model.manifest().input_shape;
    let each: usize = input_shape.iter().product();
    let parts = requests.iter().map(|request| &*request.features);
    let features = parts.collect::<Vec<_>>().concat();
    let mut predictions = Vec::new();
    for part in features.chunks(samples_max.max(1) * each.max(1)) {
        let shape = [&[part.len() / each.max(1)], &input_shape[..]].concat();
        let predict = AssertUnwindSafe(|| predictor.predict(&shape, part.to_vec()));
        match catch_unwind(predict) {
            Ok(Ok(some)) => predictions.extend(some),
            Ok(Err(error)) => return Err(ComputeFailure::Request(Arc::new(error))),
            Err(_) => {
                // The state of the layers after a panic is not used again.
                if let Ok(fresh) = model.predictor() {
                    *predictor = fresh;
                }
                return Err(ComputeFailure::Server);
            }
        }
    }
    Ok(predictions)
}
