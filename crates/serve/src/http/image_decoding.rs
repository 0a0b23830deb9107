//! [`ImageDecoding`]: converts the images of requests to features, on a bounded number of threads.

use std::sync::Arc;

use ronde_data::decode::{DecodeScratch, ImageDecoder};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;

use super::encoded_image::EncodedImage;
use super::prediction_worker::ComputeFailure;
use super::requests::PredictRequest;

/// The largest ratio of the bytes of the features of a request to the limit of its body.
const FEATURES_PER_BODY: usize = 4;

/// Returns the largest number of images of a request: their features have at most four times as many bytes as a body may have, so
/// that small images do not take much memory. At least 1.
pub(super) fn images_max(input_shape: &[usize], body_bytes_max: usize) -> usize {
    let features: usize = input_shape.iter().product();
    let bytes = (features * size_of::<f32>()).max(1);
    (body_bytes_max.saturating_mul(FEATURES_PER_BODY) / bytes).max(1)
}

/// Converts the images of requests to features.
#[derive(Debug)]
pub(super) struct ImageDecoding {
    /// The threads that may decode.
    threads: Arc<Semaphore>,
}

impl ImageDecoding {
    /// Uses at most `threads` threads at once.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            threads: Arc::new(Semaphore::new(threads)),
        }
    }

    /// Converts images. Ends soon after the returned future was dropped.
    ///
    /// # Errors
    /// An image cannot be decoded; the error names its number.
    pub(super) async fn decode(
        &self,
        decoder: Arc<ImageDecoder>,
        images: Vec<EncodedImage>,
    ) -> Result<PredictRequest, ComputeFailure> {
        let threads = Arc::clone(&self.threads).acquire_owned().await;
        let permit = threads.map_err(|_| ComputeFailure::Server)?;
        let (reply, result) = oneshot::channel();
        // The end of the task is not awaited: a task that has begun cannot be interrupted.
        let _task = spawn_blocking(move || {
            let decoded = decode_all(&decoder, &images, || reply.is_closed());
            drop(permit);
            // The client may be gone.
            let _ = reply.send(decoded);
        });
        result.await.unwrap_or(Err(ComputeFailure::Server))
    }
}

/// Converts images one after the other, until nothing waits for them.
fn decode_all(
    decoder: &ImageDecoder,
    images: &[EncodedImage],
    is_unwanted: impl Fn() -> bool,
) -> Result<PredictRequest, ComputeFailure> {
    let elements = decoder.elements();
    let mut features = vec![0.0; images.len() * elements];
    let mut scratch = DecodeScratch::new();
    let outputs = features.chunks_exact_mut(elements.max(1));
    for (number, (EncodedImage(bytes), out)) in images.iter().zip(outputs).enumerate() {
        if is_unwanted() {
            return Err(ComputeFailure::Server);
        }
        let decoded = decoder.decode_for_evaluation(bytes, &mut scratch, out);
        decoded.map_err(|cause| ComputeFailure::Image { number, cause })?;
    }
    Ok(PredictRequest {
        samples: images.len(),
        features,
    })
}
