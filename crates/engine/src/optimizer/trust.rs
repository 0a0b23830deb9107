//! [`TrustSquares`]: the sums of squares from which the trust ratio of a tensor follows.

use ronde_core::exact::Node;
use ronde_core::norm::{NumberTree, blocks};

/// Sums of squares of a block, of a subtree of blocks or of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TrustSquares {
    /// The sum over the weights before the update.
    pub weights: f64,
    /// The sum for the norm that the weights' norm is compared with: the gradient (LARS), or the update at a rate of 1
    /// (LAMB).
    pub update: f64,
}

/// The sums of squares of a tensor, added block by block along the fixed tree. Blocks are added in order; a rank may add
/// only those that it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct TrustTree {
    weights: NumberTree,
    update: NumberTree,
}

impl TrustTree {
    /// Creates the empty sums of a tensor.
    #[must_use]
    pub fn new(elements: usize) -> Self {
        let blocks = blocks(elements) as u32;
        Self {
            weights: NumberTree::new(blocks),
            update: NumberTree::new(blocks),
        }
    }

    /// Adds the sums of a block.
    pub fn add(&mut self, block: u32, squares: TrustSquares) {
        self.weights.add(block, squares.weights);
        self.update.add(block, squares.update);
    }

    /// Adds the sums of a subtree that another rank has computed.
    pub fn add_node(&mut self, node: Node, squares: TrustSquares) {
        self.weights.add_node(node, squares.weights);
        self.update.add_node(node, squares.update);
    }

    /// Returns the sums of the largest complete subtrees, in the order of their blocks.
    #[must_use]
    pub fn nodes(&self) -> Vec<(Node, TrustSquares)> {
        let pairs = self.weights.nodes().iter().zip(self.update.nodes());
        let squares = |(weights, update)| TrustSquares { weights, update };
        pairs
            .map(|(&(node, weights), &(_, update))| (node, squares((weights, update))))
            .collect()
    }

    /// Returns the sums of the whole tensor; `None` while blocks are missing.
    #[must_use]
    pub fn total(&self) -> Option<TrustSquares> {
        Some(TrustSquares {
            weights: self.weights.total()?,
            update: self.update.total()?,
        })
    }
}
