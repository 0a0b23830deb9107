//! `[checkpoint]`: when and where the state of a run is saved, and how many checkpoints are kept.

use std::path::Path;

use ronde_store::{Address, KeySource, StoreError};
use serde::{Deserialize, Serialize};

use crate::config::ConfigProblem;

/// The longest interval between checkpoints that can be set, in minutes: one month.
const MINUTES_MAX: f64 = 44_640.0;

/// The longest time limit for the last checkpoint of a stopping job, in seconds: one day.
const FINISH_LIMIT_S_MAX: f64 = 86_400.0;

/// `[checkpoint]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSection {
    /// Save a checkpoint every this many steps; default 0: not by steps.
    pub every_steps: u64,
    /// Save a checkpoint when the last one is this many minutes old; default 10. 0: not by time.
    pub every_minutes: f64,
    /// Save a checkpoint of the last step, from which the run can be extended; default true.
    pub at_end: bool,
    /// A folder, `s3://bucket/prefix` or `az://container/prefix`; default `checkpoints` in the run's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Number of recent checkpoints to keep; default 2.
    pub keep: u32,
    /// Also keep checkpoints whose step is a multiple of this; default 0: none.
    pub keep_every_steps: u64,
    /// Whether training continues while a checkpoint is written; default true.
    pub overlap: bool,
    /// Time limit for saving a last checkpoint when the job is asked to stop; default 300 seconds. 0: stop without
    /// one.
    pub finish_limit_s: f64,
    /// The source of the encryption key: `file:PATH` or `variable:NAME`; absent: checkpoints are not encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypt: Option<String>,
}

impl Default for CheckpointSection {
    fn default() -> Self {
        Self {
            every_steps: 0,
            every_minutes: 10.0,
            at_end: true,
            to: None,
            keep: 2,
            keep_every_steps: 0,
            overlap: true,
            finish_limit_s: 300.0,
            encrypt: None,
        }
    }
}

impl CheckpointSection {
    /// Returns whether the run saves checkpoints before it is asked to stop.
    #[must_use]
    pub fn is_saving(&self) -> bool {
        self.at_end || self.every_steps > 0 || self.every_minutes > 0.0
    }

    /// Returns the address of the checkpoint store; `output` is the run's folder.
    ///
    /// # Errors
    /// `to` is not a valid address.
    pub fn address(&self, output: &Path) -> Result<Address, StoreError> {
        match &self.to {
            Some(to) => to.parse(),
            None => Ok(Address::Folder(output.join("checkpoints"))),
        }
    }

    /// Returns the notice that the trained model is not encrypted although the checkpoints are.
    #[must_use]
    pub fn plain_model_note(&self, output: &Path) -> Option<String> {
        self.encrypt.as_ref().map(|_| {
            format!(
                "checkpoints are encrypted, but the trained model in {} is not",
                output.display()
            )
        })
    }

    /// Returns the source of the encryption key; `None` if checkpoints are not encrypted.
    ///
    /// # Errors
    /// A description of the problem.
    pub fn key_source(&self) -> Result<Option<KeySource>, String> {
        let source = self.encrypt.as_deref().map(str::parse).transpose();
        source.map_err(|problem: String| format!("`checkpoint.encrypt` {problem}"))
    }

    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        let minutes = self.every_minutes;
        if !(0.0..=MINUTES_MAX).contains(&minutes) {
            let message =
                format!("`checkpoint.every_minutes` is {minutes}, but must be 0 to {MINUTES_MAX}");
            let hint = "0 turns off checkpoints by time";
            problems.push(ConfigProblem::error("checkpoint.every_minutes", message).hint(hint));
        }
        let limit = self.finish_limit_s;
        if !(0.0..=FINISH_LIMIT_S_MAX).contains(&limit) {
            let message = format!(
                "`checkpoint.finish_limit_s` is {limit}, but must be 0 to {FINISH_LIMIT_S_MAX}"
            );
            let hint = "with 0 the job stops without a last checkpoint";
            problems.push(ConfigProblem::error("checkpoint.finish_limit_s", message).hint(hint));
        }
        if self.keep == 0 {
            let message = "`checkpoint.keep` must be at least 1";
            problems.push(ConfigProblem::error("checkpoint.keep", message));
        }
        if let Some(Err(error)) = self.to.as_ref().map(|to| to.parse::<Address>()) {
            let message = format!("`checkpoint.to`: {error}");
            problems.push(ConfigProblem::error("checkpoint.to", message));
        }
        if let Err(message) = self.key_source() {
            let hint = "create a key of 64 hexadecimal digits with `openssl rand -hex 32`";
            problems.push(ConfigProblem::error("checkpoint.encrypt", message).hint(hint));
        }
    }
}
