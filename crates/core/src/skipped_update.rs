//! [`SkippedUpdate`]: why a committed step has updated no parameter, and how often that happened.

use serde::{Deserialize, Serialize};

/// Why a committed step has updated no parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SkippedUpdate {
    /// The scaled gradient was too large for `f16`; the loss scale was halved.
    Overflow,
    /// The loss counts no target of the global batch.
    NoTargets,
}

/// The numbers of steps that have updated no parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SkippedUpdates {
    /// Steps of [`SkippedUpdate::Overflow`].
    pub overflow: u64,
    /// Steps of [`SkippedUpdate::NoTargets`].
    pub no_targets: u64,
}

impl SkippedUpdates {
    /// Counts a step.
    pub fn add(&mut self, skipped: SkippedUpdate) {
        match skipped {
            SkippedUpdate::Overflow => self.overflow += 1,
            SkippedUpdate::NoTargets => self.no_targets += 1,
        }
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.overflow + self.no_targets
    }
}
