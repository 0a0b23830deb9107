//! `[comm]`: how workers exchange gradients.

use std::time::Duration;

use ronde_comm::TransportChoice;
use ronde_schedule::Algorithm;
use serde::{Deserialize, Serialize};

use super::TIMEOUT_S_MAX;
use crate::config::ConfigProblem;

/// The smallest useful bucket. In smaller ones the message headers exceed the gradients.
const BUCKET_BYTES_MIN: u64 = 1024;

/// `[comm]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CommSection {
    /// The algorithm that sums gradients; default `auto`, the one with the shortest predicted time.
    #[serde(with = "super::algorithm")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "super::algorithm::schema"))]
    pub algorithm: Option<Algorithm>,
    /// The transport between workers of one host; default `auto`.
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "super::words::<TransportChoice>")
    )]
    pub transport: TransportChoice,
    /// The largest bucket of gradients that are reduced together, in bytes; absent: the first steps try several
    /// sizes and choose one. The trained bits do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_bytes_max: Option<u64>,
    /// Whether the gradients of tables (embeddings, factors) are sent without their zeros where that is shorter; absent: between
    /// hosts. The trained bits do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparse_tables: Option<bool>,
    /// The longest wait for another worker, in seconds; default 30.
    pub timeout_s: f64,
}

impl Default for CommSection {
    fn default() -> Self {
        Self {
            algorithm: None,
            transport: TransportChoice::Auto,
            bucket_bytes_max: None,
            sparse_tables: None,
            timeout_s: 30.0,
        }
    }
}

impl CommSection {
    /// Returns `timeout_s` as a duration; zero for a number that `check` rejects.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.timeout_s).unwrap_or_default()
    }

    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        if let Some(bytes) = self
            .bucket_bytes_max
            .filter(|&bytes| bytes < BUCKET_BYTES_MIN)
        {
            let message = format!(
                "`comm.bucket_bytes_max` is {bytes}, but must be at least {BUCKET_BYTES_MIN}"
            );
            let hint = "remove it to let the first steps choose a size";
            problems.push(ConfigProblem::error("comm.bucket_bytes_max", message).hint(hint));
        }
        let timeout = self.timeout_s;
        if !(timeout > 0.0 && timeout <= TIMEOUT_S_MAX) {
            let message = format!(
                "`comm.timeout_s` is {timeout}, but must be above 0 and at most {TIMEOUT_S_MAX}"
            );
            problems.push(ConfigProblem::error("comm.timeout_s", message));
        }
    }
}
