//! Explanations of failed TLS handshakes.

use rustls::{AlertDescription, CertificateError, Error};

/// Explains why a TLS connection failed; "it" is the peer.
#[must_use]
pub fn explain(error: &Error) -> String {
    match error {
        Error::NoCertificatesPresented => "it presented no certificate".to_owned(),
        Error::InvalidCertificate(problem) => certificate(problem),
        Error::AlertReceived(alert) => alerted(*alert),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            format!("it does not speak the job's TLS protocol ({error})")
        }
        Error::PeerIncompatible(_) => format!("it speaks an incompatible version of TLS ({error})"),
        Error::NoApplicationProtocol => "it speaks TLS for another protocol".to_owned(),
        other => other.to_string(),
    }
}

fn certificate(problem: &CertificateError) -> String {
    use CertificateError as E;
    match problem {
        E::Expired | E::ExpiredContext { .. } => "its certificate has expired".to_owned(),
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "its certificate is not valid yet; compare the clocks of the hosts".to_owned()
        }
        E::UnknownIssuer | E::BadSignature => {
            "its certificate was not issued by this job's authority".to_owned()
        }
        E::NotValidForName => "its certificate belongs to another member".to_owned(),
        E::NotValidForNameContext {
            expected,
            presented,
        } => format!(
            "its certificate is for {}, not for {}",
            presented.join(", "),
            expected.to_str()
        ),
        other => format!("its certificate is not valid: {other}"),
    }
}

fn alerted(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let why = match alert {
        A::UnknownCA | A::DecryptError => "the peer does not trust its authority",
        A::CertificateExpired => "it has expired or is not valid yet",
        A::CertificateRequired => "none was presented",
        A::BadCertificate | A::CertificateUnknown | A::UnsupportedCertificate => {
            "it belongs to another member"
        }
        A::NoApplicationProtocol => return "it speaks TLS for another protocol".to_owned(),
        other => return format!("it ended the handshake: {other:?}"),
    };
    format!("it rejected this side's certificate: {why} ({alert:?})")
}
