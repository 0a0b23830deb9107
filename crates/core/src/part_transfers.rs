//! [`PartTransfers`]: what ranks that compute different parts of the same layer exchange, as data.

/// One exchange between ranks that compute different parts of the same layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartTransfer {
    /// Values are summed over all parts: each rank sends the sums of its complete subtrees, and receives the whole sum.
    Sum {
        /// The number of elements of the sum.
        elements: usize,
    },
    /// Values are summed over all parts, and each rank receives the elements of the sum that belong to its parts.
    ScatteredSum {
        /// The number of elements of each part.
        elements: Vec<usize>,
    },
    /// Each rank receives the values of all parts.
    Gather {
        /// The number of elements of each part.
        elements: Vec<usize>,
    },
}

impl PartTransfer {
    /// Returns the number of elements of all parts together.
    #[must_use]
    pub fn elements(&self) -> usize {
        match self {
            Self::Sum { elements } => *elements,
            Self::ScatteredSum { elements } | Self::Gather { elements } => elements.iter().sum(),
        }
    }
}

/// The exchanges of one layer, or of a loss, for one shard, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartTransfers {
    /// Those of the forward pass.
    pub forward: Vec<PartTransfer>,
    /// Those of the backward pass for the input: the first half, if the pass is in two.
    pub backward: Vec<PartTransfer>,
    /// Those of the backward pass for the weights: the second half.
    pub weights: Vec<PartTransfer>,
}

impl PartTransfers {
    /// Returns the exchanges of a layer that computes its forward pass again before the backward pass.
    #[must_use]
    pub fn with_recomputation(mut self) -> Self {
        let again = self.forward.iter().cloned();
        self.backward = again.chain(self.backward).collect();
        self
    }
}
