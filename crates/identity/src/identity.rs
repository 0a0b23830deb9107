//! [`Identity`]: a member's certificate and key, and the authority that it trusts.

use std::fmt;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use zeroize::Zeroizing;

use crate::{Fingerprint, IdentityError, Member, SecretText, bundle, explain};

/// A member's certificate and key, and the authority that it trusts. Cheap to clone.
#[derive(Clone)]
pub struct Identity(Arc<Parts>);

struct Parts {
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
        Self(Arc::new(Parts {
            job,
            member,
            certificate,
            authority,
            key,
        }))
    }

    /// Certificate, authority's certificate and private key: what a launcher hands to the member.
    #[must_use]
    pub fn to_pem(&self) -> SecretText {
        let Parts {
            certificate,
            authority,
            key,
            ..
        } = &*self.0;
        bundle::write(&[certificate, authority], key)
    }

    /// Reads back [`Identity::to_pem`] as the one of `member` of `job`.
    ///
    /// # Errors
    /// [`IdentityError::Pem`] for other text, [`IdentityError::OtherMember`] for somebody else's.
    pub fn from_pem(job: &str, member: Member, text: &str) -> Result<Self, IdentityError> {
        let mut read = bundle::read(text, 2, &member.to_string())?;
        let authority = read.certificates.remove(1);
        let certificate = read.certificates.remove(0);
        check_name(&certificate, job, &member)?;
        let identity = Self::new(job.to_owned(), member, certificate, authority, read.key);
        // A key that is not the certificate's is found here and not in the first connection.
        identity.server_config(b"")?;
        Ok(identity)
    }

    /// The job that it belongs to.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.0.job
    }

    /// Who it is.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.0.member
    }

    /// What the job's authority is known by.
    #[must_use]
    pub fn authority(&self) -> Fingerprint {
        Fingerprint::of(&self.0.authority)
    }

    /// The name under which to dial a member of the same job; the handshake fails when another
    /// answers.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`] when the name cannot be written, which does not happen.
    pub fn name_of(&self, member: &Member) -> Result<ServerName<'static>, IdentityError> {
        member.server_name(&self.0.job)
    }

    /// Checks that a certificate, whose signature and time the handshake has checked, is that of
    /// `member` of the same job. The accepting side must call it once it knows who claims to be there.
    ///
    /// # Errors
    /// [`IdentityError::OtherMember`] saying what the certificate is for.
    pub fn check_peer(
        &self,
        certificate: &CertificateDer<'_>,
        member: &Member,
    ) -> Result<(), IdentityError> {
        check_name(certificate, &self.0.job, member)
    }

    pub(crate) fn own_chain(&self) -> Vec<CertificateDer<'static>> {
        // With the authority, so that a host that knows only its fingerprint can check the chain.
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
