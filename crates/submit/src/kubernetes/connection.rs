//! [`Connection`]: blocking requests to an API server, output that is followed, and commands in pods over a web socket.

use std::io::Write;
use std::time::Duration;

use base64::Engine;
use reqwest::header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue, UPGRADE};
use reqwest::{
    Certificate, Client, ClientBuilder, Identity, Method, RequestBuilder, Response, StatusCode,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::api::{ApiFailure, ChannelReceiver};
use super::certificate_name::CertificateName;
use super::connection_error::{ConnectionError, explain};
use super::kubeconfig::{ClusterAddress, ClusterLogin};
use super::proxy::ProxyAddress;
use super::web_socket::WebSocket;
use super::{KubernetesAccess, KubernetesSettings};
use crate::error::SubmitError;

/// The time limit for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Silence after which the system looks whether the server is still there, so that output that is followed does not wait for
/// a lost connection.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The protocol of commands in pods: the first byte of each message is its channel.
const EXEC_PROTOCOL: &str = "v4.channel.k8s.io";

/// A client of an API server. Its calls block; they are not made from an async runtime.
pub(crate) struct Connection {
    /// The address of the server, and of the proxy if the settings have one.
    server: String,
    /// The address of requests.
    base: String,
    /// The header `Host`, if it is not that of `base`.
    host: Option<HeaderValue>,
    client: Client,
    runtime: Runtime,
    authorization: Option<HeaderValue>,
}

impl Connection {
    /// Reads the settings of a cluster. Returns the client, the name of the cluster in messages, and the namespace of the
    /// context. Sends nothing, but may run the program that the kubeconfig names for credentials.
    pub(super) fn open(
        settings: &KubernetesSettings,
        access: &KubernetesAccess,
    ) -> Result<(Self, String, String), SubmitError> {
        let address = ClusterAddress::find(settings, access)?;
        let help = "correct the kubeconfig; `kubectl config view --minify` shows what it has";
        let connection = Self::new(&address, help)?;
        Ok((connection, address.title, address.namespace))
    }

    /// Creates the client of a server of another kind, with the certificates of its authority and a token. Sends nothing.
    pub(crate) fn to(
        title: &str,
        server: &str,
        authority: Option<String>,
        token: Option<String>,
    ) -> Result<Self, SubmitError> {
        let address = ClusterAddress {
            title: title.to_owned(),
            server: server.to_owned(),
            authority: authority.map(String::into_bytes),
            is_unchecked: false,
            certificate_name: None,
            proxy: None,
            identity: None,
            login: token.map(ClusterLogin::Token),
            namespace: String::new(),
        };
        Self::new(&address, "correct the description of the target")
    }

    fn new(address: &ClusterAddress, help: &str) -> Result<Self, SubmitError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(SubmitError::file("start", "an I/O runtime".as_ref()))?;
        Self::on(runtime, address).map_err(|error| {
            SubmitError::invalid(format!("cannot use {}: {error}", address.title), help)
        })
    }

    fn on(runtime: Runtime, address: &ClusterAddress) -> Result<Self, ConnectionError> {
        let mut server = address.server.trim_end_matches('/').to_owned();
        let (mut base, mut host) = (server.clone(), None);
        let mut builder = client_builder(address)?;
        if let Some(name) = &address.certificate_name
            && let Some(named) = CertificateName::new(&server, name)?
        {
            (base, host) = (named.base, Some(named.host));
            // Proxies of the environment would look up the name of the certificate.
            builder = builder.no_proxy().dns_resolver(named.lookup);
        }
        if let Some(text) = &address.proxy {
            let proxy = ProxyAddress::parse(text)?;
            builder = builder.proxy(proxy.to_proxy(host.is_some())?);
            server = format!("{server} through the proxy {}", proxy.shown());
        }
        Ok(Self {
            server,
            base,
            host,
            client: builder.build().map_err(ConnectionError::Client)?,
            runtime,
            authorization: address.login.as_ref().map(authorization).transpose()?,
        })
    }

    /// Returns the address of the server, for messages.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let mut request = self.client.request(method, format!("{}/{path}", self.base));
        for (name, value) in [(AUTHORIZATION, &self.authorization), (HOST, &self.host)] {
            if let Some(value) = value {
                request = request.header(name, value.clone());
            }
        }
        request
    }

    /// Sends a request and returns the status code and the body of the answer. The error is a sentence without secrets.
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
        limit: Duration,
    ) -> Result<(u16, Vec<u8>), String> {
        let method = Method::from_bytes(method.as_bytes()).map_err(|error| error.to_string())?;
        let mut request = self.request(method, path).timeout(limit);
        if let Some((kind, body)) = body {
            request = request.header("content-type", kind).body(body);
        }
        let answer = self.runtime.block_on(async {
            let answer = request.send().await?;
            read(answer).await
        });
        answer.map_err(|error| explain(&error.without_url()))
    }

    /// Copies the body of an answer to `out` as it arrives.
    pub(super) fn stream(
        &self,
        path: &str,
        limit: Duration,
        out: &mut dyn Write,
    ) -> Result<(), ApiFailure> {
        let request = self.request(Method::GET, path);
        self.runtime.block_on(async {
            let mut answer = open(request, limit, |status| status.is_success()).await?;
            while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
                let written = out.write_all(&chunk).and_then(|()| out.flush());
                written.map_err(ApiFailure::Output)?;
            }
            Ok(())
        })
    }

    /// Runs a command in a pod and passes each message of the server to `receive`: a channel and bytes.
    pub(super) fn exec(
        &self,
        path: &str,
        limit: Duration,
        receive: &mut ChannelReceiver<'_>,
    ) -> Result<(), ApiFailure> {
        let mut message = |message: &[u8]| match message.split_first() {
            Some((channel, bytes)) => receive(*channel, bytes),
            None => Ok(()),
        };
        self.web_socket(path, limit, Some(EXEC_PROTOCOL), &mut message)
    }

    /// Copies the messages of a web socket to `out` until the server ends it.
    pub(crate) fn tail(
        &self,
        path: &str,
        limit: Duration,
        out: &mut dyn Write,
    ) -> Result<(), ApiFailure> {
        let mut message = |message: &[u8]| {
            let written = out.write_all(message).and_then(|()| out.flush());
            written.map_err(ApiFailure::Output)
        };
        self.web_socket(path, limit, None, &mut message)
    }

    /// Passes each message of a web socket to `receive` until the server ends it.
    fn web_socket(
        &self,
        path: &str,
        limit: Duration,
        protocol: Option<&str>,
        receive: &mut dyn FnMut(&[u8]) -> Result<(), ApiFailure>,
    ) -> Result<(), ApiFailure> {
        let mut key = [0_u8; 16];
        aws_lc_rs::rand::fill(&mut key)
            .map_err(|_| ApiFailure::Unreachable("the system has no random numbers".to_owned()))?;
        let mut request = self
            .request(Method::GET, path)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header("sec-websocket-version", "13")
            .header(
                "sec-websocket-key",
                base64::engine::general_purpose::STANDARD.encode(key),
            );
        if let Some(protocol) = protocol {
            request = request.header("sec-websocket-protocol", protocol);
        }
        self.runtime.block_on(async {
            let is_upgrade = |status| status == StatusCode::SWITCHING_PROTOCOLS;
            let answer = open(request, limit, is_upgrade).await?;
            let upgraded = answer.upgrade().await.map_err(unreachable)?;
            let mut socket = WebSocket::new(upgraded).await;
            loop {
                match socket.next().await {
                    Ok(Some(message)) => receive(&message)?,
                    Ok(None) => return Ok(()),
                    Err(error) => return Err(ApiFailure::Unreachable(error.to_string())),
                }
            }
        })
    }
}

