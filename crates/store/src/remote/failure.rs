//! [`Failure`]: what an answer of a remote service means, above all whether trying again can help.

use crate::StoreError;

/// The operation that an error belongs to.
pub(crate) struct Failure {
    pub(crate) operation: &'static str,
    pub(crate) location: String,
}

/// Parts of answers that only other settings can mend, and what to do. In the order of asking.
const SETTINGS: &[(&str, &str)] = &[
    (
        "certificate",
        "the service's certificate is not trusted here; SSL_CERT_FILE names a file of authorities that are",
    ),
    ("NoSuchBucket", "there is no such bucket: make it first"),
    (
        "ContainerNotFound",
        "there is no such container: make it first",
    ),
    (
        "169.254.169.254",
        "no credentials were given, and this machine has none of its own",
    ),
    ("incorrectly configured region", "the region is wrong"),
    ("InvalidAccessKeyId", "the access key is not known"),
    ("SignatureDoesNotMatch", "the secret key is wrong"),
    ("AuthenticationFailed", "the account key is wrong"),
    ("AuthorizationFailure", "the account or its key is wrong"),
    ("401 Unauthorized", "the credentials are not accepted"),
    ("403 Forbidden", "the credentials do not allow it"),
    (
        "requires HTTPS",
        "plain http must be asked for by the option allow_http",
    ),
    (
        "URL scheme is not allowed",
        "plain http must be asked for by the option allow_http",
    ),
];

impl Failure {
    /// Sorts an error of the client.
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
                found: "it exists already",
            },
            Error::Precondition { .. } | Error::NotModified { .. } => StoreError::Conflict {
                location,
                found: "it was changed or removed by another process",
            },
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                self.settings(format!("the credentials do not allow it ({cause})"))
            }
            Error::Generic { .. } if !is_of_building(&cause) => self.passing(cause),
            _ => self.settings(cause),
        }
    }

    /// What other settings may mend.
    pub(crate) fn settings(&self, cause: String) -> StoreError {
        StoreError::Settings {
            operation: self.operation,
            location: self.location.clone(),
            cause,
        }
    }

    /// What may mend itself.
    pub(crate) fn passing(&self, cause: String) -> StoreError {
        StoreError::Passing {
            operation: self.operation,
            location: self.location.clone(),
            cause,
        }
    }
}

/// Errors before any request was made: the settings do not fit together.
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

/// The error and its causes on one line, none told twice.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let told = cause.to_string();
        if !text.contains(&told) {
            text = format!("{text}: {told}");
        }
        source = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
