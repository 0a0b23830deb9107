//! [`UpdateSums`]: the sums over the blocks of a gradient that an update needs from all ranks.

use std::collections::BTreeMap;

use ronde_core::exact::Node;
use ronde_core::norm::{NumberTree, blocks, tree_sum};
use ronde_engine::{TrustSquares, TrustTree};

use crate::state::ModelState;

/// The number of bytes of an encoded sum: tensor, node and two numbers.
const SUM_BYTES: usize = 28;

/// The sum of a subtree of the blocks of one tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TensorSum<T> {
    tensor: u32,
    node: Node,
    sum: T,
}

/// Sums over the blocks that one rank holds, as subtrees of the blocks of each tensor.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct UpdateSums {
    /// Squares of the gradient, summed over all samples.
    gradient: Vec<TensorSum<f64>>,
    /// Squares for trust ratios.
    trust: Vec<TensorSum<TrustSquares>>,
}

impl UpdateSums {
    /// Adds the squares of a tensor's gradient.
    pub(crate) fn add_gradient(&mut self, tensor: usize, tree: &NumberTree) {
        let sums = tree.nodes().iter().map(|&(node, sum)| TensorSum {
            tensor: tensor as u32,
            node,
            sum,
        });
        self.gradient.extend(sums);
    }

    /// Adds the squares for a tensor's trust ratio.
    pub(crate) fn add_trust(&mut self, tensor: usize, tree: &TrustTree) {
        let sums = tree.nodes().into_iter().map(|(node, sum)| TensorSum {
            tensor: tensor as u32,
            node,
            sum,
        });
        self.trust.extend(sums);
    }

    /// Encodes the sums for other ranks.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (gradient, trust) = (self.gradient.len(), self.trust.len());
        let mut bytes = Vec::with_capacity(8 + SUM_BYTES * (gradient + trust));
        bytes.extend((gradient as u32).to_le_bytes());
        bytes.extend((trust as u32).to_le_bytes());
        let mut write = |tensor: u32, node: Node, numbers: [f64; 2]| {
            for word in [tensor, node.level, node.index] {
                bytes.extend(word.to_le_bytes());
            }
            numbers
                .iter()
                .for_each(|number| bytes.extend(number.to_le_bytes()));
        };
        for found in &self.gradient {
            write(found.tensor, found.node, [found.sum, 0.0]);
        }
        for found in &self.trust {
            write(
                found.tensor,
                found.node,
                [found.sum.weights, found.sum.update],
            );
        }
        bytes
    }

    /// Decodes the sums of another rank; `None` if the bytes are not those of sums.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (counts, sums) = bytes.split_at_checked(8)?;
        let word = |bytes: &[u8], at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        };
        let number = |bytes: &[u8], at: usize| -> Option<f64> {
            Some(f64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
        };
        let (gradient, trust) = (word(counts, 0)? as usize, word(counts, 4)? as usize);
        if sums.len() != gradient.checked_add(trust)?.checked_mul(SUM_BYTES)? {
            return None;
        }
        let mut found = Self::default();
        for (index, bytes) in sums.chunks_exact(SUM_BYTES).enumerate() {
            let (tensor, node) = (
                word(bytes, 0)?,
                Node {
                    level: word(bytes, 4)?,
                    index: word(bytes, 8)?,
                },
            );
            if node.level >= u32::BITS {
                return None;
            }
            let (first, second) = (number(bytes, 12)?, number(bytes, 20)?);
            if index < gradient {
                let sum = first;
                found.gradient.push(TensorSum { tensor, node, sum });
            } else {
                let sum = TrustSquares {
                    weights: first,
                    update: second,
                };
                found.trust.push(TensorSum { tensor, node, sum });
            }
        }
        Some(found)
    }
}

/// The sums over all blocks, from those of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WholeSums {
    /// The sum of squares of the gradient of each tensor; 0 for those that are not trained.
    pub(crate) gradient: Vec<f64>,
    /// The squares for the trust ratio of each tensor.
    pub(crate) trust: Vec<TrustSquares>,
}

impl WholeSums {
    /// Adds the sums of all ranks, in the order of the ranks, which is that of the blocks of each tensor. `None` if the sums
    /// of a tensor do not fit together.
    pub(crate) fn new(state: &ModelState, ranks: &[UpdateSums]) -> Option<Self> {
        let lens = || state.tensors().iter().map(|tensor| tensor.range.len());
        let mut gradient: Vec<NumberTree> = lens()
            .map(|len| NumberTree::new(blocks(len) as u32))
            .collect();
        let mut trust: Vec<TrustTree> = lens().map(TrustTree::new).collect();
        for sums in ranks {
            for found in &sums.gradient {
                let tree = gradient.get_mut(found.tensor as usize)?;
                tree.add_node(found.node, found.sum);
            }
            for found in &sums.trust {
                let tree = trust.get_mut(found.tensor as usize)?;
                tree.add_node(found.node, found.sum);
            }
        }
        // A tensor that is not trained has no sums at all.
        let gradient = gradient.iter().map(|tree| match tree.nodes() {
            [] => Some(0.0),
            _ => tree.total(),
        });
        let trust = trust.iter().map(|tree| match tree.nodes().is_empty() {
            true => Some(TrustSquares::default()),
            false => tree.total(),
        });
        let mut trust: Vec<TrustSquares> = trust.collect::<Option<_>>()?;
        join_parts(state, &mut trust);
        Some(Self {
            gradient: gradient.collect::<Option<_>>()?,
            trust,
        })
    }

    /// Returns the first tensor whose gradient is not finite.
    pub(crate) fn not_finite(&self) -> Option<usize> {
        self.gradient.iter().position(|sum| !sum.is_finite())
    }

    /// Returns the sum of squares of the gradients of all tensors.
    pub(crate) fn gradient_total(&self) -> f64 {
        tree_sum(self.gradient.iter().copied())
    }
}

/// Gives each part of a tensor the squares of the whole one: the sum over its parts in order.
fn join_parts(state: &ModelState, trust: &mut [TrustSquares]) {
    let mut whole: BTreeMap<&str, TrustSquares> = BTreeMap::new();
    let parts = state.tensors().iter().enumerate();
    let parts = parts.filter(|(_, tensor)| tensor.entry.part.is_some());
    for (index, tensor) in parts.clone() {
        let sum = whole.entry(tensor.entry.whole_name()).or_default();
        sum.weights += trust[index].weights;
        sum.update += trust[index].update;
    }
    for (index, tensor) in parts {
        trust[index] = whole[tensor.entry.whole_name()];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sums_survive_encoding() {
        let mut gradient = NumberTree::new(3);
        gradient.add(1, 0.5);
        gradient.add(2, f64::INFINITY);
        let mut trust = TrustTree::new(5000);
        let squares = TrustSquares {
            weights: 1.0,
            update: 2.0,
        };
        trust.add(0, squares);
        let mut sums = UpdateSums::default();
        sums.add_gradient(7, &gradient);
        sums.add_trust(9, &trust);
        assert_eq!((sums.gradient.len(), sums.trust.len()), (2, 1));
        assert_eq!(UpdateSums::decode(&sums.encode()), Some(sums.clone()));
        assert_eq!(UpdateSums::decode(&sums.encode()[1..]), None);
        assert_eq!(UpdateSums::decode(&[]), None);
    }

    proptest! {
        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = UpdateSums::decode(&bytes);
        }
    }
}
