//! The secret of a job: generated at its start, compared in constant time.

use std::fs::File;
use std::io::Read;

/// A secret with which workers authenticate to their supervisor.
#[derive(Clone)]
pub(crate) struct Token(String);

impl From<String> for Token {
    /// Uses a secret that the user has chosen.
    fn from(secret: String) -> Self {
        Self(secret)
    }
}

impl Token {
    /// Generates 256 random bits from the system, as 64 hexadecimal digits.
    pub(crate) fn random() -> std::io::Result<Self> {
        let mut bytes = [0_u8; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(blake3::Hash::from_bytes(bytes).to_hex().to_string()))
    }

    /// Returns the secret, for the workers' environment.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }

    /// Returns whether `shown` is the secret. Takes the same time wherever the two differ: hashes
    /// are compared, and [`blake3::Hash`] compares in constant time.
    pub(crate) fn matches(&self, shown: &str) -> bool {
        blake3::hash(self.0.as_bytes()) == blake3::hash(shown.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_itself_matches() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(one.secret().len(), 64);
        assert!(one.matches(one.secret()));
        for shown in ["", "x", other.secret(), &one.secret()[..63]] {
            assert!(!one.matches(shown));
        }
    }
}
