//! [`HttpService`]: blocking requests to a web service, such as a tracking server.

use std::path::Path;
use std::time::Duration;

use reqwest::{Client, Method, StatusCode, Url};
use tokio::runtime::{Builder, Runtime};

use crate::error::StoreError;

/// The time limit for connecting.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// How requests are authenticated.
#[derive(Clone)]
pub enum HttpLogin {
    /// A bearer token.
    Token(String),
    /// A user name and a password.
    Password(String, String),
}

/// A web service at one address. Its calls block; they are not made from an async runtime.
pub struct HttpService {
    base: Url,
    client: Client,
    runtime: Runtime,
    login: Option<HttpLogin>,
}

impl HttpService {
    /// Creates a client of the service at `base`. Certificate authorities of a PEM file are trusted in addition to those of
    /// the system. Sends nothing.
    ///
    /// # Errors
    /// [`StoreError::Settings`] when the address or the file of authorities is invalid.
    pub fn new(
        base: &str,
        authorities: Option<&Path>,
        login: Option<HttpLogin>,
    ) -> Result<Self, StoreError> {
        let failed = |cause: &dyn std::fmt::Display| StoreError::Settings {
            operation: "open",
            location: "the web service".to_owned(),
            cause: cause.to_string(),
        };
        let mut base = Url::parse(base).map_err(|error| failed(&error))?;
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let mut builder = Client::builder().connect_timeout(CONNECT_LIMIT);
        if let Some(path) = authorities {
            let pem = std::fs::read(path).map_err(|error| failed(&error))?;
            let trusted = reqwest::Certificate::from_pem_bundle(&pem);
            builder = builder.tls_certs_merge(trusted.map_err(|error| failed(&error))?);
        }
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Self {
            base,
            client: builder.build().map_err(|error| failed(&error))?,
            runtime: runtime.map_err(|error| failed(&error))?,
            login,
        })
    }

    /// Sends a request to a path below the address, and returns the status code and the body of the answer.
    ///
    /// # Errors
    /// A sentence without secrets: the service cannot be reached, or does not answer within `limit`.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        body: (&str, Vec<u8>),
        limit: Duration,
    ) -> Result<(u16, Vec<u8>), String> {
        let url = self.base.join(path).map_err(|error| error.to_string())?;
        let method = Method::from_bytes(method.as_bytes()).map_err(|error| error.to_string())?;
        let (content_type, body) = body;
        let mut request = self
            .client
            .request(method, url)
            .timeout(limit)
            .header("content-type", content_type)
            .body(body);
        request = match &self.login {
            None => request,
            Some(HttpLogin::Token(token)) => request.bearer_auth(token),
            Some(HttpLogin::Password(user, password)) => request.basic_auth(user, Some(password)),
        };
        let answer = self.runtime.block_on(async {
            let mut answer = request.send().await?;
            let status: StatusCode = answer.status();
            let mut bytes = Vec::new();
            while let Some(chunk) = answer.chunk().await? {
                let room = ANSWER_BYTES_MAX.saturating_sub(bytes.len());
                bytes.extend(chunk.iter().take(room));
            }
            Ok((status.as_u16(), bytes))
        });
        answer.map_err(|error: reqwest::Error| explain(&error.without_url()))
    }
}

/// Returns an error with its innermost cause.
fn explain(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it does not answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
