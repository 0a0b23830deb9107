//! [`OpenContext`]: the context for opening a data set, besides its section of a run file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_store::{Opener, RemoteSettings};

use crate::read_limit::ReadLimit;

/// The subfolder of the cache folder with indexes.
const INDEX_FOLDER: &str = "index";

/// An event while a data set is opened or used, to be shown to the user.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum DataEvent {
    /// The progress of a long operation.
    Progress {
        /// The operation, for example `indexing 1,024 files`.
        what: String,
        /// The completed share, 0 to 1.
        share: f64,
    },
    /// A message about the data; every process that opens them reports the same one.
    Finding(String),
    /// A message about this process.
    Notice(String),
}

/// The context for opening a data set, besides its section of a run file. The command reads it from the environment;
/// libraries do not read the environment.
#[derive(Clone)]
pub struct OpenContext {
    /// The folder that relative paths start from.
    pub base: PathBuf,
    /// The run's seed, for synthetic samples and random augmentation.
    pub seed: u64,
    /// The settings of remote stores.
    pub remote: RemoteSettings,
    /// A function that returns an environment variable, for a key that a run file names.
    pub variable: fn(&str) -> Option<Vec<u8>>,
    /// The folder for indexes and caches unless the run file sets one; if absent, indexes are not stored.
    pub cache_folder: Option<PathBuf>,
    /// The receiver of events; called from any thread.
    pub report: Arc<dyn Fn(&DataEvent) + Send + Sync>,
    /// How much is read to check a set; absent for all.
    pub limit: Option<Arc<ReadLimit>>,
}

impl OpenContext {
    /// Returns a context without credentials, cache and receiver of events.
    #[must_use]
    pub fn new(base: &Path, seed: u64) -> Self {
        Self {
            base: base.to_owned(),
            seed,
            remote: RemoteSettings::default(),
            variable: |_| None,
            cache_folder: None,
            report: Arc::new(|_| {}),
            limit: None,
        }
    }

    /// Returns the opener of the files, which reports waits as notices.
    pub(crate) fn opener(&self, remote: RemoteSettings) -> Opener {
        let report = Arc::clone(&self.report);
        Opener::new(RemoteSettings {
            tell: Some(Arc::new(move |message: &str| {
                report(&DataEvent::Notice(message.to_owned()));
            })),
            ..remote
        })
    }

    /// Returns the folder of stored indexes, if any.
    pub(crate) fn index_folder(&self) -> Option<PathBuf> {
        let cache = self.cache_folder.as_ref();
        cache.map(|folder| folder.join(INDEX_FOLDER))
    }
}

impl fmt::Debug for OpenContext {
    /// Omits fields that may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenContext")
            .field("base", &self.base)
            .field("seed", &self.seed)
            .field("cache_folder", &self.cache_folder)
            .finish_non_exhaustive()
    }
}
