//! [`Algorithm`]: the known ways to run a reduction.

use std::fmt::{self, Display};
use std::str::FromStr;

use crate::ScheduleError;

/// A way to run a reduction over a group of `n` ranks and `b` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// All to rank 0 and back: rank 0 sends `(n - 1) b` bytes. The baseline.
    Driver,
    /// Slices go round a ring: `2 (n - 1)` messages and `2 b (n - 1) / n` bytes per rank.
    Ring,
    /// Each rank owns a slice and hears from all: the ring's bytes in two rounds.
    Direct,
    /// Neighbours first, halving what is exchanged: the ring's bytes in `2 log2(n)` rounds; a few more
    /// of both where `n` is no power of two.
    HalvingDoubling,
    /// Up a binary tree and down again: `2 log2(n)` rounds, `b` bytes up and at most `b log2(n)` down.
    Tree,
    /// Inside hosts, then across, then inside: across hosts as few bytes as with one rank per host.
    Hierarchical,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Driver,
        Self::Ring,
        Self::Direct,
        Self::HalvingDoubling,
        Self::Tree,
        Self::Hierarchical,
    ];

    /// The name as it is written in files and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
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
