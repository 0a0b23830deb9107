//! [`Identity`]: a member's certificate and key, and the authority that it trusts.

use std::fmt;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use zeroize::Zeroizing;

use crate::error::IdentityError;
use crate::member::Member;
use crate::secret::SecretText;
use crate::token::Fingerprint;
use crate::{bundle, explain};

/// A member's certificate and key, and the authority that it trusts. Cheap to clone.
#[derive(Clone)]
pub struct Identity(Arc<IdentityParts>);

struct IdentityParts {
    job: String,
    member: Member,
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
    key: Zeroizing<Vec<u8>>,
}

impl Identity {
    pub(crate) fn new(
        job: String,
        member: Member,
        certificate: CertificateDer<'static>,
        authority: CertificateDer<'static>,
        key: Zeroizing<Vec<u8>>,
    ) -> Self {
        Self(Arc::new(IdentityParts {
            job,
            member,
            certificate,
            authority,
            key,
        }))
    }

    /// Returns the certificate, the authority's certificate and the private key: the text that a
    /// launcher passes to the member.
    #[must_use]
    pub fn to_pem(&self) -> SecretText {
        let IdentityParts {
            certificate,
            authority,
            key,
            ..
        } = &*self.0;
        bundle::write(&[certificate, authority], key)
    }

    /// Parses the text of [`Identity::to_pem`] for `member` of `job`.
    ///
    /// # Errors
    /// [`IdentityError::Pem`] for other text, [`IdentityError::OtherMember`] for the identity of
    /// another member.
    pub fn from_pem(job: &str, member: Member, text: &str) -> Result<Self, IdentityError> {
        let mut read = bundle::read(text, 2, &member.to_string())?;
        let authority = read.certificates.remove(1);
        let certificate = read.certificates.remove(0);
        check_name(&certificate, job, &member)?;
        let identity = Self::new(job.to_owned(), member, certificate, authority, read.key);
        // A key that does not match the certificate is reported here instead of by the first
        // connection.
        identity.server_config(b"")?;
        Ok(identity)
    }

    /// Returns the name of the job.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.0.job
    }

    /// Returns the member that this identity belongs to.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.0.member
    }

    /// Returns the fingerprint of the job's authority.
    #[must_use]
    pub fn authority(&self) -> Fingerprint {
        Fingerprint::of(&self.0.authority)
    }

    /// Returns the server name for connecting to a member of the same job; the handshake fails when
    /// another member answers.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`] when the name cannot be encoded, which does not happen.
    pub fn name_of(&self, member: &Member) -> Result<ServerName<'static>, IdentityError> {
        member.server_name(&self.0.job)
    }

    /// Checks that a certificate, whose signature and validity the handshake has checked, belongs
    /// to `member` of the same job. The accepting side must call it when it knows which member the
    /// peer claims to be.
    ///
    /// # Errors
    /// [`IdentityError::OtherMember`] with the member named in the certificate.
    pub fn check_peer(
        &self,
        certificate: &CertificateDer<'_>,
        member: &Member,
    ) -> Result<(), IdentityError> {
        check_name(certificate, &self.0.job, member)
    }

    pub(crate) fn own_chain(&self) -> Vec<CertificateDer<'static>> {
        // The chain includes the authority, so that a host that knows only its fingerprint can
        // check it.
        vec![self.0.certificate.clone(), self.0.authority.clone()]
    }

    pub(crate) fn authority_certificate(&self) -> &CertificateDer<'static> {
        &self.0.authority
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.0.key
    }
}

fn check_name(
    certificate: &CertificateDer<'_>,
    job: &str,
    member: &Member,
) -> Result<(), IdentityError> {
    let other = |cause: rustls::Error| IdentityError::OtherMember {
        expected: format!("{member} of job {job}"),
        cause: explain(&cause),
    };
    let parsed = ParsedCertificate::try_from(certificate).map_err(other)?;
    verify_server_name(&parsed, &member.server_name(job)?).map_err(other)
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("job", &self.0.job)
            .field("member", &self.0.member)
            .field("authority", &self.authority())
            .finish_non_exhaustive()
    }
}
