//! [`PodCredentials`]: the authority and the token of a job, which its Secret has.

use std::time::Duration;

use ronde_identity::{Authority, SecretText, Validity};

use crate::error::SubmitError;

/// The validity of the authority of a job.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// The names of the files of a folder with the credentials of a job.
pub(super) const FILES: [&str; 3] = ["job", "authority.pem", "token"];

/// The authority and the token of a job.
pub(super) struct PodCredentials {
    job: String,
    authority: SecretText,
    token: SecretText,
}

impl PodCredentials {
    /// Creates the authority and the token of a new job.
    pub(super) fn new(job: &str) -> Result<Self, SubmitError> {
        let failed = |error: ronde_identity::IdentityError| {
            SubmitError::invalid(error.to_string(), "try again")
        };
        let authority = Authority::new(job, Validity::from_now(ronde_clock::date(), YEAR));
        let authority = authority.map_err(failed)?;
        Ok(Self {
            job: job.to_owned(),
            token: authority.join_token().map_err(failed)?.to_text(),
            authority: authority.to_pem(),
        })
    }

    /// Returns the names and contents of the files.
    pub(super) fn files(&self) -> [(&'static str, &str); 3] {
        let [job, authority, token] = FILES;
        [
            (job, self.job.as_str()),
            (authority, self.authority.expose()),
            (token, self.token.expose()),
        ]
    }
}
