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
        "the service's certificate is not trusted here; RONDE_CA_FILE or AWS_CA_BUNDLE names a file of authorities that are",
    ),
    (
        "Name or service not known",
        "there is no such host: is the address right?",
    ),
    (
        "nodename nor servname provided",
        "there is no such host: is the address right?",
    ),
    (
        "No address associated with hostname",
        "there is no such host: is the address right?",
    ),
    (
        "Account must be specified",
        "AZURE_STORAGE_ACCOUNT_NAME names the account",
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
        "Received non-partial response",
        "the server sends whole files only, but parts of them are read: it must answer ranges (or copy the files)",
    ),
    (
        "Range request not supported",
        "the server sends whole files only, but parts of them are read: it must answer ranges (or copy the files)",
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
            // The range that is asked for was inside it.
            _ if status(&cause) == Some(416) => StoreError::Conflict {
                location,
                found: "it was replaced by a shorter one after it was opened",
            },
            _ if status(&cause).is_some_and(is_final) && !cause.contains("RequestTimeout") => {
                self.settings(cause)
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

/// The status of an answer of HTTP, from the client's words about it.
fn status(cause: &str) -> Option<u16> {
    let (_, rest) = cause.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// Whether the same question gets the same answer: what the client did wrong, but for timeouts and too many requests.
fn is_final(status: u16) -> bool {
    (300..500).contains(&status) && ![408, 425, 429].contains(&status)
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
    let words = text.split_whitespace().map(|word| {
        // What follows the question mark of an address may be a secret.
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
    struct Told(&'static str);

    fn sorted(told: &'static str) -> StoreError {
        let failure = Failure {
            operation: "read",
            location: "s3://bucket/x".to_owned(),
        };
        failure.of(object_store::Error::Generic {
            store: "S3",
            source: Box::new(Told(told)),
        })
    }

    #[test]
    fn what_passes_is_told_apart_from_what_stays() {
        for passing in [
            "connection refused",
            "Server returned non-2xx status code: 503 Service Unavailable: ",
            "Server returned non-2xx status code: 429 Too Many Requests: ",
            "Server returned non-2xx status code: 400 Bad Request: <Code>RequestTimeout</Code>",
            "dns error: Temporary failure in name resolution",
        ] {
            let error = sorted(passing);
            assert!(matches!(error, StoreError::Passing { .. }), "{error}");
        }
        for (settings, told) in [
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
            assert!(error.to_string().contains(told), "{error}");
        }
        let error = sorted("Server returned non-2xx status code: 416 Range Not Satisfiable");
        assert!(error.is_conflict(), "{error}");
    }

    #[test]
    fn what_an_address_asks_is_not_repeated() {
        let error =
            sorted("Error performing GET https://host/c/x?sv=1&sig=geheim in 3 ms").to_string();
        assert!(error.contains("https://host/c/x in 3 ms"), "{error}");
    }
}
