//! The exact sum: a fixed binary tree over logical shards, the same bits whoever holds which shard.
//!
//! Floating-point addition is not associative, so a sum over ranks depends on how shards were
//! spread. Here the association is fixed by shard *number*: shard gradients are the leaves of a
//! binary tree, and every partial sum that is ever formed is a node of that tree. A rank with a
//! contiguous run of shards adds the complete subtrees inside its run ([`TreeSum`], at most
//! `log2(shards) + 1` buffers alive) and ships the few that remain ([`ExactSum::nodes`]) to the rank
//! that owns the slice, which finishes in tree order. Where the group size and the shard count are
//! powers of two every rank ships exactly one subtree: no byte more than a plain all-reduce.
//!
//! NaNs are made canonical, so that even their payload does not depend on operand order.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::{Buffer, DType, GroupRank};

/// A node of the tree: the shards `index << level .. (index + 1) << level`, clipped to the count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// Height above the leaves.
    pub level: u32,
    /// Position among the nodes of this level.
    pub index: u32,
}

impl Node {
    /// The leaf of a shard in a tree over `shards` leaves, lifted past missing right siblings.
    #[must_use]
    pub fn leaf(shard: u32, shards: u32) -> Self {
        Self {
            level: 0,
            index: shard,
        }
        .lifted(shards)
    }

    /// The whole tree.
    #[must_use]
    pub fn root(shards: u32) -> Self {
        Self {
            level: u32::BITS - shards.saturating_sub(1).leading_zeros(),
            index: 0,
        }
    }

    /// A node without a right sibling is its parent: there is nothing to add.
    fn lifted(mut self, shards: u32) -> Self {
        while self != Self::root(shards)
            && self.index.is_multiple_of(2)
            && (u64::from(self.index) + 1) << self.level >= u64::from(shards)
        {
            self = Self {
                level: self.level + 1,
                index: self.index / 2,
            };
        }
        self
    }

    fn sibling(self) -> Self {
        Self {
            level: self.level,
            index: self.index ^ 1,
        }
    }

    fn parent(self, shards: u32) -> Self {
        Self {
            level: self.level + 1,
            index: self.index / 2,
        }
        .lifted(shards)
    }
}

/// The largest subtrees whose leaves are exactly the shards of `run`, in shard order.
#[must_use]
pub fn cover(run: Range<u32>, shards: u32) -> Vec<Node> {
    let mut stack: Vec<Node> = Vec::new();
    for shard in run {
        let mut node = Node::leaf(shard, shards);
        while stack.last() == Some(&node.sibling()) && node.index % 2 == 1 {
            stack.pop();
            node = node.parent(shards);
        }
        stack.push(node);
    }
    stack
}

/// Pairs `(into, from)` of places: `into += from`, in this order.
pub type Additions = Vec<(usize, usize)>;

/// Additions `into += from` (indices into `nodes`) that turn a list of subtrees covering all shards
/// into the root, which ends in place 0.
///
/// # Panics
/// When `nodes` does not cover the tree in shard order: a bug of the caller.
#[must_use]
pub fn additions(nodes: &[Node], shards: u32) -> Additions {
    let (additions, left) = reductions(nodes, shards);
    assert!(
        matches!(left.as_slice(), [(0, root)] if *root == Node::root(shards)),
        "subtrees {nodes:?} do not make the tree over {shards} shards"
    );
    additions
}

/// All additions `into += from` (indices into `nodes`, which are in shard order) that the tree
/// allows, and what is left in the end: places and the subtrees there.
#[must_use]
pub fn reductions(nodes: &[Node], shards: u32) -> (Additions, Vec<(usize, Node)>) {
    let mut stack: Vec<(usize, Node)> = Vec::new();
    let mut additions = Vec::new();
    for (place, &node) in nodes.iter().enumerate() {
        let mut node = node;
        let mut place = place;
        while let Some(&(left_place, left)) = stack.last()
            && left == node.sibling()
            && node.index % 2 == 1
        {
            stack.pop();
            additions.push((left_place, place));
            node = node.parent(shards);
            place = left_place;
        }
        stack.push((place, node));
    }
    (additions, stack)
}

/// Who holds which shards in an exact sum over a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExactSum {
    bounds: Vec<u32>,
}

impl ExactSum {
    /// Group rank `r` holds the shards `bounds[r]..bounds[r + 1]`; runs may be empty.
    ///
    /// `None` unless the bounds start at 0, do not fall, and end at one shard or more.
    #[must_use]
    pub fn new(bounds: Vec<u32>) -> Option<Self> {
        let ok = bounds.len() >= 2
            && bounds[0] == 0
            && bounds.is_sorted()
            && bounds.last().is_some_and(|&shards| shards > 0);
        ok.then_some(Self { bounds })
    }

