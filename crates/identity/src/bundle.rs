//! PEM text with certificates and one private key, in and out.

use pem::{EncodeConfig, LineEnding, Pem};
use rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use crate::{IdentityError, SecretText};

/// Most bytes of text that is looked at.
const TEXT_BYTES_MAX: usize = 64 << 10;
const CERTIFICATE: &str = "CERTIFICATE";
const KEY: &str = "PRIVATE KEY";

/// What PEM text holds.
pub(crate) struct Bundle {
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    /// PKCS #8.
    pub(crate) key: Zeroizing<Vec<u8>>,
}

/// Certificates in order, then the key.
pub(crate) fn write(certificates: &[&CertificateDer<'_>], key: &[u8]) -> SecretText {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let mut text = String::new();
    for certificate in certificates {
        text += &pem::encode_config(&Pem::new(CERTIFICATE, certificate.to_vec()), config);
    }
    let encoded = Zeroizing::new(pem::encode_config(&Pem::new(KEY, key), config));
    // Room for all beforehand, so that no copy with the key is left behind.
    let mut all = String::with_capacity(text.len() + encoded.len());
    all += &text;
    all += &encoded;
    SecretText::new(all)
}

/// The certificates alone.
pub(crate) fn write_certificate(certificate: &CertificateDer<'_>) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new(CERTIFICATE, certificate.to_vec()), config)
}

/// Reads exactly `certificates` certificates and one key.
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
            // The text of the tag is not ours to repeat.
            _ => return Err(wrong("a section that does not belong there".to_owned())),
        }
    }
    if bundle.certificates.len() != certificates || bundle.key.is_empty() {
        let found = bundle.certificates.len();
        let keys = usize::from(!bundle.key.is_empty());
        let problem = format!("{found} certificates and {keys} keys, not {certificates} and 1");
        return Err(wrong(problem));
    }
    Ok(bundle)
}
