//! [`ServingState`]: the state that all requests share, and the settings of a server.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use ronde_identity::AccessToken;
use ronde_identity::rustls::ServerConfig;

use super::image_decoding::ImageDecoding;
use super::metrics::ServerMetrics;
use super::model_serving::ModelServing;
use super::served_model::ServedModel;
use crate::error::ServeError;

/// The time between two looks at the request to stop.
pub(super) const STOP_POLL: Duration = Duration::from_millis(100);

/// The time in which the rest of a request must arrive once the server stops.
pub(super) const STOP_GRACE: Duration = Duration::from_millis(300);

/// The time between two looks for a newer model.
const NEWER_POLL: Duration = Duration::from_secs(1);

/// The settings and limits of a server.
#[derive(Debug)]
pub struct HttpSettings {
    /// The address at which it listens; port 0: any free port.
    pub listen: SocketAddr,
    /// The token that clients must send; `None`: every client is served.
    pub token: Option<AccessToken>,
    /// The TLS settings of its connections; `None`: they are not encrypted.
    pub tls: Option<Arc<ServerConfig>>,
    /// The number of threads that compute predictions.
    pub workers: NonZeroUsize,
    /// The largest number of samples that are computed together, and of texts that are generated together.
    pub batch_max: NonZeroUsize,
    /// The longest time that the first request of a batch waits for others.
    pub batch_wait: Duration,
    /// The largest number of waiting requests; others are refused.
    pub queue_max: NonZeroUsize,
    /// The largest number of connections; others wait to be accepted.
    pub connections_max: NonZeroUsize,
    /// The largest number of bytes of a body.
    pub body_bytes_max: usize,
    /// The longest time in which the head and the body of a request must arrive, each.
    pub read_timeout: Duration,
    /// The longest time from the arrival of a request to its result.
    pub compute_timeout: Duration,
}

/// The state of all requests.
pub(super) struct ServingState {
    pub(super) present: RwLock<Arc<ModelServing>>,
    /// The threads that compute for present and earlier models.
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(super) settings: HttpSettings,
    pub(super) metrics: ServerMetrics,
    pub(super) decoding: ImageDecoding,
    pub(super) stopping: AtomicBool,
}

impl ServingState {
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Waits until the server stops, and then for the rest of requests.
    pub(super) async fn stopped(&self) {
        while !self.is_stopping() {
            tokio::time::sleep(STOP_POLL).await;
        }
        tokio::time::sleep(STOP_GRACE).await;
    }

    /// Returns the present model and its queues. A request whose queue is closed takes the next one.
    pub(super) fn present(&self) -> Arc<ModelServing> {
        let present = self.present.read();
        Arc::clone(&present.unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether no newer model has replaced this one.
    pub(super) fn is_present(&self, serving: &Arc<ModelServing>) -> bool {
        Arc::ptr_eq(serving, &self.present())
    }

    /// Starts the threads of a model.
    pub(super) fn start(self: &Arc<Self>, serving: &Arc<ModelServing>) -> Result<(), ServeError> {
        let started = serving.start(self)?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.extend(started);
        Ok(())
    }

    /// Replaces the model. Requests that have arrived are computed with the earlier one, later ones with the new one.
    pub(super) fn replace(self: &Arc<Self>, model: ServedModel) -> Result<String, ServeError> {
        let hash = model.manifest().blake3.clone();
        self.present().model.check_replacement(&model)?;
        let queue_max = self.settings.queue_max.get();
        let serving = Arc::new(ModelServing::new(model, queue_max));
        self.start(&serving)?;
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        let earlier = std::mem::replace(&mut *present, serving);
        // The server closes only the present queues when it stops.
        if self.is_stopping() {
            present.close();
        }
        drop(present);
        earlier.close();
        Ok(hash)
    }

    /// Looks for newer models until the server stops.
    pub(super) fn follow(self: &Arc<Self>, mut source: Box<dyn ModelSource>) {
        let mut waited = Duration::ZERO;
        while !self.is_stopping() {
            ronde_clock::pause(STOP_POLL);
            waited += STOP_POLL;
            if waited < NEWER_POLL {
                continue;
            }
            waited = Duration::ZERO;
            if let Some(model) = source.newer() {
                match self.replace(model) {
                    Ok(hash) => source.replaced(Ok(&hash)),
                    Err(error) => source.replaced(Err(error)),
                }
            }
        }
    }
}

/// Where newer versions of a served model are found.
pub trait ModelSource: Send {
    /// Returns a newer model, if any. A separate thread calls it about once a second.
    fn newer(&mut self) -> Option<ServedModel>;

    /// Receives whether the server uses the newer model: its hash, or the problem with it.
    fn replaced(&mut self, outcome: Result<&str, ServeError>);
}
