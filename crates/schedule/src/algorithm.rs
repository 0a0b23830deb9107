//! [`Algorithm`]: the algorithms of a reduction.

use std::fmt::{self, Display};
use std::str::FromStr;

use crate::error::ScheduleError;

/// An algorithm for a reduction of `b` bytes over a group of `n` ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// All ranks send to rank 0, which sends back `(n - 1) b` bytes. The baseline.
    Driver,
    /// Slices are sent around a ring: `2 (n - 1)` messages and `2 b (n - 1) / n` bytes per rank.
    Ring,
    /// Each rank owns a slice and receives it from all ranks: as many bytes as a ring, in two rounds.
    Direct,
    /// Pairs exchange halves, neighbours first: as many bytes as a ring, in `2 log2(n)` rounds; a few more of both
    /// unless `n` is a power of two.
    HalvingDoubling,
    /// Up a binary tree and down again: `2 log2(n)` rounds, `b` bytes up and at most `b log2(n)` down.
    Tree,
    /// Within hosts, then across, then within hosts: as few bytes between hosts as with one rank per host.
    Hierarchical,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 6] = [
        Self::Driver,
        Self::Ring,
        Self::Direct,
        Self::HalvingDoubling,
        Self::Tree,
        Self::Hierarchical,
    ];

    /// The algorithms that can carry an exact sum, which is all except the ring.
    pub const EXACT_SUM: [Self; 5] = [
        Self::Direct,
        Self::HalvingDoubling,
        Self::Tree,
        Self::Driver,
        Self::Hierarchical,
    ];

    /// Returns the name that is used in files and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Ring => "ring",
            Self::Direct => "direct",
            Self::HalvingDoubling => "halving_doubling",
            Self::Tree => "tree",
            Self::Hierarchical => "hierarchical",
        }
    }
}

impl Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == text)
            .ok_or_else(|| ScheduleError::UnknownAlgorithm {
                name: text.to_owned(),
            })
    }
}
