//! `[run]`: the name, the seed and the folder of a run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::ConfigProblem;

/// The longest name of a run, in characters.
const NAME_LETTERS_MAX: usize = 100;

/// `[run]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RunSection {
    /// The name of the run; default `run`.
    #[serde(serialize_with = "ronde_core::outside_identity")]
    pub name: String,
    /// The seed of all random numbers; default 42.
    pub seed: u64,
    /// The folder for results; default `runs/<name>`.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "ronde_core::outside_identity"
    )]
    pub output: Option<PathBuf>,
}

impl Default for RunSection {
    fn default() -> Self {
        Self {
            name: "run".to_owned(),
            seed: 42,
            output: None,
        }
    }
}

impl RunSection {
    /// Returns the folder for results.
    #[must_use]
    pub fn output_folder(&self) -> PathBuf {
        let default = || PathBuf::from("runs").join(&self.name);
        self.output.clone().unwrap_or_else(default)
    }

    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        let name = &self.name;
        let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !starts || name.len() > NAME_LETTERS_MAX || !name.chars().all(letters) {
            let message = format!("invalid `run.name` {name:?}: it is also the name of a folder");
            let hint = format!(
                "use 1 to {NAME_LETTERS_MAX} letters, digits, `-`, `_` and `.`, starting with a letter or digit"
            );
            problems.push(ConfigProblem::error("run.name", message).hint(hint));
        }
        if self
            .output
            .as_deref()
            .is_some_and(|folder| folder.as_os_str().is_empty())
        {
            let hint = "remove it to use runs/<name>";
            problems.push(ConfigProblem::error("run.output", "`run.output` is empty").hint(hint));
        }
        if i64::try_from(self.seed).is_err() {
            let message = format!(
                "`run.seed` is {}, but must be at most {}",
                self.seed,
                i64::MAX
            );
            problems.push(ConfigProblem::error("run.seed", message));
        }
    }
}
