//! Sums of squares over fixed blocks, so that a norm does not depend on which rank owns which slice.
//!
//! Each tensor is divided into blocks of [`BLOCK`] elements, starting at its first element. The sums of its blocks are
//! added along a fixed binary tree over their positions ([`NumberTree`]), and the sums of all tensors along another
//! one, in the order of the model's tensors. Slices of a sharded state begin at blocks, so ranks that own different
//! slices add the same numbers in the same order.

use crate::exact::Node;

/// The number of elements of a block. Slices of a sharded state begin at blocks of a tensor.
pub const BLOCK: usize = 4096;

/// Returns the number of blocks of a tensor.
#[must_use]
pub fn blocks(elements: usize) -> usize {
    elements.div_ceil(BLOCK)
}

/// A sum of numbers along the fixed binary tree over their positions, which is the tree of the exact sum.
///
/// Numbers are added in the order of their positions. Several ranks can each add a range of positions; their
/// [`NumberTree::nodes`] then complete each other's sums, with the same bits for every division into ranges.
///
/// ```
/// use ronde_core::norm::NumberTree;
///
/// let mut whole = NumberTree::new(3);
/// (0..3).for_each(|position| whole.add(position, 0.1));
/// let (mut left, mut right) = (NumberTree::new(3), NumberTree::new(3));
/// left.add(0, 0.1);
/// right.add(1, 0.1);
/// right.add(2, 0.1);
/// right.nodes().iter().for_each(|&(node, sum)| left.add_node(node, sum));
/// assert_eq!(left.total(), whole.total());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NumberTree {
    positions: u32,
    /// The largest complete subtrees, in the order of their positions.
    nodes: Vec<(Node, f64)>,
}

impl NumberTree {
    /// Creates an empty sum over a number of positions.
    #[must_use]
    pub fn new(positions: u32) -> Self {
        Self {
            positions,
            nodes: Vec::new(),
        }
    }

    /// Adds the number at a position, which follows all positions added before.
    pub fn add(&mut self, position: u32, number: f64) {
        self.add_node(Node::leaf(position, self.positions), number);
    }

    /// Adds the sum of a subtree, whose positions follow all positions added before.
    pub fn add_node(&mut self, mut node: Node, mut sum: f64) {
        while let Some(&(left, number)) = self.nodes.last()
            && node.is_right_sibling_of(left)
        {
            self.nodes.pop();
            sum += number;
            node = node.parent(self.positions);
        }
        self.nodes.push((node, sum));
    }

    /// Returns the sums of the largest complete subtrees of the positions added so far, in their order.
    #[must_use]
    pub fn nodes(&self) -> &[(Node, f64)] {
        &self.nodes
    }

    /// Returns the sum of all positions; `None` while some are missing. The sum over no positions is 0.
    #[must_use]
    pub fn total(&self) -> Option<f64> {
        match *self.nodes {
            [(node, sum)] if node == Node::root(self.positions) => Some(sum),
            [] if self.positions == 0 => Some(0.0),
            _ => None,
        }
    }
}

/// Returns the sum of numbers along the tree over their positions.
#[must_use]
pub fn tree_sum(numbers: impl ExactSizeIterator<Item = f64>) -> f64 {
    let mut tree = NumberTree::new(numbers.len() as u32);
    for (position, number) in numbers.enumerate() {
        tree.add(position as u32, number);
    }
    tree.total().unwrap_or(0.0)
}

/// Returns the factor that scales a gradient of norm `norm` to a norm of at most `limit`.
#[must_use]
pub fn clip_factor(norm: f64, limit: f64) -> f32 {
    if norm > limit {
        (limit / norm) as f32
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_positions_give_the_bits_of_the_whole() {
        let all: Vec<f64> = (0..11)
            .map(|i| (f64::from(i) * 0.37).fract() + 1e-9)
            .collect();
        for count in 0..=all.len() {
            let whole = tree_sum(all[..count].iter().copied());
            for first in 0..=count {
                for second in first..=count {
                    let mut tree = NumberTree::new(count as u32);
                    for range in [0..first, first..second, second..count] {
                        let mut part = NumberTree::new(count as u32);
                        range.for_each(|position| part.add(position as u32, all[position]));
                        for &(node, sum) in part.nodes() {
                            tree.add_node(node, sum);
                        }
                    }
                    assert_eq!(tree.total().map(f64::to_bits), Some(whole.to_bits()));
                }
            }
        }
    }

    #[test]
    fn a_sum_with_missing_positions_has_no_total() {
        let mut tree = NumberTree::new(4);
        assert_eq!(tree.total(), None);
        tree.add(0, 1.0);
        tree.add(1, 1.0);
        tree.add(3, 1.0);
        assert_eq!(tree.total(), None);
        assert_eq!(NumberTree::new(0).total(), Some(0.0));
    }

    #[test]
    fn clipping_only_shrinks() {
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert_eq!(clip_factor(4.0, 1.0), 0.25);
        assert_eq!(clip_factor(0.0, 1.0), 1.0);
    }
}
