//! [`Authority`]: the certificate authority of one job, created when the job starts.

use std::fmt;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;
use zeroize::{Zeroize, Zeroizing};

use crate::member::job_label;
use crate::{Fingerprint, Identity, IdentityError, JoinToken, Member, SecretText, bundle};

/// The allowed difference between the clocks of hosts.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// The time during which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub from: SystemTime,
    /// The last moment.
    pub until: SystemTime,
}

impl Validity {
    /// Valid for `time` from now; begins five minutes earlier, for hosts whose clocks are late.
    #[must_use]
    pub fn from_now(now: SystemTime, time: Duration) -> Self {
        Self {
            from: now - CLOCK_SKEW,
            until: now + time,
        }
    }
}

/// Signs the certificates of the members of one job.
///
/// The private key is only revealed by [`Authority::to_pem`]. Creating an authority or issuing an
/// identity takes well under a millisecond (ECDSA on P-256).
pub struct Authority {
    job: String,
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl Authority {
    /// Creates an authority with a new key.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`] when the system has no random numbers.
    pub fn new(job: &str, validity: Validity) -> Result<Self, IdentityError> {
        let key = new_key()?;
        let mut params = authority_params(job);
        params.not_before = OffsetDateTime::from(validity.from);
        params.not_after = OffsetDateTime::from(validity.until);
        let certificate = params
            .self_signed(&key)
            .map_err(|error| IdentityError::crypto("create the job's authority", &error))?;
        Ok(Self {
            job: job.to_owned(),
            certificate: certificate.into(),
            key,
        })
    }

    /// Returns the certificate and the private key. With this text anyone can create members of the
    /// job.
    #[must_use]
    pub fn to_pem(&self) -> SecretText {
        bundle::write(&[&self.certificate], self.key.serialized_der())
    }

    /// Parses the text of [`Authority::to_pem`].
    ///
    /// # Errors
    /// [`IdentityError::Pem`] for other text, or when the certificate and the key do not match or
    /// belong to another job.
    pub fn from_pem(job: &str, text: &str) -> Result<Self, IdentityError> {
        let of = "an authority";
        let wrong = |problem: String| IdentityError::Pem {
            of: of.to_owned(),
            problem,
        };
        let mut read = bundle::read(text, 1, of)?;
        let key = KeyPair::try_from(read.key.as_slice()).map_err(|e| wrong(e.to_string()))?;
        let authority = Self {
            job: job.to_owned(),
            certificate: read.certificates.remove(0),
            key,
        };
        // The certificate contains the job's name and the public key; those count, not the order of
        // the sections.
        let contains = |needle: &[u8]| {
            let mut windows = authority.certificate.windows(needle.len());
            windows.any(|window| window == needle)
        };
        if !contains(authority.key.public_key_raw()) {
            return Err(wrong("the key does not match the certificate".to_owned()));
        }
        if !contains(job_label(job).as_bytes()) {
            return Err(wrong(format!("this is not the authority of job {job}")));
        }
        Ok(authority)
    }

    /// Returns the certificate without the key; it is public.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        bundle::write_certificate(&self.certificate)
    }

    /// Returns the fingerprint of the certificate.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// Issues a certificate with a new key to a member, valid as client and as server.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`] when the system has no random numbers.
    pub fn issue(&self, member: &Member, validity: Validity) -> Result<Identity, IdentityError> {
        let failed = |error: rcgen::Error| IdentityError::crypto("issue a certificate", &error);
        let mut key = new_key()?;
        let mut params = CertificateParams::new(member.dns_names(&self.job)).map_err(failed)?;
        params.distinguished_name = named(&format!("{member} of {}", self.job), &self.job);
        params.not_before = OffsetDateTime::from(validity.from);
        params.not_after = OffsetDateTime::from(validity.until);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let issuer_params = authority_params(&self.job);
        let issuer = Issuer::from_params(&issuer_params, &self.key);
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        let secret = Zeroizing::new(key.serialized_der().to_vec());
        key.zeroize();
        Ok(Identity::new(
            self.job.clone(),
            member.clone(),
            certificate.into(),
            self.certificate.clone(),
            secret,
        ))
    }

    /// Creates a random token with which a host may join, and which identifies this authority.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`] when the system has no random numbers.
    pub fn join_token(&self) -> Result<JoinToken, IdentityError> {
        JoinToken::new(self.fingerprint())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("job", &self.job)
            .field("fingerprint", &self.fingerprint())
            .finish_non_exhaustive()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

fn new_key() -> Result<KeyPair, IdentityError> {
    KeyPair::generate().map_err(|error| IdentityError::crypto("create a key", &error))
}

/// Returns a common name for people, of at most the 64 characters that X.509 allows, and the job's
/// hash.
fn named(name: &str, job: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    let name: String = name.chars().take(64).collect();
    distinguished.push(DnType::CommonName, name);
    distinguished.push(DnType::OrganizationalUnitName, job_label(job));
    distinguished
}

fn authority_params(job: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&format!("ronde job {job}"), job);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}
