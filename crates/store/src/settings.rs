//! [`RemoteSettings`]: credentials, limits and options of remote stores.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A callback that gets messages for people, from any thread.
pub type NoticeCallback = Arc<dyn Fn(&str) + Send + Sync>;

/// Settings of remote stores. A folder needs none of them.
#[derive(Clone)]
pub struct RemoteSettings {
    /// Names and values as the `object_store` crate defines them: `aws_access_key_id`,
    /// `aws_endpoint`, `aws_region`, `azure_storage_account_name`, `azure_storage_account_key` and
    /// so on. An unknown name is an error.
    pub options: Vec<(String, String)>,
    /// The same from the environment of the process, which may contain variables of other programs
    /// and services: names that the service does not know are ignored. `options` take precedence.
    pub ambient: Vec<(String, String)>,
    /// A file (PEM) with certificate authorities that are trusted in addition to those of the
    /// system.
    pub authorities: Option<PathBuf>,
    /// The number of times a failed write request is repeated.
    pub retries: usize,
    /// The limit for one request including its repetitions, without progress: a slow upload may take longer.
    pub limit: Duration,
    /// The time that a read may take without receiving a byte. Within it reads of a service that
    /// has answered before are repeated after temporary failures; the first pause is 0.1 s, the
    /// longest 5 s. Failed writes are repeated for this long after their start. A single request
    /// that neither sends nor receives anything is cancelled after this time, but not before 5 s
    /// and not later than 20 s.
    pub retry_limit: Duration,
    /// Called when a service sends nothing to a reader or accepts nothing from a writer for 2 s, and when it responds
    /// again.
    pub tell: Option<NoticeCallback>,
}

impl Default for RemoteSettings {
    fn default() -> Self {
        Self {
            options: Vec::new(),
            ambient: Vec::new(),
            authorities: None,
            retries: 5,
            limit: Duration::from_secs(120),
            retry_limit: Duration::from_secs(60),
            tell: None,
        }
    }
}

impl fmt::Debug for RemoteSettings {
    /// Only names are printed, because some values are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn names(options: &[(String, String)]) -> Vec<&str> {
            options.iter().map(|(name, _)| name.as_str()).collect()
        }
        f.debug_struct("RemoteSettings")
            .field("options", &names(&self.options))
            .field("ambient", &names(&self.ambient))
            .field("authorities", &self.authorities)
            .field("retries", &self.retries)
            .field("limit", &self.limit)
            .field("retry_limit", &self.retry_limit)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_shown() {
        let settings = RemoteSettings {
            options: vec![("aws_secret_access_key".into(), "geheim".into())],
            ambient: vec![("azure_storage_account_key".into(), "geheim".into())],
            ..RemoteSettings::default()
        };
        let shown = format!("{settings:?}");
        assert!(shown.contains("aws_secret_access_key") && !shown.contains("geheim"));
    }
}
