//! `[events]`: how many events of a run are written to its event files.

use serde::{Deserialize, Serialize};

use super::at_least_one;
use crate::config::ConfigProblem;

/// `[events]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct EventsSection {
    /// Write the events of every this many steps; default 1. The summary covers all steps.
    pub every_steps: u64,
    /// The largest size of the event files of a run, in MiB; default 256. When half of it is reached, older events
    /// are moved to `events.1.jsonl`, replacing those that are there. 0: not limited.
    pub limit_mib: u64,
}

impl Default for EventsSection {
    fn default() -> Self {
        Self {
            every_steps: 1,
            limit_mib: 256,
        }
    }
}

impl EventsSection {
    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        at_least_one("events.every_steps", self.every_steps, problems);
    }
}
