//! [`SecretText`]: text that is wiped when dropped and never shown by `Debug`.

use std::fmt;

use zeroize::Zeroizing;

/// Text with a private key or a token in it.
///
/// It has no `Display`; whoever needs it says so with [`SecretText::expose`].
#[derive(Clone)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    pub(crate) fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text itself: for a pipe, a file with mode 0600 or an environment of a child, never a log.
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