/// Returns the settings of a client, with the certificates that it trusts and its own.
fn client_builder(address: &ClusterAddress) -> Result<ClientBuilder, ConnectionError> {
    let mut builder = Client::builder()
        .connect_timeout(CONNECT_MAX)
        .http1_only()
        // The credentials are for this server alone.
        .redirect(reqwest::redirect::Policy::none())
        .tcp_keepalive(KEEPALIVE)
        .tls_danger_accept_invalid_certs(address.is_unchecked);
    if let Some(pem) = &address.authority {
        let trusted = Certificate::from_pem_bundle(pem).map_err(ConnectionError::Authority)?;
        builder = builder.tls_certs_only(trusted);
    }
    if let Some(pem) = &address.identity {
        let identity = Identity::from_pem(pem).map_err(ConnectionError::ClientCertificate)?;
        builder = builder.identity(identity);
    }
    Ok(builder)
}

/// Sends a request, and returns the answer before its body is read. A status that is not expected is a failure.
async fn open(
    request: RequestBuilder,
    limit: Duration,
    is_expected: impl Fn(StatusCode) -> bool,
) -> Result<Response, ApiFailure> {
    let answer = timeout(limit, request.send()).await;
    let answer = answer.map_err(|_| no_answer(limit))?.map_err(unreachable)?;
    if is_expected(answer.status()) {
        return Ok(answer);
    }
    let refusal = timeout(limit, read(answer)).await;
    let (code, body) = refusal
        .map_err(|_| no_answer(limit))?
        .map_err(unreachable)?;
    Err(ApiFailure::of(code, &body))
}

fn unreachable(error: reqwest::Error) -> ApiFailure {
    ApiFailure::Unreachable(explain(&error.without_url()))
}

fn no_answer(limit: Duration) -> ApiFailure {
    ApiFailure::Unreachable(format!("no answer within {} s", limit.as_secs()))
}

/// Returns the header that authenticates requests.
fn authorization(login: &ClusterLogin) -> Result<HeaderValue, ConnectionError> {
    let text = match login {
        ClusterLogin::Token(token) => format!("Bearer {token}"),
        ClusterLogin::Password(user, password) => {
            let pair =
                base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            format!("Basic {pair}")
        }
    };
    let mut value = HeaderValue::from_str(&text).map_err(ConnectionError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads an answer of limited size.
async fn read(mut answer: Response) -> Result<(u16, Vec<u8>), reqwest::Error> {
    let code = answer.status().as_u16();
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        let room = ANSWER_BYTES_MAX.saturating_sub(bytes.len());
        bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    Ok((code, bytes))
}
