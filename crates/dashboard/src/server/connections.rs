//! [`accept`]: the connections of browsers, with limits on their number and on the time for a request's head.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// The largest number of connections; others wait to be accepted. A page has up to six.
const CONNECTIONS_MAX: usize = 512;
/// The longest time in which the head of a request must arrive; idle connections are closed after it as well.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted, as when the process has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections and serves each as a task of the runtime. Never ends.
pub(super) async fn accept(listener: &TcpListener, router: &Router) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    answer_requests(stream, router).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Answers the requests of a connection until the browser closes it.
async fn answer_requests(stream: TcpStream, router: Router) {
    // An event is a short write: waiting to join it with the next one only delays it.
    let _ = stream.set_nodelay(true);
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new());
    server.header_read_timeout(HEAD_TIME_MAX);
    let service = TowerToHyperService::new(router);
    // Errors are those of clients: they have closed the connection, or sent other bytes than HTTP.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}
