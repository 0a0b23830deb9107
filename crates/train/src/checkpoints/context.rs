//! Opens a run's checkpoint store with the credentials and settings of the process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ronde_checkpoint::CheckpointError;
use ronde_data::{DataEvent, OpenContext};
use ronde_store::{Encrypted, RemoteSettings, Store, StoreError};

use crate::config::CheckpointSection;
use crate::error::TrainError;

/// Whether a run resumes from a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resume {
    /// Start with the first step.
    #[default]
    Never,
    /// Resume if there is a checkpoint of this plan, and start with the first step otherwise.
    IfAvailable,
    /// Resume, and fail without a checkpoint of this plan.
    Required,
}

/// The settings of a process that are not in the run file. Libraries do not read environment variables; the
/// command passes them in here.
#[derive(Debug, Clone)]
pub struct ProcessContext {
    /// Returns the value of an environment variable.
    pub variable: fn(&str) -> Option<Vec<u8>>,
    /// Returns the settings for remote stores.
    pub remote: fn() -> RemoteSettings,
    /// Returns the default folder for data indexes and caches; the run file can set another one.
    pub cache_folder: fn() -> Option<PathBuf>,
    /// Set when the job is to stop: it saves a checkpoint after the current step and stops training.
    pub stop: Arc<AtomicBool>,
}

impl ProcessContext {
    /// Returns the options for opening a data set. Relative paths are resolved against `base`.
    #[must_use]
    pub fn opening(
        &self,
        base: &Path,
        seed: u64,
        report: Arc<dyn Fn(&DataEvent) + Send + Sync>,
    ) -> OpenContext {
        OpenContext {
            base: base.to_owned(),
            seed,
            remote: (self.remote)(),
            variable: self.variable,
            cache_folder: (self.cache_folder)(),
            report,
            limit: None,
        }
    }
}

impl Default for ProcessContext {
    /// Returns a context without environment variables that never stops the job.
    fn default() -> Self {
        Self {
            variable: |_| None,
            remote: RemoteSettings::default,
            cache_folder: || None,
            stop: Arc::default(),
        }
    }
}

/// Opens the checkpoint store of a run. A relative key file is resolved against `base`; `output` is the run's
/// folder. A remote store is accessed once, to list it.
///
/// # Errors
/// The address or the key is invalid, or a remote store does not respond.
pub fn open(
    section: &CheckpointSection,
    base: &Path,
    output: &Path,
    context: &ProcessContext,
) -> Result<Arc<dyn Store>, TrainError> {
    let settings = (context.remote)();
    let store = section
        .address(output)
        .and_then(|address| ronde_store::open(&address, &settings))
        .map_err(CheckpointError::from)?;
    let key = |problem: String| TrainError::Key { problem };
    let Some(source) = section.key_source().map_err(key)? else {
        return Ok(store);
    };
    let master = source.read(base, context.variable);
    let master = master.map_err(|error| match error {
        StoreError::Key { problem } => {
            key(format!("{problem}; create one with `openssl rand -hex 32`"))
        }
        error => key(error.to_string()),
    })?;
    Ok(Arc::new(Encrypted::new(store, master)))
}
