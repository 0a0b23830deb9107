//! A failed handshake in words.

use rustls::{AlertDescription, CertificateError, Error};

/// Why a TLS connection failed, with the other side as "it".
#[must_use]
pub fn explain(error: &Error) -> String {
    match error {
        Error::NoCertificatesPresented => "it shows no certificate".to_owned(),
        Error::InvalidCertificate(problem) => certificate(problem),
        Error::AlertReceived(alert) => alerted(*alert),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            format!("it does not speak TLS as members do ({error})")
        }
        Error::PeerIncompatible(_) => format!("it speaks another TLS ({error})"),
        Error::NoApplicationProtocol => "it speaks TLS for another purpose".to_owned(),
        other => other.to_string(),
    }
}

fn certificate(problem: &CertificateError) -> String {
    use CertificateError as E;
    match problem {
        E::Expired | E::ExpiredContext { .. } => "its certificate has expired".to_owned(),
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "its certificate is not valid yet: compare the clocks".to_owned()
        }
        E::UnknownIssuer | E::BadSignature => {
            "its certificate is not of this job's authority".to_owned()
        }
        E::NotValidForName => "its certificate is somebody else's".to_owned(),
        E::NotValidForNameContext {
            expected,
            presented,
        } => format!(
            "its certificate is for {}, not for {}",
            presented.join(", "),
            expected.to_str()
        ),
        other => format!("its certificate is no good: {other}"),
    }
}

fn alerted(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let why = match alert {
        A::UnknownCA | A::DecryptError => "it is not of the authority that the other side trusts",
        A::CertificateExpired => "it has expired or is not valid yet",
        A::CertificateRequired => "none was shown",
        A::BadCertificate | A::CertificateUnknown | A::UnsupportedCertificate => {
            "it is not the one expected"
        }
        A::NoApplicationProtocol => return "it speaks TLS for another purpose".to_owned(),
        other => return format!("it gave up: {other:?}"),
    };
    format!("it refused this side's certificate: {why} ({alert:?})")
}
