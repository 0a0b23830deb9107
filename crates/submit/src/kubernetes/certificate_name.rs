//! [`CertificateName`]: requests to a server whose certificate has another name than its address, which a kubeconfig specifies with
//! `tls-server-name`.
//!
//! The HTTP client announces and checks the name in the address of a request, so requests have the name of the certificate there.
//! The lookup of this name returns the addresses of the server, and the header `Host` keeps the server's own name.

use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::HeaderValue;

use super::connection_error::ConnectionError;

/// What requests to a server need if its certificate has another name.
pub(super) struct CertificateName {
    /// The address of requests.
    pub(super) base: String,
    /// The value of the header `Host`.
    pub(super) host: HeaderValue,
    pub(super) lookup: Arc<ServerLookup>,
}

/// Looks up a server when a request has the name of its certificate.
pub(super) struct ServerLookup {
    certificate: String,
    server: String,
}

impl CertificateName {
    /// Returns the address of `server` with the name of its certificate; `None` without TLS.
    pub(super) fn new(server: &str, name: &str) -> Result<Option<Self>, ConnectionError> {
        let not_an_address = || ConnectionError::Server {
            server: server.to_owned(),
        };
        let not_a_name = || ConnectionError::CertificateName {
            name: name.to_owned(),
        };
        let url = Url::parse(server).map_err(|_| not_an_address())?;
        if url.scheme() != "https" {
            return Ok(None);
        }
        let mut named = url.clone();
        named.set_host(Some(name)).map_err(|_| not_a_name())?;
        // The client connects to an IP address in the address of a request without a lookup.
        let certificate = named.domain().ok_or_else(not_a_name)?.to_owned();
        let own_name = url.host_str().unwrap_or_default();
        let host = match url.port() {
            Some(port) => format!("{own_name}:{port}"),
            None => own_name.to_owned(),
        };
        let lookup = ServerLookup {
            certificate,
            server: own_name.trim_matches(['[', ']']).to_owned(),
        };
        Ok(Some(Self {
            base: named.as_str().trim_end_matches('/').to_owned(),
            host: HeaderValue::from_str(&host).map_err(|_| not_an_address())?,
            lookup: Arc::new(lookup),
        }))
    }
}

impl Resolve for ServerLookup {
    fn resolve(&self, name: Name) -> Resolving {
        let host = match name.as_str() == self.certificate {
            true => self.server.clone(),
            // That of a proxy.
            false => name.as_str().to_owned(),
        };
        Box::pin(async move {
            // The port is that of the request.
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_name_of_the_certificate_and_the_address_of_the_server() {
        for (server, base, host, found) in [
            (
                "https://10.0.0.1:6443/",
                "https://kubernetes.lab:6443",
                "10.0.0.1:6443",
                "10.0.0.1",
            ),
            (
                "https://[fd00::1]/clusters/a",
                "https://kubernetes.lab/clusters/a",
                "[fd00::1]",
                "fd00::1",
            ),
        ] {
            let named = CertificateName::new(server, "Kubernetes.lab");
            let named = named.unwrap().unwrap();
            assert_eq!(
                (named.base.as_str(), named.host.to_str().unwrap()),
                (base, host)
            );
            assert_eq!(named.lookup.certificate, "kubernetes.lab");
            assert_eq!(named.lookup.server, found);
        }
        assert!(
            CertificateName::new("http://10.0.0.1", "a")
                .unwrap()
                .is_none()
        );
        for name in ["10.0.0.2", "a b", ""] {
            let problem = CertificateName::new("https://10.0.0.1", name)
                .err()
                .unwrap();
            assert!(matches!(problem, ConnectionError::CertificateName { .. }));
        }
    }
}
