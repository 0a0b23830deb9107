//! [`PeerAddress`]: `host:port` of another process. The name is resolved again at each attempt to connect, because its
//! process may start later than its peers, or move to another host.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::error::ClusterError;

/// The longest name of a host, in bytes.
const HOST_BYTES_MAX: usize = 255;
/// The longest wait for the resolver of the system, which itself waits longer for a name server that does not answer.
const RESOLVE_MAX: Duration = Duration::from_secs(5);
/// The prefix of the standard library for an error of the resolver.
const LOOKUP_FAILED: &str = "failed to lookup address information: ";

/// The name or IP address of a host, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAddress {
    host: String,
    port: u16,
}

impl PeerAddress {
    /// Returns whether the host is a name, so that other addresses may belong to it later.
    #[must_use]
    pub fn is_name(&self) -> bool {
        self.host.parse::<IpAddr>().is_err()
    }

    /// Returns the addresses that the system has for the name now. Takes at most `limit`, and at most 5 s.
    ///
    /// # Errors
    /// Returns a sentence with the name and the resolver's error.
    pub fn resolve(&self, limit: Duration) -> Result<Vec<SocketAddr>, String> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let failed = |cause: &str| format!("cannot resolve the name `{}`: {cause}", self.host);
        let (sender, found) = mpsc::channel();
        let (host, port) = (self.host.clone(), self.port);
        // The resolver cannot be interrupted; the thread ends when it gives up.
        let started = thread::Builder::new()
            .name("resolver".to_owned())
            .spawn(move || {
                let found = (host.as_str(), port).to_socket_addrs().map(Vec::from_iter);
                // The receiver does not wait for a late answer.
                let _late = sender.send(found);
            });
        started.map_err(|error| failed(&error.to_string()))?;
        let limit = limit.min(RESOLVE_MAX);
        match found.recv_timeout(limit) {
            Ok(Ok(found)) if found.is_empty() => Err(failed("it has no address")),
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => {
                let text = error.to_string();
                Err(failed(text.strip_prefix(LOOKUP_FAILED).unwrap_or(&text)))
            }
            Err(_) => Err(failed(&format!(
                "the name server did not answer within {limit:.1?}"
            ))),
        }
    }
}

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: address.ip().to_string(),
            port: address.port(),
        }
    }
}

impl FromStr for PeerAddress {
    type Err = ClusterError;

    fn from_str(text: &str) -> Result<Self, ClusterError> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        let is_part = |c: char| c.is_alphanumeric() || "-._".contains(c);
        let parts = text.rsplit_once(':').and_then(|(host, port)| {
            let is_host = (1..=HOST_BYTES_MAX).contains(&host.len()) && host.chars().all(is_part);
            Some((host, port.parse().ok()?)).filter(|_| is_host)
        });
        match parts {
            Some((host, port)) => Ok(Self {
                host: host.to_owned(),
                port,
            }),
            None => Err(ClusterError::Address {
                address: text.to_owned(),
            }),
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_kept_as_they_were_written() {
        for text in [
            "10.0.0.1:4711",
            "[::1]:80",
            "trainer-0.trainer:29500",
            "h_1:0",
        ] {
            assert_eq!(text.parse::<PeerAddress>().unwrap().to_string(), text);
        }
        let long = format!("{}:1", "x".repeat(256));
        for text in [
            "",
            "host",
            ":1",
            "host:",
            "host:65536",
            "::1:80x",
            "a b:1",
            &long,
        ] {
            let error = text.parse::<PeerAddress>().unwrap_err().to_string();
            let expected = format!("invalid address `{text}`: expected HOST:PORT");
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn a_name_is_resolved_and_an_unknown_one_is_named_with_the_cause() {
        let limit = Duration::from_secs(60);
        let local: PeerAddress = "localhost:7".parse().unwrap();
        let found = local.resolve(limit).unwrap();
        assert!(local.is_name());
        assert!(
            found
                .iter()
                .all(|at| at.ip().is_loopback() && at.port() == 7)
        );
        let numeric: PeerAddress = "[::1]:7".parse().unwrap();
        assert!(!numeric.is_name());
        assert_eq!(
            numeric.resolve(Duration::ZERO),
            Ok(vec!["[::1]:7".parse().unwrap()])
        );
        let unknown: PeerAddress = "no-such-host.invalid:7".parse().unwrap();
        let error = unknown.resolve(limit).unwrap_err();
        let expected = "cannot resolve the name `no-such-host.invalid`: ";
        assert!(error.starts_with(expected), "{error}");
        assert!(!error.contains(LOOKUP_FAILED), "{error}");
    }
}
