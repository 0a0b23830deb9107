//! [`IdentityError`]: what can be wrong with certificates, keys, tokens and TLS settings.

use ronde_core::Recovery;

/// Why an identity, a token or a TLS setting cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The cryptographic library refused.
    #[error("{what}: {cause}")]
    Crypto {
        /// What was tried.
        what: &'static str,
        /// The library's answer.
        cause: String,
    },
    /// PEM text does not hold what it should.
    #[error("PEM text of {of}: {problem}")]
    Pem {
        /// Whose text.
        of: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A certificate is somebody else's.
    #[error("the certificate is not that of {expected}: {cause}")]
    OtherMember {
        /// Who it should be.
        expected: String,
        /// What the certificate says.
        cause: String,
    },
    /// Text that is no join token.
    #[error("this is no join token: {problem}")]
    Token {
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl IdentityError {
    /// What to do about it: certificates do not mend themselves.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }

    pub(crate) fn crypto(what: &'static str, cause: &impl ToString) -> Self {
        let cause = cause.to_string();
        Self::Crypto { what, cause }
    }
}
