//! The exact sum: a fixed binary tree over logical shards. Its bits do not depend on which rank holds which shard.
//!
//! Floating-point addition is not associative, so a plain sum over ranks depends on how shards are assigned
//! to ranks. Here the shard *number* fixes the association: shard gradients are the leaves of a binary tree,
//! and every partial sum is a node of that tree. A rank with a contiguous range of shards adds the complete
//! subtrees inside its range ([`TreeSum`], at most `log2(shards) + 1` live buffers) and sends the remaining
//! few ([`ExactSum::nodes`]) to the rank that owns the slice, which finishes the sum in tree order. If the group
//! size and the number of shards are powers of two, every rank sends exactly one subtree, which is as many
//! bytes as a plain all-reduce.
//!
//! NaNs are replaced by the canonical NaN, so that their payload does not depend on the operand order.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::buffer::Buffer;
use crate::dtype::DType;
use crate::rank::GroupRank;

/// A node of the tree: the shards `index << level .. (index + 1) << level`, up to the number of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// The height above the leaves.
    pub level: u32,
    /// The index among the nodes of this level.
    pub index: u32,
}

impl Node {
    /// Returns the leaf of a shard in a tree over `shards` leaves, lifted past missing right siblings.
    #[must_use]
    pub fn leaf(shard: u32, shards: u32) -> Self {
        Self {
            level: 0,
            index: shard,
        }
        .lifted(shards)
    }

    /// Returns the root of the tree.
    #[must_use]
    pub fn root(shards: u32) -> Self {
        Self {
            level: u32::BITS - shards.saturating_sub(1).leading_zeros(),
            index: 0,
        }
    }

    /// Lifts the node while it has no right sibling: it then equals its parent, since there is nothing to add.
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

    /// Returns the shards of the leaves below the node.
    #[must_use]
    pub fn shards(self, shards: u32) -> Range<u32> {
        let bound = |index: u64| (index << self.level).min(u64::from(shards)) as u32;
        bound(self.index.into())..bound(u64::from(self.index) + 1)
    }

    /// Returns whether the node is the right one of two that have the same parent, whose left one is `left`.
    #[must_use]
    pub fn is_right_sibling_of(self, left: Self) -> bool {
        self.index % 2 == 1 && left == self.sibling()
    }

    fn sibling(self) -> Self {
        Self {
            level: self.level,
            index: self.index ^ 1,
        }
    }

    /// Returns the node above in a tree over `shards` leaves.
    #[must_use]
    pub fn parent(self, shards: u32) -> Self {
        Self {
            level: self.level + 1,
            index: self.index / 2,
        }
        .lifted(shards)
    }
}

/// Returns the largest subtrees whose leaves are exactly the shards of `run`, in shard order.
#[must_use]
pub fn cover(run: Range<u32>, shards: u32) -> Vec<Node> {
    let mut stack: Vec<Node> = Vec::new();
    for shard in run {
        let mut node = Node::leaf(shard, shards);
        while stack
            .last()
            .is_some_and(|left| node.is_right_sibling_of(*left))
        {
            stack.pop();
            node = node.parent(shards);
        }
        stack.push(node);
    }
    stack
}

/// Pairs `(into, from)` of indices: `into += from`, in this order.
pub type Additions = Vec<(usize, usize)>;

/// Returns the additions `into += from` (indices into `nodes`) that turn a list of subtrees covering all shards
/// into the root, which ends at index 0.
///
/// # Panics
/// If `nodes` does not cover the tree in shard order, which is a bug of the caller.
#[must_use]
pub fn additions(nodes: &[Node], shards: u32) -> Additions {
    let (additions, left) = reductions(nodes, shards);
    assert!(
        matches!(left.as_slice(), [(0, root)] if *root == Node::root(shards)),
        "subtrees {nodes:?} do not make the tree over {shards} shards"
    );
    additions
}

/// Returns all additions `into += from` that the tree allows (indices into `nodes`, which are in shard order),
/// and the remaining subtrees with their indices.
#[must_use]
pub fn reductions(nodes: &[Node], shards: u32) -> (Additions, Vec<(usize, Node)>) {
    let mut stack: Vec<(usize, Node)> = Vec::new();
    let mut additions = Vec::new();
    for (place, &node) in nodes.iter().enumerate() {
        let mut node = node;
        let mut place = place;
        while let Some(&(left_place, left)) = stack.last()
            && node.is_right_sibling_of(left)
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

/// The assignment of shards to the ranks of a group in an exact sum.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExactSum {
    bounds: Vec<u32>,
}

impl ExactSum {
    /// Creates an assignment in which group rank `r` holds the shards `bounds[r]..bounds[r + 1]`, which may be empty.
    ///
    /// `None` unless the bounds start at 0, do not decrease, and end at 1 or more.
    #[must_use]
    pub fn new(bounds: Vec<u32>) -> Option<Self> {
        let ok = bounds.len() >= 2
            && bounds[0] == 0
            && bounds.is_sorted()
            && bounds.last().is_some_and(|&shards| shards > 0);
        ok.then_some(Self { bounds })
    }

    /// Returns the number of logical shards.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.bounds[self.bounds.len() - 1]
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Returns the shards of a rank.
    #[must_use]
    pub fn run(&self, rank: GroupRank) -> Range<u32> {
        self.bounds[rank.index()]..self.bounds[rank.index() + 1]
    }

    /// Returns the subtrees that a rank contributes, in shard order.
    #[must_use]
    pub fn nodes(&self, rank: GroupRank) -> Vec<Node> {
        cover(self.run(rank), self.shards())
    }

    /// Returns the largest number of buffers of the sum's length that any rank holds at once: the subtrees and the
    /// shard being computed, or later the remaining subtrees and their concatenated copy.
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

    /// Returns whether every rank contributes exactly one subtree and all have the same level. Algorithms that
    /// combine neighbours pairwise then keep the tree order.
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

/// Adds shard gradients (or subtrees) in any order of arrival along the fixed tree.
#[derive(Debug)]
pub struct TreeSum {
    shards: u32,
    pending: BTreeMap<(u64, Node), Buffer>,
}

impl TreeSum {
    /// Creates an empty sum over `shards` leaves.
    #[must_use]
    pub fn new(shards: u32) -> Self {
        Self {
            shards,
            pending: BTreeMap::new(),
        }
    }

    /// Adds the gradient of one shard. Returns the buffer that became free, if any.
    pub fn add_shard(&mut self, shard: u32, gradient: Buffer) -> Vec<Buffer> {
        self.add(Node::leaf(shard, self.shards), gradient)
    }

    /// Adds a subtree; returns the buffers that became free.
    ///
    /// # Panics
    /// If a node is added twice or lengths differ, which is a bug of the caller.
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

    /// Returns the remaining subtrees in shard order and empties the sum.
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

/// Computes `left += right` element by element, with canonical NaNs. Both have elements of `dtype`.
///
/// # Panics
/// If lengths differ or the type is neither f32 nor f64, which is a bug of the caller.
pub fn add(dtype: DType, left: &mut [u8], right: &[u8]) {
    match dtype {
        DType::F32 => add_f32(bytemuck::cast_slice_mut(left), bytemuck::cast_slice(right)),
        DType::F64 => add_f64(bytemuck::cast_slice_mut(left), bytemuck::cast_slice(right)),
        other => panic!("the exact sum needs f32 or f64, not {other}"),
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
