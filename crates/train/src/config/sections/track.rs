//! `[track]`: trackers of other tools that receive the numbers of a run.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::at_least_one;
use crate::config::ConfigProblem;

/// `[track]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TrackSection {
    /// Pass the numbers of every this many steps, and of the last one, to TensorBoard and CSV; default 1.
    pub every_steps: u64,
    /// Whether to write event files for TensorBoard: `true` for `tensorboard` in the run's folder, or a folder, in which
    /// each run has a folder with its name; default false.
    pub tensorboard: TensorboardTarget,
    /// Write histograms of all weights and gradients to TensorBoard after every this many steps, and after the last one; default
    /// 0: none. A histogram takes about 1 kB.
    pub histogram_every_steps: u64,
    /// Whether to write `metrics.csv` and `evaluations.csv` to the run's folder; default false.
    pub csv: bool,
    /// The address at which Prometheus reads the metrics, such as `127.0.0.1:9095`; default none. Other hosts can read
    /// them only if this is not a loopback address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<String>,
    /// The address of an MLflow server, such as `http://127.0.0.1:5000`; default none. A token or password is read from the
    /// environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<String>,
    /// The name of the experiment of MLflow; default `ronde`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlflow_experiment: Option<String>,
}

impl Default for TrackSection {
    fn default() -> Self {
        Self {
            every_steps: 1,
            tensorboard: TensorboardTarget::Off,
            histogram_every_steps: 0,
            csv: false,
            prometheus: None,
            mlflow: None,
            mlflow_experiment: None,
        }
    }
}

impl TrackSection {
    /// Returns the address for Prometheus; `None` if there is none or `check` rejects it.
    #[must_use]
    pub fn prometheus_address(&self) -> Option<SocketAddr> {
        self.prometheus.as_ref()?.parse().ok()
    }

    /// Returns the name of the experiment of MLflow.
    #[must_use]
    pub fn mlflow_experiment(&self) -> &str {
        self.mlflow_experiment.as_deref().unwrap_or("ronde")
    }

    /// Returns the problem with an address of an MLflow server, if there is one.
    #[must_use]
    pub fn mlflow_problem(address: &str) -> Option<&'static str> {
        let rest = address
            .strip_prefix("http://")
            .or_else(|| address.strip_prefix("https://"));
        match rest {
            None | Some("") => Some("it must begin with http:// or https:// and name a host"),
            Some(rest) if rest.contains('@') => Some(
                "it must not contain a password: set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and \
                 MLFLOW_TRACKING_PASSWORD",
            ),
            Some(rest) if rest.contains(['?', '#', ' ']) => {
                Some("it must be the address of a server, without a query")
            }
            Some(_) => None,
        }
    }

    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        at_least_one("track.every_steps", self.every_steps, problems);
        if let TensorboardTarget::Folder(folder) = &self.tensorboard
            && folder.is_empty()
        {
            let message = "`track.tensorboard` is empty, but must be true, false or a folder";
            problems.push(ConfigProblem::error(
                "track.tensorboard",
                message.to_owned(),
            ));
        }
        if self.histogram_every_steps > 0 && self.tensorboard == TensorboardTarget::Off {
            let message = "`track.histogram_every_steps` has no effect without `track.tensorboard`";
            let hint = "set track.tensorboard = true";
            let problem =
                ConfigProblem::error("track.histogram_every_steps", message.to_owned()).hint(hint);
            problems.push(problem);
        }
        if let Some(problem) = self.mlflow.as_deref().and_then(Self::mlflow_problem) {
            let message = format!("invalid `track.mlflow`: {problem}");
            let hint = "for example http://127.0.0.1:5000";
            problems.push(ConfigProblem::error("track.mlflow", message).hint(hint));
        }
        if let (None, Some(_)) = (&self.mlflow, &self.mlflow_experiment) {
            let message = "`track.mlflow_experiment` has no effect without `track.mlflow`";
            problems.push(ConfigProblem::error("track.mlflow_experiment", message));
        }
        if let (Some(text), None) = (&self.prometheus, self.prometheus_address()) {
            let message = format!(
                "`track.prometheus` is `{text}`, but must be an IP address and a port, such as 127.0.0.1:9095"
            );
            let hint = "port 0 chooses a free port";
            problems.push(ConfigProblem::error("track.prometheus", message).hint(hint));
        }
    }
}

/// Where event files for TensorBoard are written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TensorboardTarget {
    /// Nowhere.
    #[default]
    Off,
    /// In the run's folder.
    RunFolder,
    /// In a folder of several runs, relative to the current folder.
    Folder(String),
}

impl TensorboardTarget {
    /// Returns the folder of the event files of a run with this name and folder.
    #[must_use]
    pub fn folder(&self, run: &str, output: &Path) -> Option<PathBuf> {
        match self {
            Self::Off => None,
            Self::RunFolder => Some(output.join("tensorboard")),
            Self::Folder(folder) => Some(Path::new(folder).join(run)),
        }
    }
}

impl Serialize for TensorboardTarget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::RunFolder => serializer.serialize_bool(true),
            Self::Folder(folder) => serializer.serialize_str(folder),
        }
    }
}

impl<'de> Deserialize<'de> for TensorboardTarget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TargetVisitor;
        impl Visitor<'_> for TargetVisitor {
            type Value = TensorboardTarget;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a folder")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
                Ok(match value {
                    true => TensorboardTarget::RunFolder,
                    false => TensorboardTarget::Off,
                })
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
                Ok(TensorboardTarget::Folder(value.to_owned()))
            }
        }
        deserializer.deserialize_any(TargetVisitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for TensorboardTarget {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TensorboardTarget".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["boolean", "string"], "examples": [true, "metrics"] })
    }
}
