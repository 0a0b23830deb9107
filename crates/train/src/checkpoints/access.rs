//! Opening the place of a run's checkpoints, with what the process knows besides the run file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ronde_checkpoint::CheckpointError;
use ronde_data::{DataNews, Opening};
use ronde_store::{Encrypted, RemoteSettings, Store};

use crate::TrainError;
use crate::config::CheckpointSection;

/// Whether a run goes on from a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resume {
    /// It starts with its first step.
    #[default]
    Never,
    /// It goes on where there is a checkpoint of this plan, and starts otherwise.
    IfThere,
    /// Without a checkpoint of this plan it does not start.
    Must,
}

/// What a process knows besides the run file. Libraries do not read the environment: the command does.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The contents of an environment variable.
    pub variable: fn(&str) -> Option<Vec<u8>>,
    /// How to talk to remote stores.
    pub remote: fn() -> RemoteSettings,
    /// Where indexes and caches of data are kept unless the run file says so.
    pub cache_folder: fn() -> Option<PathBuf>,
    /// Set when the job is asked to end: it then saves a checkpoint after the step and trains no further.
    pub stop: Arc<AtomicBool>,
}

impl Surroundings {
    /// What opening a data set needs; `base` is the folder that its relative paths start from.
    #[must_use]
    pub fn opening(
        &self,
        base: &Path,
        seed: u64,
        tell: Arc<dyn Fn(&DataNews) + Send + Sync>,
    ) -> Opening {
        Opening {
            base: base.to_owned(),
            seed,
            remote: (self.remote)(),
            variable: self.variable,
            cache_folder: (self.cache_folder)(),
            tell,
        }
    }
}

impl Default for Surroundings {
    /// No variables, and nobody asks for an end.
    fn default() -> Self {
        Self {
            variable: |_| None,
            remote: RemoteSettings::default,
            cache_folder: || None,
            stop: Arc::default(),
        }
    }
}

/// The place of a run's checkpoints. `base` is where a relative key file starts from, `output` the run's
/// folder. A remote place is asked for one listing.
///
/// # Errors
/// The address or the key cannot be used, or a remote place does not answer.
pub fn open(
    section: &CheckpointSection,
    base: &Path,
    output: &Path,
    surroundings: &Surroundings,
) -> Result<Arc<dyn Store>, TrainError> {
    let settings = (surroundings.remote)();
    let place = section
        .address(output)
        .and_then(|address| ronde_store::open(&address, &settings))
        .map_err(CheckpointError::from)?;
    let key = |problem: String| TrainError::Key { problem };
    let Some(source) = section.key_source().map_err(key)? else {
        return Ok(place);
    };
    let master = source.read(base, surroundings.variable);
    let master = master.map_err(|error| key(error.to_string()))?;
    Ok(Arc::new(Encrypted::new(place, master)))
}
