//! [`AccessToken`]: the secret that the clients of an HTTP server must send.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use zeroize::Zeroizing;

use crate::error::IdentityError;
use crate::member::hex;
use crate::secret::SecretText;

/// The number of random bytes of a created token.
const RANDOM_BYTES: usize = 16;
/// The smallest number of characters of a token.
const LENGTH_MIN: usize = 16;
/// The valid characters besides letters and digits: those of a bearer token (RFC 6750, section 2.1).
const SIGNS: &str = "-._~+/=";

/// The secret that the clients of an HTTP server must send.
pub struct AccessToken(SecretText);

impl AccessToken {
    /// Creates a random token of 128 bits.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`] if the system has no random numbers.
    pub fn random() -> Result<Self, IdentityError> {
        let mut bytes = Zeroizing::new([0; RANDOM_BYTES]);
        aws_lc_rs::rand::fill(&mut *bytes)
            .map_err(|error| IdentityError::crypto("create a token", &error))?;
        Ok(Self(SecretText::new(hex(&*bytes))))
    }

    /// Takes a token of the user, without the space around it.
    ///
    /// # Errors
    /// [`IdentityError::AccessToken`] if it has fewer than 16 characters, or one that is not a letter, a digit or one of
    /// `-._~+/=`.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        let text = text.trim();
        let is_valid = |sign: char| sign.is_ascii_alphanumeric() || SIGNS.contains(sign);
        if text.len() < LENGTH_MIN || !text.chars().all(is_valid) {
            return Err(IdentityError::AccessToken {
                length: text.chars().count(),
                min: LENGTH_MIN,
            });
        }
        Ok(Self(SecretText::new(text.to_owned())))
    }

    /// Returns the token, for the page address that is shown to the user, never for a log.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose()
    }

    /// Returns whether a text is the token. Compares in a time that depends only on the lengths.
    #[must_use]
    pub fn accepts(&self, text: &str) -> bool {
        verify_slices_are_equal(self.expose().as_bytes(), text.as_bytes()).is_ok()
    }

    /// Returns whether the value of the header `Authorization` is `Bearer` with the token.
    #[must_use]
    pub fn accepts_bearer(&self, value: &[u8]) -> bool {
        let token = std::str::from_utf8(value).ok();
        let token = token.and_then(|value| value.strip_prefix("Bearer "));
        token.is_some_and(|token| self.accepts(token))
    }
}

impl fmt::Debug for AccessToken {
    /// Formats nothing of the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_random_and_compared_completely() {
        let token = AccessToken::random().unwrap();
        let text = token.expose().to_owned();
        assert_eq!(text.len(), 2 * RANDOM_BYTES);
        assert_ne!(text, AccessToken::random().unwrap().expose());
        assert!(token.accepts(&text));
        assert!(token.accepts_bearer(format!("Bearer {text}").as_bytes()));
        let longer = format!("{text}0");
        for wrong in ["", &text[1..], &text[..31], &longer, &"0".repeat(32)] {
            assert!(!token.accepts(wrong), "{wrong}");
            assert!(
                !token.accepts_bearer(format!("Bearer {wrong}").as_bytes()),
                "{wrong}"
            );
        }
        assert!(!token.accepts_bearer(text.as_bytes()));
        assert!(!token.accepts_bearer(b"Bearer \xff"));
        assert!(!format!("{token:?}").contains(&text));
    }

    #[test]
    fn tokens_of_users_are_those_of_headers_and_cookies() {
        for refused in [
            "",
            "short",
            "0123456789 abcdef",
            "0123456789abcd\u{e9};",
            "0123456789abcde;",
        ] {
            assert!(AccessToken::parse(refused).is_err(), "{refused}");
        }
        for text in [" 0123456789abcdef\n", "ab+/-._~cdefghij=="] {
            assert_eq!(AccessToken::parse(text).unwrap().expose(), text.trim());
        }
    }
}
