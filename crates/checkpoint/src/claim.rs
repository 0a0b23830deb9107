//! [`Claim`]: the statement that a run continues from a step under a fence.

use std::fmt;

use ronde_core::Step;
use serde::{Deserialize, Serialize};

use crate::fence::Fence;

/// The statement that training resumed from a step under a fence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The fence.
    pub fence: Fence,
    /// The number of committed steps at the resume.
    pub from: Step,
    /// The run that claimed, for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

impl Claim {
    pub(crate) fn new(fence: Fence, from: Step, run: &str) -> Self {
        Self {
            fence,
            from,
            run: Some(run.to_owned()),
        }
    }
}

impl fmt::Display for Claim {
    /// Writes the fence and the run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.run {
            Some(run) => write!(f, "{} of {run}", self.fence),
            None => self.fence.fmt(f),
        }
    }
}
