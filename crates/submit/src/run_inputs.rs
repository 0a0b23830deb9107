//! [`RunInputs`]: the files beside a run file, found when a target copies them. [`JobResources`]: what each worker needs.
//!
//! A target that copies gets the run file, the files that it names and those of `[job] files`, never a folder as a whole.
//! `secrets.rs` checks them before anything is made on the target. This crate knows no run files, so the list is an argument.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::SubmitError;

/// Finds the files.
type Find = dyn Fn() -> Result<Vec<PathBuf>, SubmitError> + Send + Sync;

/// The files that a run file names, relative to its folder. They are found when a target copies them: others read them where they
/// are, and a folder of data may be large.
#[derive(Clone)]
pub struct RunInputs(Arc<Find>);

impl RunInputs {
    /// Creates the inputs that `find` returns.
    pub fn new(
        find: impl Fn() -> Result<Vec<PathBuf>, SubmitError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(find))
    }

    /// Returns the files.
    ///
    /// # Errors
    /// A file is missing, or must not be copied.
    pub fn find(&self) -> Result<Vec<PathBuf>, SubmitError> {
        (self.0)()
    }
}

impl Default for RunInputs {
    /// Returns inputs without files.
    fn default() -> Self {
        Self::new(|| Ok(Vec::new()))
    }
}

impl fmt::Debug for RunInputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunInputs").finish_non_exhaustive()
    }
}

/// The needs of each worker, as a scheduler reserves them. Absent values are those of the target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobResources {
    /// The memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The number of processors.
    pub cpus: Option<u32>,
    /// The number of GPUs.
    pub gpus: Option<u32>,
}
