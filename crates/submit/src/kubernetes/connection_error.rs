//! [`ConnectionError`]: the setting for which a client of a server cannot be created.

use reqwest::header::InvalidHeaderValue;

/// A setting of a connection that is not valid. Its text has no secrets.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("invalid certificate authority: {0}")]
    Authority(reqwest::Error),
    #[error("invalid client certificate: {0}")]
    ClientCertificate(reqwest::Error),
    #[error("invalid token: {0}")]
    Token(InvalidHeaderValue),
    #[error("invalid server `{}`: expected an address such as https://10.0.0.1:6443", .server.escape_debug())]
    Server { server: String },
    #[error("invalid tls-server-name `{}`: expected a host name", .name.escape_debug())]
    CertificateName { name: String },
    /// The address may have a password.
    #[error(
        "invalid proxy-url: expected an address with http, https or socks5, such as http://proxy:3128"
    )]
    Proxy,
    #[error("invalid proxy-url: expected a socks5 address, because there is a tls-server-name")]
    ProxyWithName,
    #[error("invalid settings: {}", explain(.0))]
    Client(reqwest::Error),
}

/// Returns an error with its innermost cause.
pub(super) fn explain(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it does not answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
