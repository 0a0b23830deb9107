//! [`RemoteSettings`]: how to talk to a remote store.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Is told sentences for people, from any thread.
pub type Listener = Arc<dyn Fn(&str) + Send + Sync>;

/// How to talk to a remote store. A folder needs none of it.
#[derive(Clone)]
pub struct RemoteSettings {
    /// Names and values as the `object_store` crate knows them: `aws_access_key_id`, `aws_endpoint`, `aws_region`,
    /// `azure_storage_account_name`, `azure_storage_account_key` and so on. An unknown name is an error.
    pub options: Vec<(String, String)>,
    /// The same from the environment of the process, where other programs and the other service have variables,
    /// too: names that the service does not know are left out. `options` take precedence.
    pub ambient: Vec<(String, String)>,
    /// File (PEM) with the certificates of authorities that are trusted besides those of the system.
    pub authorities: Option<PathBuf>,
    /// Repetitions of a request to write that failed in passing.
    pub retries: usize,
    /// Limit for one request with its repetitions.
    pub limit: Duration,
    /// How long reading goes on without getting a byte from a service that has answered before, when its failures may
    /// pass. It is asked again after 0.1 s, then ever more seldom, every 5 s at last.
    pub patience: Duration,
    /// Is told that a service keeps readers waiting, and that it answers again.
    pub tell: Option<Listener>,
}

impl Default for RemoteSettings {
    fn default() -> Self {
        Self {
            options: Vec::new(),
            ambient: Vec::new(),
            authorities: None,
            retries: 5,
            limit: Duration::from_secs(120),
            patience: Duration::from_secs(60),
            tell: None,
        }
    }
}

impl fmt::Debug for RemoteSettings {
    /// Names without values: some of them are secrets.
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
            .field("patience", &self.patience)
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
