//! [`Fence`]: under whose authority something was published.

use std::fmt;

use ronde_core::Generation;
use serde::{Deserialize, Serialize};

/// Term and generation; the higher one is the newer authority.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Fence {
    /// Grows when the authority that gives out generations changes hands.
    pub term: u64,
    /// Version of the membership.
    pub generation: Generation,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {} generation {}", self.term, self.generation)
    }
}
