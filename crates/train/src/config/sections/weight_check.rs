//! `[check]`: how the replicas of the weights are compared.

use serde::{Deserialize, Serialize};

use super::at_least_one;
use crate::config::ConfigProblem;

/// `[check]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CheckSection {
    /// The number of parts in which the weights are hashed, one part per step in turn; default 16.
    pub weight_hash_parts: u32,
    /// All weights are hashed every this many steps; default 50.
    pub weight_hash_full_every: u64,
}

impl Default for CheckSection {
    fn default() -> Self {
        Self {
            weight_hash_parts: 16,
            weight_hash_full_every: 50,
        }
    }
}

impl CheckSection {
    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        let parts = self.weight_hash_parts.into();
        at_least_one("check.weight_hash_parts", parts, problems);
        let every = self.weight_hash_full_every;
        at_least_one("check.weight_hash_full_every", every, problems);
    }
}
