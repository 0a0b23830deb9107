//! [`IdentityError`]: errors of certificates, keys, tokens and TLS settings.

use ronde_core::Recovery;

/// An error of an identity, a token or a TLS setting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The cryptographic library failed.
    #[error("{what}: {cause}")]
    Crypto {
        /// The attempted operation, a verb with its object.
        what: &'static str,
        /// The error of the library.
        cause: String,
    },
    /// PEM text has other contents than expected.
    #[error("invalid PEM text of {of}: {problem}")]
    Pem {
        /// The owner of the text.
        of: String,
        /// The reason.
        problem: String,
    },
    /// A certificate belongs to another member.
    #[error("the certificate does not belong to {expected}: {cause}")]
    OtherMember {
        /// The expected member.
        expected: String,
        /// The reason, with the member named in the certificate.
        cause: String,
    },
    /// Text that is not a valid join token.
    #[error("invalid join token, expected ronde-join-1.SECRET.AUTHORITY: {problem}")]
    Token {
        /// The reason.
        problem: &'static str,
    },
    /// The token of an HTTP server is too short, or has other characters.
    #[error(
        "invalid token: {length} characters, expected at least {min} letters, digits or characters of `-._~+/=`"
    )]
    AccessToken {
        /// The number of characters.
        length: usize,
        /// The smallest number of characters.
        min: usize,
    },
}

impl IdentityError {
    /// Returns the recovery action for the caller: none, because certificates do not change.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }

    pub(crate) fn crypto(what: &'static str, cause: &impl ToString) -> Self {
        let cause = cause.to_string();
        Self::Crypto { what, cause }
    }
}
