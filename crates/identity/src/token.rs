//! [`JoinToken`], with which a new host joins a job and identifies its authority, and the
//! [`Fingerprint`] of an authority.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use rustls::pki_types::ServerName;
use zeroize::Zeroizing;

use crate::error::IdentityError;
use crate::member::{any_coordinator, hex};
use crate::secret::SecretText;

const PREFIX: &str = "ronde-join-1";
const SECRET_BYTES: usize = 32;

/// The SHA-256 hash of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Returns the fingerprint of a certificate in DER.
    pub(crate) fn of(certificate: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// A secret that lets a host join a job, and the fingerprint of the authority to trust.
///
/// Tokens are compared in constant time.
#[derive(Clone)]
pub struct JoinToken {
    secret: Zeroizing<[u8; SECRET_BYTES]>,
    authority: Fingerprint,
}

impl JoinToken {
    pub(crate) fn new(authority: Fingerprint) -> Result<Self, IdentityError> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        aws_lc_rs::rand::fill(&mut *secret)
            .map_err(|error| IdentityError::crypto("create a token", &error))?;
        Ok(Self { secret, authority })
    }

    /// Returns the fingerprint of the authority to trust.
    #[must_use]
    pub fn authority(&self) -> Fingerprint {
        self.authority
    }

    /// Returns the server name for connecting to the job's coordinator with
    /// [`JoinToken::client_config`]; the name of the job is not needed.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`] when the name cannot be encoded, which does not happen.
    pub fn server_name(&self) -> Result<ServerName<'static>, IdentityError> {
        any_coordinator()
    }

    /// Returns the token as one word for a command line or a file; `parse` reads it back.
    #[must_use]
    pub fn to_text(&self) -> SecretText {
        let secret = Zeroizing::new(hex(&*self.secret));
        SecretText::new(format!("{PREFIX}.{}.{}", &*secret, self.authority))
    }

    /// Returns whether both tokens are equal, in a time that does not depend on where they differ.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        let secret = verify_slices_are_equal(&*self.secret, &*other.secret).is_ok();
        let authority = verify_slices_are_equal(&self.authority.0, &other.authority.0).is_ok();
        secret & authority
    }
}

impl FromStr for JoinToken {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let wrong = |problem| IdentityError::Token { problem };
        let mut parts = text.trim().split('.');
        if parts.next() != Some(PREFIX) {
            return Err(wrong("it does not start with ronde-join-1"));
        }
        let secret = parts.next().and_then(digits);
        let authority = parts.next().and_then(digits);
        match (secret, authority, parts.next()) {
            (Some(secret), Some(authority), None) => Ok(Self {
                secret: Zeroizing::new(secret),
                authority: Fingerprint(authority),
            }),
            _ => Err(wrong(
                "SECRET and AUTHORITY must be 64 hexadecimal digits each",
            )),
        }
    }
}

fn digits(text: &str) -> Option<[u8; 32]> {
    let text = text.as_bytes();
    if text.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks(2)) {
        let digit = |of: u8| char::from(of).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(bytes)
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("authority", &self.authority)
            .finish_non_exhaustive()
    }
}
