//! [`Contributions`]: the operands of all ranks in a sum, and the order of the additions.

use ronde_core::GroupRank;
use ronde_core::exact::{self, ExactSum};

/// The number of operands of each rank, and the additions that combine all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contributions {
    /// The start of each rank's operands in the list of all operands; one more entry than ranks.
    pub starts: Vec<usize>,
    /// Additions `into = into op from` over that list; the result ends at index 0.
    pub additions: Vec<(usize, usize)>,
}

impl Contributions {
    /// Returns one operand per rank, added in rank order.
    #[must_use]
    pub fn plain(size: usize) -> Self {
        Self {
            starts: (0..=size).collect(),
            additions: (1..size).map(|from| (0, from)).collect(),
        }
    }

    /// Returns one operand per rank, added along a binary tree: first neighbours, then pairs of neighbours.
    #[must_use]
    pub fn neighbours(size: usize) -> Self {
        let mut additions = Vec::new();
        let mut distance = 1;
        while distance < size {
            let lefts = (0..size - distance).step_by(2 * distance);
            additions.extend(lefts.map(|left| (left, left + distance)));
            distance *= 2;
        }
        Self {
            starts: (0..=size).collect(),
            additions,
        }
    }

    /// Returns the subtrees of an exact sum, added in tree order.
    #[must_use]
    pub fn exact(sum: &ExactSum) -> Self {
        let (mut starts, mut nodes) = (vec![0], Vec::new());
        for rank in 0..sum.size() {
            nodes.extend(sum.nodes(GroupRank(rank as u32)));
            starts.push(nodes.len());
        }
        Self {
            starts,
            additions: exact::additions(&nodes, sum.shards()),
        }
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the rank that contributes an operand of the list.
    #[must_use]
    pub fn owner(&self, operand: usize) -> usize {
        self.starts.partition_point(|&start| start <= operand) - 1
    }

    /// Returns the number of operands of a rank.
    #[must_use]
    pub fn count(&self, rank: usize) -> usize {
        self.starts[rank + 1] - self.starts[rank]
    }
}
