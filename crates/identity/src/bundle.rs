//! Reading and writing of PEM text with certificates and one private key.

use pem::{EncodeConfig, LineEnding, Pem};
use rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use crate::error::IdentityError;
use crate::secret::SecretText;

/// The maximum number of bytes that are parsed.
const TEXT_BYTES_MAX: usize = 64 << 10;
const CERTIFICATE: &str = "CERTIFICATE";
const KEY: &str = "PRIVATE KEY";

/// The parsed contents of PEM text.
pub(crate) struct Bundle {
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    /// PKCS #8.
    pub(crate) key: Zeroizing<Vec<u8>>,
}

/// Writes the certificates in order, then the key.
pub(crate) fn write(certificates: &[&CertificateDer<'_>], key: &[u8]) -> SecretText {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let mut text = String::new();
    for certificate in certificates {
        text += &pem::encode_config(&Pem::new(CERTIFICATE, certificate.to_vec()), config);
    }
    let encoded = Zeroizing::new(pem::encode_config(&Pem::new(KEY, key), config));
    // Enough capacity is reserved first, so that no reallocation leaves a copy of the key behind.
    let mut all = String::with_capacity(text.len() + encoded.len());
    all += &text;
    all += &encoded;
    SecretText::new(all)
}

/// Writes the certificates without the key.
pub(crate) fn write_certificate(certificate: &CertificateDer<'_>) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new(CERTIFICATE, certificate.to_vec()), config)
}

/// Parses exactly `certificates` certificates and one key.
pub(crate) fn read(text: &str, certificates: usize, of: &str) -> Result<Bundle, IdentityError> {
    let wrong = |problem: String| IdentityError::Pem {
        of: of.to_owned(),
        problem,
    };
    if text.len() > TEXT_BYTES_MAX {
        let problem = format!("{} bytes, limit {TEXT_BYTES_MAX}", text.len());
        return Err(wrong(problem));
    }
    let sections = pem::parse_many(text).map_err(|error| wrong(error.to_string()))?;
    let mut bundle = Bundle {
        certificates: Vec::new(),
        key: Zeroizing::new(Vec::new()),
    };
    for section in sections {
        match section.tag() {
            CERTIFICATE => bundle
                .certificates
                .push(CertificateDer::from(section.into_contents())),
            KEY if bundle.key.is_empty() => bundle.key = Zeroizing::new(section.into_contents()),
            // The section's tag is not repeated, because it may contain secret text.
            _ => return Err(wrong("unexpected section".to_owned())),
        }
    }
    if bundle.certificates.len() != certificates || bundle.key.is_empty() {
        let found = bundle.certificates.len();
        let keys = usize::from(!bundle.key.is_empty());
        let problem =
            format!("found {found} certificates and {keys} keys; expected {certificates} and 1");
        return Err(wrong(problem));
    }
    Ok(bundle)
}
