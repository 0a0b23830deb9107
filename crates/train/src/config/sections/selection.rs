//! The keys of `[train]` that act on evaluations: early stopping and lower learning rates.

use serde::{Deserialize, Serialize};

use super::not_negative;
use crate::config::ConfigProblem;
use crate::evaluate::LOSS;

/// `train.early_stopping`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EarlyStoppingSection {
    /// The metric, or `loss`, that must improve; default `loss`.
    #[serde(default = "loss")]
    pub metric: String,
    /// The number of evaluations in a row without an improvement after which the run ends.
    pub patience: u32,
    /// The difference to the best value that an improvement must exceed; default 0.
    #[serde(default)]
    pub min_delta: f64,
}

/// `train.reduce_on_plateau`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PlateauSection {
    /// The metric, or `loss`, that must improve; default `loss`.
    #[serde(default = "loss")]
    pub metric: String,
    /// The factor of each reduction; default 0.1.
    #[serde(default = "tenth")]
    pub factor: f64,
    /// The number of evaluations in a row without an improvement after which the learning rate is reduced.
    pub patience: u32,
    /// The difference to the best value that an improvement must exceed; default 0.
    #[serde(default)]
    pub min_delta: f64,
    /// The lowest learning rate after a reduction; default 0.
    #[serde(default)]
    pub min_learning_rate: f64,
}

fn loss() -> String {
    LOSS.to_owned()
}

fn tenth() -> f64 {
    0.1
}

impl EarlyStoppingSection {
    pub(super) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        patience("train.early_stopping.patience", self.patience, problems);
        not_negative("train.early_stopping.min_delta", self.min_delta, problems);
    }
}

impl PlateauSection {
    pub(super) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        let path = |key: &str| format!("train.reduce_on_plateau.{key}");
        patience(&path("patience"), self.patience, problems);
        not_negative(&path("min_delta"), self.min_delta, problems);
        not_negative(&path("min_learning_rate"), self.min_learning_rate, problems);
        if !(self.factor > 0.0 && self.factor < 1.0) {
            let path = path("factor");
            let message = format!(
                "`{path}` is {}, but must be above 0 and below 1",
                self.factor
            );
            problems.push(ConfigProblem::error(path, message));
        }
    }
}

fn patience(path: &str, patience: u32, problems: &mut Vec<ConfigProblem>) {
    super::at_least_one(path, patience.into(), problems);
}
