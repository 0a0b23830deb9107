//! `[loader]`: how samples are prefetched.

use ronde_data::{Dataset, LoaderSettings};
use serde::{Deserialize, Serialize};

use super::at_least_one;
use crate::config::ConfigProblem;

/// The largest number of loader threads of a worker.
const LOADER_THREADS_MAX: usize = 1024;

/// `[loader]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct LoaderSection {
    /// The number of threads of a worker that fetch and decode samples; absent: one if the samples are in memory,
    /// else one for each core that the workers of the host leave free, at least one for each worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// The memory of a worker for prefetched samples, both as stored and decoded, in MiB; default 256.
    pub memory_mib: u64,
}

impl Default for LoaderSection {
    fn default() -> Self {
        Self {
            threads: None,
            memory_mib: 256,
        }
    }
}

impl LoaderSection {
    /// Returns the threads and memory of a worker's loader; `free` is its share of the cores not used for
    /// computation.
    #[must_use]
    pub fn settings(&self, dataset: &dyn Dataset, free: usize) -> LoaderSettings {
        let usual = if dataset.description().locality.is_some() {
            free
        } else {
            1
        };
        LoaderSettings {
            threads: self.threads.unwrap_or(usual).max(1),
            memory_bytes: self.memory_mib.saturating_mul(1 << 20),
        }
    }

    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        at_least_one("loader.memory_mib", self.memory_mib, problems);
        let Some(threads) = self.threads else {
            return;
        };
        at_least_one("loader.threads", threads as u64, problems);
        if threads > LOADER_THREADS_MAX {
            let message =
                format!("`loader.threads` is {threads}, but must be at most {LOADER_THREADS_MAX}");
            problems.push(ConfigProblem::error("loader.threads", message));
        }
    }
}
