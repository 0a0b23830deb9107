//! [`MasterKey`]: 32 secret bytes from which the key of every object is derived.

use std::fmt;

use aws_lc_rs::{hkdf, rand};
use base64::prelude::{BASE64_STANDARD, Engine};
use zeroize::Zeroizing;

use crate::error::StoreError;

/// The master key; zeroed when dropped, never printed.
#[derive(Clone)]
pub struct MasterKey(Zeroizing<[u8; 32]>);

impl MasterKey {
    /// Generates a random key.
    ///
    /// # Errors
    /// [`StoreError::Key`] when the system has no random numbers.
    pub fn generate() -> Result<Self, StoreError> {
        let mut bytes = Zeroizing::new([0; 32]);
        rand::fill(&mut *bytes).map_err(|_| StoreError::Key {
            problem: "the system has no random numbers".to_owned(),
        })?;
        Ok(Self(bytes))
    }

    /// Parses the contents of a key file or variable: 64 hexadecimal digits or the base64 form of
    /// 32 bytes, with optional white space around them, or 32 raw bytes that are not text.
    ///
    /// Text of 32 bytes is refused: it is a passphrase, which has far less entropy than a key.
    ///
    /// # Errors
    /// [`StoreError::Key`], which does not contain the contents.
    pub fn parse(contents: &[u8]) -> Result<Self, StoreError> {
        let refused = |problem: String| Err(StoreError::Key { problem });
        if !is_text(contents) {
            return match <[u8; 32]>::try_from(contents) {
                Ok(bytes) => Ok(Self(Zeroizing::new(bytes))),
                Err(_) => refused(format!(
                    "got {} bytes that are not text; a raw key has exactly 32 bytes",
                    contents.len()
                )),
            };
        }
        let text = contents.trim_ascii();
        if let Some(bytes) = from_hex(text).or_else(|| from_base64(text)) {
            return Ok(Self(bytes));
        }
        refused(format!(
            "got {} bytes of text that are neither 64 hexadecimal digits nor the base64 form of 32 \
             bytes; a passphrase is not a key",
            text.len()
        ))
    }

    /// Returns the key as 64 hexadecimal digits, for a key file.
    #[must_use]
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex(&*self.0))
    }

    /// Derives the key for one purpose. `salt` may be empty.
    pub(crate) fn derive(&self, salt: &[u8], purpose: &[&[u8]]) -> Zeroizing<[u8; 32]> {
        let mut derived = Zeroizing::new([0; 32]);
        hkdf::Salt::new(hkdf::HKDF_SHA256, salt)
            .extract(&*self.0)
            .expand(purpose, hkdf::HKDF_SHA256)
            .and_then(|okm| okm.fill(&mut *derived))
            .expect("HKDF-SHA256 can derive 32 bytes");
        derived
    }

    /// Returns an identifier of the key that does not reveal it.
    #[must_use]
    pub fn id(&self) -> [u8; 8] {
        let mut id = [0; 8];
        id.copy_from_slice(&self.derive(&[], &[b"ronde-store 1 key id"])[..8]);
        id
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

/// Returns whether the contents are text that a person may have typed. 32 random bytes are not text
/// with a probability of more than 1 - 1e-9.
fn is_text(contents: &[u8]) -> bool {
    std::str::from_utf8(contents).is_ok_and(|text| {
        text.chars()
            .all(|c| !c.is_control() || c.is_ascii_whitespace())
    })
}

/// Decodes 64 hexadecimal digits.
fn from_hex(text: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
    if text.len() != 64 || !text.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = Zeroizing::new([0; 32]);
    let value = |digit: u8| (digit as char).to_digit(16).unwrap_or(0) as u8;
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = value(pair[0]) << 4 | value(pair[1]);
    }
    Some(bytes)
}

/// Decodes 32 bytes in padded base64, as `openssl rand -base64 32` prints them.
fn from_base64(text: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
    let decoded = Zeroizing::new(BASE64_STANDARD.decode(text).ok()?);
    Some(Zeroizing::new(decoded.as_slice().try_into().ok()?))
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hex_base64_or_raw_bytes() {
        let key = MasterKey::generate().unwrap();
        let raw = &*key.0;
        let forms = [
            format!(" {}\n", key.to_hex().as_str()).into_bytes(),
            format!("{}\n", BASE64_STANDARD.encode(raw)).into_bytes(),
            raw.to_vec(),
        ];
        for form in forms {
            assert_eq!(MasterKey::parse(&form).unwrap().id(), key.id());
        }
        assert_ne!(MasterKey::generate().unwrap().id(), key.id());
        assert_eq!(format!("{key:?}"), "MasterKey(..)");
    }

    #[test]
    fn passphrases_and_other_lengths_are_refused_without_being_shown() {
        let umlauts = "\u{e4}".repeat(16);
        for (bad, reason) in [
            (&b""[..], "0 bytes of text"),
            (b"passphrase", "10 bytes of text"),
            (b"passphrase of exactly 32 letters", "32 bytes of text"),
            (b"passphrase of exactly 32 letters\n", "32 bytes of text"),
            (umlauts.as_bytes(), "a passphrase is not a key"),
            (&[b'g'; 64], "64 bytes of text"),
            (&[b'a'; 63], "63 bytes of text"),
            (&[b'a'; 44], "44 bytes of text"),
            (&[1; 33], "33 bytes that are not text"),
            (&[0xff; 31], "31 bytes that are not text"),
        ] {
            let error = MasterKey::parse(bad).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
            assert!(error.contains("openssl rand"), "{error}");
            assert!(!error.contains("passphrase of"), "{error}");
        }
    }
}
