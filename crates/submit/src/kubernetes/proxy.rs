//! [`ProxyAddress`]: the proxy through which a cluster is reached, which a kubeconfig specifies with `proxy-url`.

use reqwest::{Proxy, Url};

use super::connection_error::ConnectionError;

/// The address of a proxy, which may have a password.
pub(super) struct ProxyAddress(Url);

impl ProxyAddress {
    /// Reads an address.
    pub(super) fn parse(text: &str) -> Result<Self, ConnectionError> {
        let url = Url::parse(text).map_err(|_| ConnectionError::Proxy)?;
        let is_known = matches!(url.scheme(), "http" | "https" | "socks5");
        let is_complete = is_known && url.host_str().is_some_and(|host| !host.is_empty());
        is_complete
            .then_some(Self(url))
            .ok_or(ConnectionError::Proxy)
    }

    /// Returns the host and the port, for messages.
    pub(super) fn shown(&self) -> String {
        let host = self.0.host_str().unwrap_or_default();
        match self.0.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    /// Returns the proxy of all requests. If the certificate of the server has another name than its address, the client looks up
    /// the server; otherwise the proxy does, as with `kubectl`.
    pub(super) fn to_proxy(&self, has_other_name: bool) -> Result<Proxy, ConnectionError> {
        let text = self.0.as_str();
        let proxy = match text.strip_prefix("socks5:") {
            Some(rest) if !has_other_name => Proxy::all(format!("socks5h:{rest}")),
            None if has_other_name => return Err(ConnectionError::ProxyWithName),
            _ => Proxy::all(text),
        };
        proxy.map_err(|_| ConnectionError::Proxy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_have_a_known_scheme_and_a_host_and_their_password_is_not_shown() {
        for (text, shown) in [
            ("http://me:secret@proxy.lab:3128", "proxy.lab:3128"),
            ("https://proxy.lab", "proxy.lab"),
            ("socks5://[::1]:1080", "[::1]:1080"),
        ] {
            let proxy = ProxyAddress::parse(text).unwrap();
            assert_eq!(proxy.shown(), shown);
            assert!(proxy.to_proxy(false).is_ok());
            assert_eq!(proxy.to_proxy(true).is_ok(), text.starts_with("socks5"));
        }
        for text in [
            "proxy:3128",
            "ftp://proxy",
            "socks5:secret",
            "http://",
            "//x",
            "",
        ] {
            let problem = ProxyAddress::parse(text).err().unwrap();
            assert!(matches!(problem, ConnectionError::Proxy), "{text}");
        }
    }
}
