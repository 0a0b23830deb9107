//! [`PrometheusEndpoint`]: serves the metrics of a run over HTTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ronde_core::{Event, Tracker};

use super::RunMetrics;

/// Largest size of a request in bytes; a larger one is refused.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Time limit for reading a request and for writing its response.
const REQUEST_MAX: Duration = Duration::from_secs(2);
/// Largest number of connections at a time; further ones are closed.
const CONNECTIONS_MAX: usize = 16;

/// Serves [`RunMetrics`] at `/metrics` until it is dropped. The metrics are readable without a password.
pub struct PrometheusEndpoint {
    shared: Arc<EndpointState>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct EndpointState {
    metrics: Mutex<RunMetrics>,
    ends: AtomicBool,
    connections: AtomicUsize,
}

impl PrometheusEndpoint {
    /// Listens at an address; port 0 is replaced by a free port.
    ///
    /// # Errors
    /// The address cannot be used, for example because another process listens there.
    pub fn listen(address: SocketAddr, metrics: RunMetrics) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(EndpointState {
            metrics: Mutex::new(metrics),
            ends: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("prometheus".to_owned())
            .spawn(move || accept(&listener, &of_thread))?;
        Ok(Self {
            shared,
            address,
            thread: Some(thread),
        })
    }

    /// Returns the address at which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Tracker for PrometheusEndpoint {
    fn record(&self, event: Event) {
        let mut metrics = self
            .shared
            .metrics
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        metrics.apply(&event);
    }
}

impl Drop for PrometheusEndpoint {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        // A connection wakes the thread, which waits for one.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        let woken = TcpStream::connect_timeout(&address, REQUEST_MAX).is_ok();
        if let (true, Some(thread)) = (woken, self.thread.take()) {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

/// Accepts connections until the endpoint is dropped; each is answered by a thread.
fn accept(listener: &TcpListener, shared: &Arc<EndpointState>) {
    for stream in listener.incoming() {
        if shared.ends.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else {
            // Too many open files, for example.
            ronde_clock::pause(Duration::from_millis(100));
            continue;
        };
        if shared.connections.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
            shared.connections.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let of_thread = Arc::clone(shared);
        let spawned = thread::Builder::new().spawn(move || {
            // A client that leaves early gets no response.
            let _ = answer(stream, &of_thread);
            of_thread.connections.fetch_sub(1, Ordering::SeqCst);
        });
        if spawned.is_err() {
            shared.connections.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Reads one request and writes its response.
fn answer(mut stream: TcpStream, shared: &EndpointState) -> std::io::Result<()> {
    stream.set_write_timeout(Some(REQUEST_MAX))?;
    let deadline = ronde_clock::now() + REQUEST_MAX;
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(ronde_clock::now());
        if left.is_zero() || request.len() > REQUEST_BYTES_MAX {
            return respond(&mut stream, "400 Bad Request", "invalid request\n", true);
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            n => request.extend_from_slice(&buffer[..n]),
        }
    }
    let line = request
        .split(|&byte| byte == b'\r')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let has_body = method != "HEAD";
    let path = path.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET" | "HEAD", "/metrics") => {
            let text = {
                let metrics = shared
                    .metrics
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                metrics.clone()
            }
            .text();
            respond(&mut stream, "200 OK", &text, has_body)
        }
        ("GET" | "HEAD", _) => respond(
            &mut stream,
            "404 Not Found",
            "the metrics are at /metrics\n",
            has_body,
        ),
        _ => respond(
            &mut stream,
            "405 Method Not Allowed",
            "expected GET\n",
            true,
        ),
    }
}

fn respond(
    stream: &mut TcpStream,
    status: &str,
    body: &str,
    has_body: bool,
) -> std::io::Result<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    if has_body {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}

#[cfg(test)]
mod tests;
