//! [`Contributions`]: what the ranks bring to a sum and in which order it is added.

use ronde_core::GroupRank;
use ronde_core::exact::{self, ExactSum};

/// How many operands each rank brings, and the additions that make one of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contributions {
    /// Where each rank's operands start in the list of all; one more entry than ranks.
    pub starts: Vec<usize>,
    /// `into = into op from` over that list; the result ends in place 0.
    pub additions: Vec<(usize, usize)>,
}

impl Contributions {
    /// One operand per rank, added in rank order.
    #[must_use]
    pub fn plain(size: usize) -> Self {
        Self {
            starts: (0..=size).collect(),
            additions: (1..size).map(|from| (0, from)).collect(),
        }
    }

    /// One operand per rank, added between neighbours, then neighbours of neighbours: a binary tree.
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

    /// The subtrees of an exact sum, added in tree order.
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

    /// Count of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.starts.len() - 1
    }

    /// The rank that brings an operand of the list of all.
    #[must_use]
    pub fn owner(&self, operand: usize) -> usize {
        self.starts.partition_point(|&start| start <= operand) - 1
    }

    /// How many operands a rank brings.
    #[must_use]
    pub fn count(&self, rank: usize) -> usize {
        self.starts[rank + 1] - self.starts[rank]
    }
}
