//! [`Opening`]: what opening a data set needs besides its section of a run file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_store::RemoteSettings;

/// Where indexes are, in the folder for what can be made again.
const INDEX_FOLDER: &str = "index";

/// What happens while a data set is opened or used, for people.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum DataNews {
    /// Something takes a while: what, and how far it is, 0 to 1.
    Progress {
        /// What is done, as `indexing 1,024 files`.
        what: String,
        /// How far it is.
        share: f64,
    },
    /// Something about the data that a user should read; every process that opens them finds it.
    Finding(String),
    /// Something about this process that a user should read.
    Notice(String),
}

/// What opening a data set needs besides its section of a run file. Libraries do not read the environment: the command
/// does.
#[derive(Clone)]
pub struct Opening {
    /// The folder that relative paths start from.
    pub base: PathBuf,
    /// The run's seed, for made-up samples and random changes.
    pub seed: u64,
    /// How to talk to remote stores.
    pub remote: RemoteSettings,
    /// The contents of an environment variable, for a key that a run file names.
    pub variable: fn(&str) -> Option<Vec<u8>>,
    /// Where indexes and caches are kept unless the run file says so; without it indexes are not kept.
    pub cache_folder: Option<PathBuf>,
    /// Is told what happens, from any thread.
    pub tell: Arc<dyn Fn(&DataNews) + Send + Sync>,
}

impl Opening {
    /// Without an environment: no credentials, no cache, nobody to tell.
    #[must_use]
    pub fn new(base: &Path, seed: u64) -> Self {
        Self {
            base: base.to_owned(),
            seed,
            remote: RemoteSettings::default(),
            variable: |_| None,
            cache_folder: None,
            tell: Arc::new(|_| {}),
        }
    }

    /// Where indexes are kept, if they are.
    pub(crate) fn index_folder(&self) -> Option<PathBuf> {
        let cache = self.cache_folder.as_ref();
        cache.map(|folder| folder.join(INDEX_FOLDER))
    }
}

impl fmt::Debug for Opening {
    /// Without what may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening")
            .field("base", &self.base)
            .field("seed", &self.seed)
            .field("cache_folder", &self.cache_folder)
            .finish_non_exhaustive()
    }
}
