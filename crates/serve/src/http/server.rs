//! [`serve`]: accepts connections, starts the threads that compute, replaces the model by newer ones, and ends in order.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use axum::Router;
use futures_util::future::{Either, select};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use ronde_identity::AccessToken;
use ronde_identity::rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use super::endpoints;
use super::image_decoding::ImageDecoding;
use super::metrics::ServerMetrics;
use super::model_serving::ModelServing;
use super::served_model::ServedModel;
use crate::error::ServeError;

/// The time between two looks at the request to stop.
const STOP_POLL: Duration = Duration::from_millis(100);
/// The time in which the rest of a request must arrive once the server stops.
pub(super) const STOP_GRACE: Duration = Duration::from_millis(300);
/// The time between two looks for a newer model.
const NEWER_POLL: Duration = Duration::from_secs(1);
/// The pause after a connection could not be accepted, as when the process has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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

/// Where newer versions of a served model are found.
pub trait ModelSource: Send {
    /// Returns a newer model, if any. A separate thread calls it about once a second.
    fn newer(&mut self) -> Option<ServedModel>;

    /// Receives whether the server uses the newer model: its hash, or the problem with it.
    fn replaced(&mut self, outcome: Result<&str, ServeError>);
}

/// The state of all requests.
pub(super) struct ServingState {
    present: RwLock<Arc<ModelServing>>,
    /// The threads that compute for present and earlier models.
    threads: Mutex<Vec<JoinHandle<()>>>,
    pub(super) settings: HttpSettings,
    pub(super) metrics: ServerMetrics,
    pub(super) decoding: ImageDecoding,
    stopping: AtomicBool,
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
    fn start(self: &Arc<Self>, serving: &Arc<ModelServing>) -> Result<(), ServeError> {
        let started = serving.start(self)?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.extend(started);
        Ok(())
    }

    /// Replaces the model. Requests that have arrived are computed with the earlier one, later ones with the new one.
    fn replace(self: &Arc<Self>, model: ServedModel) -> Result<String, ServeError> {
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
    fn follow(self: &Arc<Self>, mut source: Box<dyn ModelSource>) {
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

/// Serves a model until `is_stopping` returns true, which is called every 100 ms. Then, requests that have arrived are
/// answered before it returns; of others, the rest must arrive within 300 ms. `ready` receives the address. A newer model of `source` replaces the present one: no request is
/// dropped, and each is computed by one model, which its answer names.
///
/// # Errors
/// The address cannot be used, the model cannot be loaded, or the system refuses a thread.
pub fn serve(
    model: ServedModel,
    source: Box<dyn ModelSource>,
    settings: HttpSettings,
    ready: impl FnOnce(SocketAddr),
    is_stopping: impl Fn() -> bool,
) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| ServeError::Start { cause })?;
    let serving = Arc::new(ModelServing::new(model, settings.queue_max.get()));
    let state = Arc::new(ServingState {
        present: RwLock::new(Arc::clone(&serving)),
        threads: Mutex::default(),
        settings,
        metrics: ServerMetrics::default(),
        decoding: ImageDecoding::new(std::thread::available_parallelism().map_or(1, usize::from)),
        stopping: AtomicBool::new(false),
    });
    let failed = |cause| ServeError::Listen {
        address: state.settings.listen,
        cause,
    };
    let follower = runtime.block_on(async {
        let listener = TcpListener::bind(state.settings.listen).await;
        let listener = listener.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        state.start(&serving)?;
        drop(serving);
        let following = Arc::clone(&state);
        let follower = Builder::new().name("newer models".to_owned());
        let follower = follower.spawn(move || following.follow(source));
        let follower = follower.map_err(|cause| ServeError::Start { cause })?;
        ready(address);
        run(&state, &listener, is_stopping).await;
        Ok::<_, ServeError>(follower)
    })?;
    // Workers end when they have computed the queue; results without a connection are dropped.
    drop(runtime);
    // Nobody starts threads after it.
    let _ = follower.join();
    let mut threads = state.threads.lock().unwrap_or_else(PoisonError::into_inner);
    for thread in threads.drain(..) {
        // Workers catch panics.
        let _ = thread.join();
    }
    Ok(())
}

/// Accepts connections until the server stops, and waits for those whose requests are computed.
async fn run(state: &Arc<ServingState>, listener: &TcpListener, is_stopping: impl Fn() -> bool) {
    let router = endpoints::router(Arc::clone(state));
    let tls = state.settings.tls.clone().map(TlsAcceptor::from);
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
                        (router.clone(), tls.clone()),
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
    // Waiting requests are computed at once.
    let present = state.present.read();
    present.unwrap_or_else(PoisonError::into_inner).close();
    // Receivers exist only while there are connections.
    let _ = stop.send(true);
    let all = u32::try_from(connections_max).unwrap_or(u32::MAX);
    let limit = state.settings.read_timeout + state.settings.compute_timeout;
    let _ = tokio::time::timeout(limit, connections.acquire_many(all)).await;
}

/// Serves a connection, after the TLS handshake if there is one.
async fn serve_connection(
    (stream, permit): (TcpStream, OwnedSemaphorePermit),
    (router, tls): (Router, Option<TlsAcceptor>),
    stopped: watch::Receiver<bool>,
    read_timeout: Duration,
) {
    // An answer is one or few writes: waiting to join them only delays it.
    let _ = stream.set_nodelay(true);
    match tls {
        None => serve_requests(stream, router, stopped, read_timeout).await,
        Some(tls) => {
            let handshake = tokio::time::timeout(read_timeout, tls.accept(stream));
            let mut ended = stopped.clone();
            let stop = Box::pin(ended.wait_for(|stopped| *stopped));
            // Errors are those of clients: they do not speak TLS, or do not trust the certificate.
            let secured = match select(Box::pin(handshake), stop).await {
                Either::Left((Ok(Ok(stream)), _)) => Some(stream),
                _ => None,
            };
            if let Some(stream) = secured {
                serve_requests(stream, router, stopped, read_timeout).await;
            }
        }
    }
    drop(permit);
}

/// Serves requests until the client or the server ends the connection: the server after the request that is under way.
async fn serve_requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    mut stopped: watch::Receiver<bool>,
    read_timeout: Duration,
) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new());
    server.header_read_timeout(read_timeout);
    let has_request = AtomicBool::new(false);
    let inner = TowerToHyperService::new(router);
    let service = service_fn(|request| {
        has_request.store(true, Ordering::Relaxed);
        inner.call(request)
    });
    let mut connection = std::pin::pin!(server.serve_connection(TokioIo::new(stream), service));
    let stop = async { stopped.wait_for(|stopped| *stopped).await.is_ok() };
    let stop = std::pin::pin!(stop);
    // Errors are those of clients: they have closed the connection, or sent other bytes than HTTP.
    let is_stopping = matches!(select(connection.as_mut(), stop).await, Either::Right(_));
    if is_stopping {
        connection.as_mut().graceful_shutdown();
        let ended = tokio::time::timeout(STOP_GRACE, connection.as_mut()).await;
        // The head of its first request has not arrived.
        if ended.is_err() && has_request.load(Ordering::Relaxed) {
            let _ = connection.await;
        }
    }
}
