//! [`RequestToken`]: the secret that clients must send.

use axum::http::{HeaderMap, header};

use crate::ServeError;

/// The smallest number of characters of a token.
const LENGTH_MIN: usize = 16;

/// The secret that clients must send as `Authorization: Bearer`. Only its hash is in memory.
pub struct RequestToken(blake3::Hash);

impl RequestToken {
    /// Takes a token, without the space around it.
    ///
    /// # Errors
    /// It has fewer than 16 characters, or one that is not a printable ASCII character.
    pub fn parse(text: &str) -> Result<Self, ServeError> {
        let text = text.trim();
        if text.len() < LENGTH_MIN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ServeError::Token {
                length: text.chars().count(),
                min: LENGTH_MIN,
            });
        }
        Ok(Self(blake3::hash(text.as_bytes())))
    }

    /// Returns whether a request has the token. Hashes are compared in constant time.
    pub(super) fn allows(&self, headers: &HeaderMap) -> bool {
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        bearer.is_some_and(|token| blake3::hash(token.as_bytes()) == self.0)
    }
}

impl std::fmt::Debug for RequestToken {
    /// Formats nothing of the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RequestToken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_allowed() {
        let token = RequestToken::parse(" 0123456789abcdef\n").unwrap();
        let allows = |value: &str| {
            let headers = [(header::AUTHORIZATION, value.parse().unwrap())];
            token.allows(&headers.into_iter().collect())
        };
        assert!(allows("Bearer 0123456789abcdef"));
        for wrong in ["", "0123456789abcdef", "Bearer ", "Bearer 0123456789abcde"] {
            assert!(!allows(wrong), "{wrong}");
        }
        assert!(!token.allows(&HeaderMap::new()));
        assert!(RequestToken::parse("short").is_err());
        assert!(RequestToken::parse("0123456789 abcdef").is_err());
    }
}
