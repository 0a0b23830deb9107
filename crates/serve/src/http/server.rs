//! [`serve`]: accepts connections, starts the threads that compute, replaces the model by newer ones, and ends in order.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::Builder;
use std::time::Duration;

use axum::Router;
use futures_util::future::{Either, select};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use super::endpoints;
use super::image_decoding::ImageDecoding;
use super::metrics::ServerMetrics;
use super::model_serving::ModelServing;
use super::served_model::ServedModel;
use super::serving_state::{HttpSettings, ModelSource, STOP_GRACE, STOP_POLL, ServingState};
use crate::error::ServeError;

/// The pause after a connection could not be accepted, as when the process has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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
