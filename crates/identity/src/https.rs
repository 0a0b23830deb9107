//! [`https_server_config`]: the TLS settings of an HTTP server with a certificate of the user.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;

use crate::error::IdentityError;
use crate::tls::provider;

/// Returns the settings of a server for clients without certificates: TLS 1.3 and HTTP/1.1. `certificates` is PEM text with
/// the certificate of the server and then those that lead to its authority, `key` is PEM text with its private key (PKCS #8,
/// PKCS #1 or SEC 1). Other sections of both texts are ignored.
///
/// # Errors
/// [`IdentityError::Pem`] if a text has no certificate or no key, [`IdentityError::Crypto`] if they do not match.
pub fn https_server_config(
    certificates: &[u8],
    key: &[u8],
) -> Result<Arc<ServerConfig>, IdentityError> {
    let invalid = |of: &str, problem: String| IdentityError::Pem {
        of: of.to_owned(),
        problem,
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
    let chain = chain.map_err(|error| invalid("the certificate", error.to_string()))?;
    if chain.is_empty() {
        return Err(invalid(
            "the certificate",
            "it has no certificate".to_owned(),
        ));
    }
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| invalid("the private key", error.to_string()))?;
    let failed = |error| IdentityError::crypto("set up TLS", &error);
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(failed)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(failed)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::authority::{Authority, Validity};
    use crate::member::Member;

    #[test]
    fn certificates_and_keys_must_be_complete_and_match() {
        let hour = Validity::from_now(SystemTime::now(), Duration::from_secs(3600));
        let authority = Authority::new("job", hour).unwrap();
        let text = |member| {
            let identity = authority.issue(&member, hour).unwrap();
            identity.to_pem().expose().to_owned()
        };
        let member = || Member::Rank(ronde_core::Rank(0));
        let (one, other) = (text(member()), text(member()));
        https_server_config(one.as_bytes(), one.as_bytes()).unwrap();
        let certificate = one.split("-----BEGIN PRIVATE KEY").next().unwrap();
        for (certificate, key, problem) in [
            ("", &*one, "the certificate: it has no certificate"),
            ("junk", &*one, "the certificate: it has no certificate"),
            (&*one, "", "the private key"),
            (&*one, certificate, "the private key"),
            (certificate, &*other, "set up TLS"),
            (&one[..200], &*one, "the certificate"),
        ] {
            let error = https_server_config(certificate.as_bytes(), key.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(problem), "{problem}: {error}");
        }
    }
}
