//! [`Fence`]: the fencing token under which a checkpoint is published.

use std::fmt;

use ronde_core::Generation;
use serde::{Deserialize, Serialize};

/// A fencing token: coordinator term and generation. A higher token supersedes a lower one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Fence {
    /// The coordinator's term; it grows with each change of the coordinator.
    pub term: u64,
    /// The version of the membership.
    pub generation: Generation,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {} generation {}", self.term, self.generation)
    }
}
