//! [`RpcSecurity`]: how nodes authenticate to each other.

use std::fmt;
use std::sync::Arc;

use ronde_identity::rustls::{ClientConfig, ServerConfig};
use ronde_identity::{Identity, IdentityError};
use rustix::rand::{GetRandomFlags, getrandom};

/// The ALPN protocol of remote calls.
const PROTOCOL: &[u8] = b"ronde-rpc/1";

/// How the nodes of a job authenticate to each other. A peer that does not is refused before it can call anything.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum RpcSecurity {
    /// Plain connections on loopback addresses, with a secret that all workers of the job share.
    Token(RpcToken),
    /// TLS 1.3 on any address: both sides present a certificate of the job's authority, for the member that the list of
    /// peers names.
    Tls(Identity),
}

/// A secret that the workers of a job share.
#[derive(Clone)]
pub struct RpcToken(Arc<str>);

impl RpcToken {
    /// Uses a secret; it should have at least 128 random bits.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        Self(secret.into())
    }

    /// Generates 256 random bits from the system, as 64 hexadecimal digits.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 32];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        let hash = blake3::Hash::from_bytes(bytes);
        Ok(Self::new(hash.to_hex().as_str()))
    }

    /// Returns the secret, for the environment or the configuration of the other workers.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns whether `shown` is the secret. Takes the same time wherever the two differ: hashes are compared, and
    /// [`blake3::Hash`] compares in constant time.
    pub(crate) fn matches(&self, shown: &str) -> bool {
        blake3::hash(self.0.as_bytes()) == blake3::hash(shown.as_bytes())
    }
}

impl fmt::Debug for RpcToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RpcToken(..)")
    }
}

/// The settings of a node's connections.
pub(crate) enum RpcKeys {
    Token(RpcToken),
    Tls {
        identity: Identity,
        client: Arc<ClientConfig>,
        server: Arc<ServerConfig>,
    },
}

impl RpcSecurity {
    pub(crate) fn keys(&self) -> Result<RpcKeys, IdentityError> {
        match self {
            Self::Token(token) => Ok(RpcKeys::Token(token.clone())),
            Self::Tls(identity) => Ok(RpcKeys::Tls {
                identity: identity.clone(),
                client: identity.client_config(PROTOCOL)?,
                server: identity.server_config(PROTOCOL)?,
            }),
        }
    }
}
