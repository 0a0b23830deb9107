//! `[parallel]`: how the state of a run is divided among the workers.

use ronde_parallel::{SynchronousConfig, ZeroLevel};
use serde::{Deserialize, Serialize};

use crate::config::ConfigProblem;

/// `[parallel]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ParallelSection {
    /// What is divided among the workers instead of being held by each of them: nothing (0), the states of the optimizer
    /// (1), or these and the reduced gradients (2); default 0. The trained bits do not depend on it.
    pub zero: u32,
    /// How many workers hold each slice of a divided state, 1 or 2; default 2 with more than two workers, otherwise 1. With
    /// 2, the run continues after the loss of any one worker without loading a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
}

impl ParallelSection {
    /// Returns the level of `zero`; none for a number that `check` rejects.
    #[must_use]
    pub fn zero_level(&self) -> ZeroLevel {
        ZeroLevel::new(self.zero).unwrap_or_default()
    }

    /// Returns how many of `workers` workers hold each slice.
    #[must_use]
    pub fn copies_among(&self, workers: u32) -> u32 {
        SynchronousConfig::copies_among(self.copies, workers as usize)
    }

    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        if ZeroLevel::new(self.zero).is_none() {
            let message = format!("`parallel.zero` is {}, but must be 0, 1 or 2", self.zero);
            problems.push(ConfigProblem::error("parallel.zero", message));
        }
        if let Some(copies) = self.copies.filter(|copies| !(1..=2).contains(copies)) {
            let message = format!("`parallel.copies` is {copies}, but must be 1 or 2");
            problems.push(ConfigProblem::error("parallel.copies", message));
        }
    }
}
