//! [`FailedOperation`]: classification of a remote service's errors, above all whether a retry can
//! help.

use crate::error::StoreError;

/// The operation that an error belongs to.
pub(crate) struct FailedOperation {
    pub(crate) operation: &'static str,
    pub(crate) location: String,
}

/// The advice about a name without an address.
const NO_SUCH_HOST: &str = "no such host; check the address";

/// Parts of responses that only other settings can fix, with advice. The first match counts.
const SETTINGS: &[(&str, &str)] = &[
    (
        "certificate",
        "the service's certificate is not trusted; set RONDE_CA_FILE or AWS_CA_BUNDLE to a file of trusted certificate authorities",
    ),
    ("Name or service not known", NO_SUCH_HOST),
    ("nodename nor servname provided", NO_SUCH_HOST),
    ("No address associated with hostname", NO_SUCH_HOST),
    (
        "Account must be specified",
        "set AZURE_STORAGE_ACCOUNT_NAME to the name of the account",
    ),
    ("NoSuchBucket", "no such bucket; create it first"),
    ("ContainerNotFound", "no such container; create it first"),
    (
        "169.254.169.254",
        "no credentials were given, and this machine has no instance credentials",
    ),
    ("incorrectly configured region", "the region is wrong"),
    ("InvalidAccessKeyId", "the access key is unknown"),
    ("SignatureDoesNotMatch", "the secret key is wrong"),
    ("AuthenticationFailed", "the account key is wrong"),
    ("AuthorizationFailure", "the account or its key is wrong"),
    ("401 Unauthorized", "the service rejects the credentials"),
    (
        "403 Forbidden",
        "the credentials do not permit this operation",
    ),
    ("requires HTTPS", "plain http needs the option allow_http"),
    (
        "Received non-partial response",
        "the server sends whole files only, but reading needs byte ranges: enable range requests on the server, or copy the files",
    ),
    (
        "Range request not supported",
        "the server sends whole files only, but reading needs byte ranges: enable range requests on the server, or copy the files",
    ),
    (
        "URL scheme is not allowed",
        "plain http needs the option allow_http",
    ),
];

impl FailedOperation {
    /// Classifies an error of the client.
    pub(crate) fn of(&self, error: object_store::Error) -> StoreError {
        use object_store::Error;
        let cause = chain(&error);
        if let Some((_, hint)) = SETTINGS.iter().find(|(part, _)| cause.contains(part)) {
            return self.settings(format!("{hint} ({cause})"));
        }
        let (operation, location) = (self.operation, self.location.clone());
        match error {
            Error::NotFound { .. } => StoreError::NotFound {
                operation,
                location,
            },
            Error::AlreadyExists { .. } => StoreError::Conflict {
                location,
                found: "it already exists",
            },
            Error::Precondition { .. } | Error::NotModified { .. } => StoreError::Conflict {
                location,
                found: "it was changed or removed by another process",
            },
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => self.settings(
                format!("the credentials do not permit this operation ({cause})"),
            ),
            // The requested range was inside the object when it was opened.
            _ if status(&cause) == Some(416) => StoreError::Conflict {
                location,
                found: "it was replaced by a shorter one after it was opened",
            },
            _ if status(&cause).is_some_and(is_final) && !cause.contains("RequestTimeout") => {
                self.settings(cause)
            }
            Error::Generic { .. } if !is_of_building(&cause) => self.unavailable(cause),
            _ => self.settings(cause),
        }
    }

    /// Returns an error that only other settings can fix.
    pub(crate) fn settings(&self, cause: String) -> StoreError {
        StoreError::Settings {
            operation: self.operation,
            location: self.location.clone(),
            cause,
        }
    }

    /// Returns an error that may be temporary.
    pub(crate) fn unavailable(&self, cause: String) -> StoreError {
        StoreError::Unavailable {
            operation: self.operation,
            location: self.location.clone(),
            cause,
        }
    }
}

/// Returns an error as a temporary one if the name of the host has no address: the address of a service that has answered
/// before is right, and its name is resolved again.
pub(crate) fn temporary_if_unknown_host(error: StoreError) -> StoreError {
    match error {
        StoreError::Settings {
            operation,
            location,
            cause,
        } if cause.starts_with(NO_SUCH_HOST) => StoreError::Unavailable {
            operation,
            location,
            cause,
        },
        other => other,
    }
}

/// Errors before any request was sent: the settings do not fit together.
fn is_of_building(cause: &str) -> bool {
    [
        "Missing",
        "must be specified",
        "Unable parse",
        "builder error",
        "Unknown url scheme",
    ]
    .iter()
    .any(|part| cause.contains(part))
}

/// Returns the status of an HTTP response, from the client's error text.
fn status(cause: &str) -> Option<u16> {
    let (_, rest) = cause.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// Returns whether a repeated request gets the same response: client errors, except timeouts and
/// too many requests.
fn is_final(status: u16) -> bool {
    (300..500).contains(&status) && ![408, 425, 429].contains(&status)
}

/// Returns the error and its causes on one line, each cause once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text_of_cause = cause.to_string();
        if !text.contains(&text_of_cause) {
            text = format!("{text}: {text_of_cause}");
        }
        source = cause.source();
    }
    let words = text.split_whitespace().map(|word| {
        // The query of an address may be a secret.
        let end = word.find("://").and_then(|_| word.find('?'));
        end.map_or(word, |end| &word[..end])
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct TestError(&'static str);

    fn sorted(message: &'static str) -> StoreError {
        let failure = FailedOperation {
            operation: "read",
            location: "s3://bucket/x".to_owned(),
        };
        failure.of(object_store::Error::Generic {
            store: "S3",
            source: Box::new(TestError(message)),
        })
    }

    #[test]
    fn temporary_errors_are_distinguished_from_permanent_ones() {
        for passing in [
            "connection refused",
            "Server returned non-2xx status code: 503 Service Unavailable: ",
            "Server returned non-2xx status code: 429 Too Many Requests: ",
            "Server returned non-2xx status code: 400 Bad Request: <Code>RequestTimeout</Code>",
            "dns error: Temporary failure in name resolution",
        ] {
            let error = sorted(passing);
            assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
        }
        for (settings, advice) in [
            (
                "Server returned non-2xx status code: 400 Bad Request: x",
                "400",
            ),
            (
                "Server returned non-2xx status code: 405 Method Not Allowed",
                "405",
            ),
            ("Server returned non-2xx status code: 302 Found: ", "302"),
            ("invalid peer certificate: UnknownIssuer", "RONDE_CA_FILE"),
            (
                "failed to lookup address information: Name or service not known",
                "no such host",
            ),
            (
                "Received non-partial response when range requested",
                "whole files",
            ),
        ] {
            let error = sorted(settings);
            assert!(matches!(error, StoreError::Settings { .. }), "{error}");
            assert!(error.to_string().contains(advice), "{error}");
        }
        let unknown = sorted("dns error: Name or service not known");
        let later = temporary_if_unknown_host(unknown);
        assert!(matches!(later, StoreError::Unavailable { .. }), "{later}");
        let rejected = sorted("401 Unauthorized");
        let later = temporary_if_unknown_host(rejected);
        assert!(matches!(later, StoreError::Settings { .. }), "{later}");
        let error = sorted("Server returned non-2xx status code: 416 Range Not Satisfiable");
        assert!(error.is_conflict(), "{error}");
    }

    #[test]
    fn queries_of_addresses_are_removed() {
        let error =
            sorted("Error performing GET https://host/c/x?sv=1&sig=geheim in 3 ms").to_string();
        assert!(error.contains("https://host/c/x in 3 ms"), "{error}");
    }
}
