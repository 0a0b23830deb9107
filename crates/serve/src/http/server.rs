//! [`serve`]: accepts connections, starts the threads that compute, and ends them in order.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use axum::Router;
use futures_util::future::{Either, select};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::access::RequestToken;
use super::batch_queue::BatchQueue;
use super::endpoints;
use super::metrics::ServerMetrics;
use super::prediction_worker::{self, BatchLimits, PredictionJob};
use super::served_model::ServedModel;
use super::text_worker::{self, TextJob};
use crate::ServeError;

/// The time between two looks at the request to stop.
const STOP_POLL: Duration = Duration::from_millis(100);
/// The pause after a connection could not be accepted, as when the process has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The settings and limits of a server.
#[derive(Debug)]
pub struct HttpSettings {
    /// The address at which it listens; port 0: any free port.
    pub listen: SocketAddr,
    /// The token that clients must send; `None`: every client is served.
    pub token: Option<RequestToken>,
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
    pub(super) model: Arc<ServedModel>,
    pub(super) settings: HttpSettings,
    pub(super) predictions: BatchQueue<PredictionJob>,
    pub(super) texts: BatchQueue<TextJob>,
    pub(super) metrics: ServerMetrics,
    stopping: AtomicBool,
}

impl ServingState {
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Starts the threads that compute: those of predictions, and one for texts if the model generates them.
    fn start_workers(self: &Arc<Self>) -> Result<Vec<JoinHandle<()>>, ServeError> {
        let mut threads = Vec::new();
        let limits = BatchLimits {
            samples_max: self.settings.batch_max.get(),
            wait: self.settings.batch_wait,
        };
        let failed = |cause| ServeError::Start { cause };
        for number in 0..self.settings.workers.get() {
            let (state, predictor) = (Arc::clone(self), self.model.predictor()?);
            let thread = Builder::new().name(format!("predict {number}"));
            let work = move || {
                let (model, metrics) = (&state.model, &state.metrics);
                prediction_worker::work(model, predictor, &state.predictions, limits, metrics);
            };
            threads.push(thread.spawn(work).map_err(failed)?);
        }
        if self.model.continued_positions().is_some() {
            let (state, chain) = (Arc::clone(self), self.model.chain()?);
            let thread = Builder::new().name("generate".to_owned());
            let work = move || {
                let (model, metrics) = (&state.model, &state.metrics);
                text_worker::work(model, chain, &state.texts, limits.samples_max, metrics);
            };
            threads.push(thread.spawn(work).map_err(failed)?);
        }
        Ok(threads)
    }
}

/// Serves a model until `is_stopping` returns true, which is called every 100 ms. Then, requests that have arrived are
/// answered before it returns. `ready` receives the address.
///
/// # Errors
/// The address cannot be used, the model cannot be loaded, or the system refuses a thread.
pub fn serve(
    model: Arc<ServedModel>,
    settings: HttpSettings,
    ready: impl FnOnce(SocketAddr),
    is_stopping: impl Fn() -> bool,
) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| ServeError::Start { cause })?;
    let queue_max = settings.queue_max.get();
    let state = Arc::new(ServingState {
        model,
        settings,
        predictions: BatchQueue::new(queue_max),
        texts: BatchQueue::new(queue_max),
        metrics: ServerMetrics::default(),
        stopping: AtomicBool::new(false),
    });
    let failed = |cause| ServeError::Listen {
        address: state.settings.listen,
        cause,
    };
    let threads = runtime.block_on(async {
        let listener = TcpListener::bind(state.settings.listen).await;
        let listener = listener.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let threads = state.start_workers()?;
        ready(address);
        run(&state, &listener, is_stopping).await;
        Ok::<_, ServeError>(threads)
    })?;
    // Workers end when they have computed what waits; results without a connection are dropped.
    drop(runtime);
    for thread in threads {
        // Workers catch panics.
        let _ = thread.join();
    }
    Ok(())
}

/// Accepts connections until the server stops, and waits for those whose requests are computed.
async fn run(state: &Arc<ServingState>, listener: &TcpListener, is_stopping: impl Fn() -> bool) {
    let router = endpoints::router(Arc::clone(state));
    let (stop, stopped) = watch::channel(false);
    let connections_max = state.settings.connections_max.get();
    let connections = Arc::new(Semaphore::new(connections_max));
    let accept = async {
        loop {
            let permit = Arc::clone(&connections).acquire_owned().await;
            // The semaphore is never closed.
            let Ok(permit) = permit else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let connection = (stream, permit);
                    let serving = serve_connection(
                        connection,
                        router.clone(),
                        stopped.clone(),
                        state.settings.read_timeout,
                    );
                    tokio::spawn(serving);
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    };
    let asked = async {
        while !is_stopping() {
            tokio::time::sleep(STOP_POLL).await;
        }
    };
    select(Box::pin(accept), Box::pin(asked)).await;
    state.stopping.store(true, Ordering::Relaxed);
    // What waits is computed at once.
    state.predictions.close();
    state.texts.close();
    // Receivers exist only while there are connections.
    let _ = stop.send(true);
    let all = u32::try_from(connections_max).unwrap_or(u32::MAX);
    let limit = state.settings.read_timeout + state.settings.compute_timeout;
    let _ = tokio::time::timeout(limit, connections.acquire_many(all)).await;
}

/// Serves a connection until its client or the server ends it: the server after the request that is under way.
async fn serve_connection(
    (stream, permit): (TcpStream, OwnedSemaphorePermit),
    router: Router,
    mut stopped: watch::Receiver<bool>,
    read_timeout: Duration,
) {
    // An answer is one or few writes: waiting to join them only delays it.
    let _ = stream.set_nodelay(true);
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new());
    server.header_read_timeout(read_timeout);
    let service = TowerToHyperService::new(router);
    let mut connection = std::pin::pin!(server.serve_connection(TokioIo::new(stream), service));
    let stop = async { stopped.wait_for(|stopped| *stopped).await.is_ok() };
    let stop = std::pin::pin!(stop);
    // Errors are those of clients: they have closed the connection, or sent what is not HTTP.
    let is_stopping = matches!(select(connection.as_mut(), stop).await, Either::Right(_));
    if is_stopping {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
    drop(permit);
}
