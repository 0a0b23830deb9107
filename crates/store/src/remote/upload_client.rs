//! [`UploadConnector`]: HTTP clients for writing, whose time limit follows the progress of the upload.
//!
//! The time limit of the usual client runs from the start of a request until its response, so a large body over a slow
//! link would exceed it. These clients pass a body on in small frames and restart the limit with each of them. The system
//! takes megabytes into its buffers at once, so the limit also restarts while the slowest usable link would still send them.

use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{ClientConfigKey, ClientOptions};

use super::io_thread::ProgressLimit;

/// The size of a frame of a body in bytes.
const FRAME_BYTES: usize = 64 << 10;

/// The time in which the slowest usable link sends a frame: 16 KiB per second.
const FRAME_TIME: Duration = Duration::from_secs(4);

/// The largest number of frames in the buffers of the system and of its peer: those of Linux have at most 6 MiB.
const BUFFERED_FRAMES: u64 = 96;

/// The name of the client in requests.
const USER_AGENT: &str = concat!("ronde/", env!("CARGO_PKG_VERSION"));

/// The clients of a store, for reading or for writing.
#[derive(Debug)]
pub(super) enum StoreConnector {
    /// The usual clients: requests to read have no body, and their limit restarts whenever something is received.
    Reading,
    /// Clients whose limit also restarts whenever something is sent.
    Writing(UploadConnector),
}

impl HttpConnector for StoreConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        match self {
            Self::Reading => ReqwestConnector::default().connect(options),
            Self::Writing(uploads) => uploads.connect(options),
        }
    }
}

/// Makes clients whose requests are cancelled when nothing is sent or received for a time.
pub(super) struct UploadConnector {
    /// The longest time without progress.
    pub(super) silence: Duration,
    /// A counter that every sent frame and every response increments.
    pub(super) progress: Arc<AtomicU64>,
    /// Certificate authorities (PEM) that are trusted besides those of the system.
    pub(super) authorities: Option<Arc<[u8]>>,
}

impl fmt::Debug for UploadConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UploadConnector")
            .field("silence", &self.silence)
            .finish_non_exhaustive()
    }
}

impl UploadConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = self
            .client(options)
            .map_err(|source| object_store::Error::Generic {
                store: "HTTP client",
                source,
            })?;
        Ok(HttpClient::new(UploadClient {
            client,
            silence: self.silence,
            progress: Arc::clone(&self.progress),
            running: Arc::default(),
        }))
    }

    /// Builds a client with all options except the limits of whole requests.
    fn client(
        &self,
        options: &ClientOptions,
    ) -> Result<reqwest::Client, Box<dyn std::error::Error + Send + Sync>> {
        use ClientConfigKey as Key;
        let is_set = |key| options.get_config_value(&key).as_deref() == Some("true");
        let duration = |key| {
            let text = options.get_config_value(&key);
            text.map(|text| humantime::parse_duration(&text))
                .transpose()
        };
        let agent = options.get_config_value(&Key::UserAgent);
        let mut builder = reqwest::ClientBuilder::new()
            .user_agent(agent.as_deref().unwrap_or(USER_AGENT))
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .https_only(!is_set(Key::AllowHttp))
            .danger_accept_invalid_certs(is_set(Key::AllowInvalidCertificates))
            // Ends connections to a peer that receives nothing more.
            .tcp_user_timeout(self.silence);
        let mut authorities = Vec::new();
        if let Some(pem) = &self.authorities {
            authorities = reqwest::Certificate::from_pem_bundle(pem)?;
        }
        if let Some(url) = options.get_config_value(&Key::ProxyUrl) {
            let mut proxy = reqwest::Proxy::all(url)?;
            if let Some(pem) = options.get_config_value(&Key::ProxyCaCertificate) {
                authorities.push(reqwest::Certificate::from_pem(pem.as_bytes())?);
            }
            if let Some(excludes) = options.get_config_value(&Key::ProxyExcludes) {
                proxy = proxy.no_proxy(reqwest::NoProxy::from_string(&excludes));
            }
            builder = builder.proxy(proxy);
        }
        builder = match is_set(Key::NoSystemCertificates) {
            true => builder.tls_certs_only(authorities),
            false => builder.tls_certs_merge(authorities),
        };
        if let Some(limit) = duration(Key::ConnectTimeout)? {
            builder = builder.connect_timeout(limit);
        }
        if let Some(limit) = duration(Key::PoolIdleTimeout)? {
            builder = builder.pool_idle_timeout(limit);
        }
        if let Some(most) = number(options, Key::PoolMaxIdlePerHost)? {
            builder = builder.pool_max_idle_per_host(most);
        }
        if let Some(interval) = duration(Key::Http2KeepAliveInterval)? {
            builder = builder.http2_keep_alive_interval(interval);
        }
        if let Some(limit) = duration(Key::Http2KeepAliveTimeout)? {
            builder = builder.http2_keep_alive_timeout(limit);
        }
        if is_set(Key::Http2KeepAliveWhileIdle) {
            builder = builder.http2_keep_alive_while_idle(true);
        }
        if let Some(bytes) = number(options, Key::Http2MaxFrameSize)? {
            builder = builder.http2_max_frame_size(Some(bytes));
        }
        if is_set(Key::Http1Only) {
            builder = builder.http1_only();
        }
        if is_set(Key::Http2Only) {
            builder = builder.http2_prior_knowledge();
        }
        Ok(builder.build()?)
    }
}

