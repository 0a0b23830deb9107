//! [`SecretText`]: text that is zeroed when dropped and that `Debug` does not print.

use std::fmt;

use zeroize::Zeroizing;

/// Text with a private key or a token.
///
/// It does not implement `Display`; callers must use [`SecretText::expose`] explicitly.
#[derive(Clone)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    pub(crate) fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Returns the text, for a pipe, a file with mode 0600 or an environment variable of a child
    /// process, never for a log.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}
