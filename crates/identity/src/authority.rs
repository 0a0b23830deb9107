//! [`Authority`]: the certificate authority of one job, created when the job starts.

use std::fmt;
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use aws_lc_rs::pbkdf2;
use aws_lc_rs::signature::Ed25519KeyPair;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SerialNumber, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;
use zeroize::{Zeroize, Zeroizing};

use crate::bundle;
use crate::error::IdentityError;
use crate::identity::Identity;
use crate::member::Member;
use crate::member::job_label;
use crate::secret::SecretText;
use crate::token::{Fingerprint, JoinToken};

/// The allowed difference between the clocks of hosts, and the longest time that a clock may be set back while a job runs.
const CLOCK_SKEW: Duration = Duration::from_secs(2 * 86_400);

/// The rounds of the derivation of a key from a secret.
const SECRET_ROUNDS: NonZeroU32 = NonZeroU32::new(100_000).unwrap();
/// Tells this derivation from others of the same secret.
const SECRET_SALT: &str = "ronde authority from a secret, version 1: ";
/// The operation in errors of the derivation.
const DERIVE: &str = "derive the job's authority from its secret";

/// The time during which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub from: SystemTime,
    /// The last moment.
    pub until: SystemTime,
}

impl Validity {
    /// Valid for `time` from now; starts two days earlier, for hosts whose clocks are late or are set back.
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

    /// Creates the authority that every holder of a secret can create: with the same key and the same certificate. It is for
    /// jobs whose processes have nothing else in common. Guessing a secret costs a derivation of the key, which takes some
    /// ten milliseconds (PBKDF2 with SHA-256, RFC 8018; Ed25519, RFC 8032).
    ///
    /// # Errors
    /// [`IdentityError::Crypto`] when a library fails, which does not happen.
    pub fn from_secret(job: &str, secret: &str) -> Result<Self, IdentityError> {
        let failed = |cause: &dyn fmt::Display| IdentityError::crypto(DERIVE, &cause.to_string());
        let mut seed = Zeroizing::new([0_u8; 32]);
        let salt = format!("{SECRET_SALT}{}", job_label(job));
        pbkdf2::derive(
            pbkdf2::PBKDF2_HMAC_SHA256,
            SECRET_ROUNDS,
            salt.as_bytes(),
            secret.as_bytes(),
            &mut seed[..],
        );
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed[..]).map_err(|e| failed(&e))?;
        let document = pair.to_pkcs8v1().map_err(|e| failed(&e))?;
        let key = KeyPair::try_from(document.as_ref()).map_err(|e| failed(&e))?;
        let mut params = authority_params(job);
        // Without a clock and random numbers, the certificates are equal.
        params.serial_number = Some(SerialNumber::from(1_u64));
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2120, 1, 1);
        let certificate = params.self_signed(&key).map_err(|e| failed(&e))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_gives_everyone_the_same_authority() {
        let of = |job: &str, secret: &str| Authority::from_secret(job, secret).unwrap();
        let (mine, yours) = (
            of("a", "the secret of the job"),
            of("a", "the secret of the job"),
        );
        assert_eq!(mine.fingerprint(), yours.fingerprint());
        assert_eq!(mine.to_pem().expose(), yours.to_pem().expose());
        assert_ne!(
            mine.fingerprint(),
            of("b", "the secret of the job").fingerprint()
        );
        assert_ne!(mine.fingerprint(), of("a", "another secret").fingerprint());
        let validity = Validity::from_now(SystemTime::now(), Duration::from_secs(60));
        let issued = yours
            .issue(&Member::Rank(ronde_core::Rank(1)), validity)
            .unwrap();
        assert_eq!(issued.authority(), mine.fingerprint());
    }
}