    /// Count of logical shards.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.bounds[self.bounds.len() - 1]
    }

    /// Count of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bounds.len() - 1
    }

    /// The shards of a rank.
    #[must_use]
    pub fn run(&self, rank: GroupRank) -> Range<u32> {
        self.bounds[rank.index()]..self.bounds[rank.index() + 1]
    }

    /// The subtrees that a rank brings, in shard order.
    #[must_use]
    pub fn nodes(&self, rank: GroupRank) -> Vec<Node> {
        cover(self.run(rank), self.shards())
    }

    /// Most buffers of the sum's length that any rank holds at once: the subtrees while shards are
    /// added with one more being filled, then those that remain beside their joined copy.
    #[must_use]
    pub fn buffers_max(&self) -> u64 {
        let of_rank = |rank: usize| {
            let run = self.run(GroupRank(rank as u32));
            let alive = |end| cover(run.start..end, self.shards()).len() as u64;
            let adding = run.clone().map(|shard| alive(shard) + 1).max().unwrap_or(1);
            let remaining = alive(run.end);
            adding.max(if remaining > 1 {
                2 * remaining
            } else {
                remaining
            })
        };
        (0..self.size()).map(of_rank).max().unwrap_or(1)
    }

    /// Whether every rank brings exactly one subtree and all are of one level, so that algorithms
    /// that combine neighbours pairwise keep the tree order.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let per_rank: Vec<_> = (0..self.size())
            .map(|r| self.nodes(GroupRank(r as u32)))
            .collect();
        self.size().is_power_of_two()
            && per_rank
                .iter()
                .all(|nodes| nodes.len() == 1 && nodes[0].level == per_rank[0][0].level)
    }
}

/// Adds shard gradients (or subtrees) as they come, in any order, along the fixed tree.
#[derive(Debug)]
pub struct TreeSum {
    shards: u32,
    pending: BTreeMap<(u64, Node), Buffer>,
}

impl TreeSum {
    /// An empty sum over `shards` leaves.
    #[must_use]
    pub fn new(shards: u32) -> Self {
        Self {
            shards,
            pending: BTreeMap::new(),
        }
    }

    /// Adds the gradient of one shard. Returns a buffer that became free, if any.
    pub fn add_shard(&mut self, shard: u32, gradient: Buffer) -> Vec<Buffer> {
        self.add(Node::leaf(shard, self.shards), gradient)
    }

    /// Adds a subtree; returns the buffers that became free.
    ///
    /// # Panics
    /// When a node is added twice, or lengths differ: a bug of the caller.
    pub fn add(&mut self, mut node: Node, mut sum: Buffer) -> Vec<Buffer> {
        let mut free = Vec::new();
        while let Some(other) = self.pending.remove(&self.key(node.sibling())) {
            let (mut left, right) = if node.index % 2 == 1 {
                (other, sum)
            } else {
                (sum, other)
            };
            add(left.dtype(), left.bytes_mut(), right.bytes());
            free.push(right);
            sum = left;
            node = node.parent(self.shards);
        }
        let before = self.pending.insert(self.key(node), sum);
        assert!(before.is_none(), "{node:?} was added twice");
        free
    }

    /// The subtrees that remain, in shard order. Empties the sum.
    pub fn take(&mut self) -> Vec<(Node, Buffer)> {
        std::mem::take(&mut self.pending)
            .into_iter()
            .map(|((_, node), sum)| (node, sum))
            .collect()
    }

    fn key(&self, node: Node) -> (u64, Node) {
        (u64::from(node.index) << node.level, node)
    }
}

/// `left += right`, element by element, with canonical NaNs. Both are of `dtype`.
///
/// # Panics
/// When lengths differ or the type is not f32 or f64: a bug of the caller.
pub fn add(dtype: DType, left: &mut [u8], right: &[u8]) {
    match dtype {
        DType::F32 => add_f32(bytemuck::cast_slice_mut(left), bytemuck::cast_slice(right)),
        DType::F64 => add_f64(bytemuck::cast_slice_mut(left), bytemuck::cast_slice(right)),
        other => panic!("the exact sum is of f32 or f64, not {other}"),
    }
}

macro_rules! add_kernel {
    ($name:ident, $float:ty) => {
        fn $name(left: &mut [$float], right: &[$float]) {
            assert_eq!(left.len(), right.len(), "lengths of an exact sum differ");
            for (left, right) in left.iter_mut().zip(right) {
                let sum = *left + *right;
                *left = if sum.is_nan() { <$float>::NAN } else { sum };
            }
        }
    };
}
add_kernel!(add_f32, f32);
add_kernel!(add_f64, f64);

#[cfg(test)]
mod tests;
