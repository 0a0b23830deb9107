//! [`BatchCounts`]: the numbers that sums over samples are divided by.
//!
//! Gradients are divided by the global number of counted targets, and running statistics, which are sums weighted by samples in the
//! same buckets, by the global number of samples. The numbers travel with the vote, so running statistics need no reduction for
//! themselves.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

/// The numbers that sums over some samples are divided by.
///
/// Samples of a batch may have different numbers of targets, such as the tokens of texts of different lengths. The loss and its
/// gradient are means over all targets of the global batch that count; running statistics are means over samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchCounts {
    /// The number of samples.
    pub samples: u64,
    /// The number of terms that the loss is a mean of: of a loss of classes, the targets that are not ignored; of other
    /// losses, the samples.
    pub targets: u64,
}

impl Add for BatchCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            samples: self.samples + other.samples,
            targets: self.targets + other.targets,
        }
    }
}

impl AddAssign for BatchCounts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for BatchCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}
