//! [`MasterKey`]: 32 secret bytes from which the key of every object is derived.

use std::fmt;

use aws_lc_rs::{hkdf, rand};
use zeroize::Zeroizing;

use crate::StoreError;

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

    /// Takes the contents of a key file or variable: 64 hexadecimal digits, white space around them, or 32 raw bytes.
    ///
    /// # Errors
    /// [`StoreError::Key`]; the contents are not repeated in it.
    pub fn parse(contents: &[u8]) -> Result<Self, StoreError> {
        if let Ok(bytes) = <[u8; 32]>::try_from(contents) {
            return Ok(Self(Zeroizing::new(bytes)));
        }
        let digits = contents.trim_ascii();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(StoreError::Key {
                problem: format!(
                    "64 hexadecimal digits or 32 raw bytes are expected, {} bytes are here",
                    contents.len()
                ),
            });
        }
        let mut bytes = Zeroizing::new([0; 32]);
        let value = |digit: u8| (digit as char).to_digit(16).unwrap_or(0) as u8;
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0]) << 4 | value(pair[1]);
        }
        Ok(Self(bytes))
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
    fn keys_come_from_hex_or_raw_bytes_and_nothing_else() {
        let key = MasterKey::generate().unwrap();
        let text = format!(" {}\n", key.to_hex().as_str());
        assert_eq!(MasterKey::parse(text.as_bytes()).unwrap().id(), key.id());
        assert_eq!(MasterKey::parse(&*key.0).unwrap().id(), key.id());
        for bad in [&b""[..], b"passphrase", &[b'g'; 64], &[b'a'; 63], &[1; 33]] {
            let error = MasterKey::parse(bad).unwrap_err().to_string();
            assert!(error.contains("openssl rand"), "{error}");
            assert!(!error.contains("passphrase"));
        }
        assert_ne!(MasterKey::generate().unwrap().id(), key.id());
        assert_eq!(format!("{key:?}"), "MasterKey(..)");
    }
}