fn number<T: FromStr>(options: &ClientOptions, key: ClientConfigKey) -> Result<Option<T>, T::Err> {
    let text = options.get_config_value(&key);
    text.map(|text| text.parse()).transpose()
}

/// A client that cancels requests without progress.
struct UploadClient {
    client: reqwest::Client,
    silence: Duration,
    progress: Arc<AtomicU64>,
    /// Has a clone for each request that is under way.
    running: Arc<()>,
}

impl fmt::Debug for UploadClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UploadClient").finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpService for UploadClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = parts.uri.to_string().parse();
        let url =
            url.map_err(|cause: url::ParseError| HttpError::new(HttpErrorKind::Unknown, cause))?;
        let limit = ProgressLimit::new(self.silence, Arc::default());
        let progress = FrameCounters {
            passed: Arc::default(),
            progress: [Arc::clone(&limit.progress), Arc::clone(&self.progress)],
        };
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        *request.body_mut() = Some(reqwest::Body::wrap(ObservedBody {
            inner: body,
            rest: Bytes::new(),
            counters: progress.clone(),
        }));
        let response = limit
            .run(progress.observe(&self.running, self.client.execute(request)))
            .await;
        let response = response
            .ok_or_else(|| HttpError::new(HttpErrorKind::Timeout, NoProgress(self.silence)))?
            .map_err(http_error)?;
        self.progress.fetch_add(1, Ordering::Relaxed);
        let (parts, body) = http::Response::<reqwest::Body>::from(response).into_parts();
        let body = HttpResponseBody::new(body.map_err(http_error));
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// The cause of a cancelled request.
#[derive(Debug)]
struct NoProgress(Duration);

impl fmt::Display for NoProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no progress for {:.0} s", self.0.as_secs_f64())
    }
}

impl std::error::Error for NoProgress {}

/// Classifies an error of a request, so that the client knows whether to repeat it.
fn http_error(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_decode() {
        HttpErrorKind::Decode
    } else if error.is_request() || error.is_body() {
        HttpErrorKind::Interrupted
    } else {
        HttpErrorKind::Unknown
    };
    HttpError::new(kind, error.without_url())
}

/// Counters of the frames of a request.
#[derive(Clone)]
struct FrameCounters {
    /// The frames that were passed to the system.
    passed: Arc<AtomicU64>,
    /// Counters that restart limits.
    progress: [Arc<AtomicU64>; 2],
}

impl FrameCounters {
    fn count(&self) {
        for counter in &self.progress {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs a request, and counts a frame every [`FRAME_TIME`] while the slowest usable link, which it shares with the other
    /// ones of `running`, would still send frames out of the buffers.
    async fn observe<T>(&self, running: &Arc<()>, request: impl Future<Output = T>) -> T {
        let _one_more = Arc::clone(running);
        let mut request = std::pin::pin!(request);
        let mut sent = 0.0_f64;
        loop {
            if let Ok(result) = tokio::time::timeout(FRAME_TIME, request.as_mut()).await {
                return result;
            }
            let passed = self.passed.load(Ordering::Relaxed);
            if sent < passed as f64 {
                let share = 1.0 / (Arc::strong_count(running) - 1) as f64;
                let unbuffered = passed.saturating_sub(BUFFERED_FRAMES) as f64;
                sent = (sent + share).max(unbuffered);
                self.count();
            }
        }
    }
}

/// A body that is sent in frames of at most [`FRAME_BYTES`], which are counted.
struct ObservedBody {
    inner: HttpRequestBody,
    /// The part of the last chunk that was not sent yet.
    rest: Bytes,
    counters: FrameCounters,
}

impl Body for ObservedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        while self.rest.is_empty() {
            match Pin::new(&mut self.inner).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(chunk) => self.rest = chunk,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return other,
            }
        }
        let bytes = self.rest.len().min(FRAME_BYTES);
        let frame = self.rest.split_to(bytes);
        self.counters.passed.fetch_add(1, Ordering::Relaxed);
        self.counters.count();
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.inner.size_hint();
        let rest = self.rest.len() as u64;
        match inner.exact() {
            Some(bytes) => SizeHint::with_exact(bytes + rest),
            None => inner,
        }
    }
}
