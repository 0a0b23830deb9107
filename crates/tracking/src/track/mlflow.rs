//! MLflow: one run of a tracking server from all attempts of a run, through a spool in the run's folder.
//!
//! ```text
//! events -> MlflowSpool -> RUN/mlflow/spool.jsonl -> MlflowSender -> server
//!                          RUN/mlflow/state.json: the server's run, and how much of the spool was sent
//! ```
//!
//! The spool keeps everything while the server is away. Any process can send the rest later: it needs only the folder.

mod sender;
mod spool;
mod thread;

pub use sender::{MlflowConnection, MlflowError, MlflowSender};
pub use spool::MlflowSpool;
pub use thread::MlflowThread;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The folder of the files in a run's folder.
const FOLDER: &str = "mlflow";

fn spool_file(run: &Path) -> PathBuf {
    run.join(FOLDER).join("spool.jsonl")
}

fn state_file(run: &Path) -> PathBuf {
    run.join(FOLDER).join("state.json")
}

/// A line of the spool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SpoolEntry {
    /// The run begins or continues.
    Started {
        /// Milliseconds since 1970.
        at: u64,
        /// The run's name.
        name: String,
        /// Settings by name.
        parameters: Vec<(String, String)>,
    },
    /// The plan of an attempt.
    Plan {
        /// The hash of the plan.
        plan: String,
    },
    /// Numbers of one step.
    Metrics {
        /// Milliseconds since 1970.
        at: u64,
        /// The number of committed steps.
        step: u64,
        /// Values by name, as MLflow reads them.
        values: Vec<(String, MetricValue)>,
    },
    /// Files of the trained model, relative to the run's folder.
    Model {
        /// Their names.
        files: Vec<String>,
    },
    /// The status of the run.
    Status {
        /// Milliseconds since 1970.
        at: u64,
        /// `RUNNING`, `FINISHED`, `FAILED` or `KILLED`.
        status: String,
    },
}

/// A number, or the text of one that JSON cannot represent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum MetricValue {
    Number(f64),
    Text(String),
}

impl From<f64> for MetricValue {
    fn from(value: f64) -> Self {
        match value {
            value if value.is_finite() => Self::Number(value),
            value if value.is_nan() => Self::Text("NaN".to_owned()),
            value if value > 0.0 => Self::Text("Infinity".to_owned()),
            _ => Self::Text("-Infinity".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
