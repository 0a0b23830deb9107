//! The exchanges of a layer in parts, from its description.

use ronde_core::layout::TensorEntry;
use ronde_core::{PartTransfer, PartTransfers};

use super::builder::NodeEntry;
use super::{Computation, GraphOutline, TokenDivision};

/// The needs of a layer's ends in a training pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassEnds {
    /// Whether the gradient of the input is needed, as of all layers but the first.
    pub needs_input_gradient: bool,
    /// Whether the output stays in parts, as of the last layer before a loss that is computed in parts.
    pub has_output_apart: bool,
}

impl NodeEntry {
    /// Returns whether the input at a position has a gradient: numbers have none.
    fn has_gradient(&self, position: usize) -> bool {
        match self.node.computation() {
            // The third input has the lengths of texts.
            Computation::Attention(_) => position < 2,
            _ => !self.node.reads_numbers(),
        }
    }
}

impl GraphOutline {
    /// Returns what processes that compute different parts exchange for a shard of some samples.
    #[must_use]
    pub fn part_transfers(&self, samples: usize, ends: PassEnds) -> PartTransfers {
        if self.parts < 2 {
            return PartTransfers::default();
        }
        PartTransfers {
            forward: self.forward_transfers(samples, ends),
            backward: self.backward_transfers(samples, ends),
            weights: self.weight_transfers(),
        }
    }

    fn elements_of(&self, samples: usize, value: usize) -> usize {
        samples * self.shapes[value].iter().product::<usize>()
    }

    /// Returns the elements of a value that belong to the tokens of each part.
    fn by_tokens(&self, samples: usize, value: usize, division: &TokenDivision) -> Vec<usize> {
        let each_token = self.elements_of(samples, value) / division.tokens().max(1);
        let parts = division.shares().parts.into_iter();
        parts.map(|tokens| tokens * each_token).collect()
    }

    fn forward_transfers(&self, samples: usize, ends: PassEnds) -> Vec<PartTransfer> {
        let mut found = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let is_output = index + 1 == self.nodes.len();
            if let Some(division) = node.node.gathers_tokens() {
                let elements = self.by_tokens(samples, index + 1, division);
                found.push(PartTransfer::Gather { elements });
                continue;
            }
            match (node.node.computation(), &self.divisions[index + 1]) {
                (Computation::SumParts, Some(division)) => {
                    let elements = self.by_tokens(samples, index + 1, division);
                    found.push(PartTransfer::ScatteredSum { elements });
                }
                (Computation::SumParts, None) => found.push(PartTransfer::Sum {
                    elements: self.elements_of(samples, index + 1),
                }),
                (Computation::JoinParts, _) if !(is_output && ends.has_output_apart) => {
                    let of_part = |value: &usize| self.elements_of(samples, *value);
                    let elements = node.inputs.iter().map(of_part).collect();
                    found.push(PartTransfer::Gather { elements });
                }
                _ => {}
            }
        }
        found
    }

    /// Returns whether operations of parts compute gradients of a value that belongs to none.
    fn has_gradients_of_parts(&self, value: usize) -> bool {
        let producer = value.checked_sub(1).map(|index| &self.nodes[index]);
        let readers = self.nodes.iter().filter(|node| node.part.is_some());
        let mut inputs = readers.flat_map(|node| {
            let inputs = node.inputs.iter().enumerate();
            inputs.map(move |(position, input)| (node, position, *input))
        });
        producer.is_none_or(|node| node.part.is_none())
            && inputs.any(|(node, position, input)| input == value && node.has_gradient(position))
    }

    fn backward_transfers(&self, samples: usize, ends: PassEnds) -> Vec<PartTransfer> {
        let mut found = Vec::new();
        let (again, depends) = (self.values_computed_again(), self.values_of_tensors());
        let mut is_restored = vec![false; self.shapes.len()];
        for value in (0..self.shapes.len()).rev() {
            let producer = value.checked_sub(1).map(|index| &self.nodes[index]);
            let is_needed = depends[value] || ends.needs_input_gradient;
            if is_needed && self.has_gradients_of_parts(value) {
                let gathered = producer.and_then(|node| node.node.gathers_tokens());
                found.push(match gathered {
                    Some(division) => PartTransfer::ScatteredSum {
                        elements: self.by_tokens(samples, value, division),
                    },
                    None => PartTransfer::Sum {
                        elements: self.elements_of(samples, value),
                    },
                });
            }
            let Some(producer) = producer else { break };
            // Before the backward pass of an operation, the tokens that it keeps are gathered again.
            for (&input, is_kept) in producer.inputs.iter().zip(producer.node.kept().inputs) {
                let gather = input.checked_sub(1).map(|index| &self.nodes[index].node);
                let gathered = gather.and_then(|node| node.gathers_tokens());
                if let Some(division) = gathered.filter(|_| is_kept && again[input])
                    && !std::mem::replace(&mut is_restored[input], true)
                {
                    let elements = self.by_tokens(samples, input, division);
                    found.push(PartTransfer::Gather { elements });
                }
            }
            if let (Computation::SumParts, Some(division)) =
                (producer.node.computation(), &self.divisions[value])
            {
                let elements = self.by_tokens(samples, value, division);
                found.push(PartTransfer::Gather { elements });
            }
        }
        found
    }

    /// Returns the sum over all tokens of the gradients of the tensors that belong to no part.
    fn weight_transfers(&self) -> Vec<PartTransfer> {
        let with_tensors = self.nodes.iter().zip(&self.divisions[1..]);
        let with_tensors = with_tensors.filter(|(_, division)| division.is_some());
        let tensors = with_tensors.flat_map(|(node, _)| &self.layout.tensors[node.tensors.clone()]);
        let elements: usize = tensors.map(TensorEntry::elements).sum();
        let sum = (elements > 0).then_some(PartTransfer::Sum { elements });
        sum.into_iter().collect()
    }
}
