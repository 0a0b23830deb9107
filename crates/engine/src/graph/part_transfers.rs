//! The exchanges of a layer in parts, from its description.

use ronde_core::layout::TensorEntry;
use ronde_core::{PartTransfer, PartTransfers};

use super::builder::NodeEntry;
use super::{Computation, GraphOutline, TokenDivision};

/// What is needed of a layer's ends in a training pass.
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
        let mut found = PartTransfers::default();
        if self.parts < 2 {
            return found;
        }
        let elements_of = |value: usize| samples * self.shapes[value].iter().product::<usize>();
        let by_tokens = |value: usize, division: &TokenDivision| -> Vec<usize> {
            let each_token = elements_of(value) / division.tokens().max(1);
            let parts = division.shares().parts.into_iter();
            parts.map(|tokens| tokens * each_token).collect()
        };
        for (index, node) in self.nodes.iter().enumerate() {
            let is_output = index + 1 == self.nodes.len();
            if let Some(division) = node.node.gathers_tokens() {
                let elements = by_tokens(index + 1, division);
                found.forward.push(PartTransfer::Gather { elements });
                continue;
            }
            match (node.node.computation(), &self.divisions[index + 1]) {
                (Computation::SumParts, Some(division)) => {
                    let elements = by_tokens(index + 1, division);
                    found.forward.push(PartTransfer::ScatteredSum { elements });
                }
                (Computation::SumParts, None) => found.forward.push(PartTransfer::Sum {
                    elements: elements_of(index + 1),
                }),
                (Computation::JoinParts, _) if !(is_output && ends.has_output_apart) => {
                    let of_part = |value: &usize| elements_of(*value);
                    let elements = node.inputs.iter().map(of_part).collect();
                    found.forward.push(PartTransfer::Gather { elements });
                }
                _ => {}
            }
        }
        let is_read_by_parts = |value: usize| {
            let readers = self.nodes.iter().filter(|node| node.part.is_some());
            let mut inputs = readers.flat_map(|node| {
                let inputs = node.inputs.iter().enumerate();
                inputs.map(move |(position, input)| (node, position, *input))
            });
            inputs.any(|(node, position, input)| input == value && node.has_gradient(position))
        };
        let belongs_to_none = |value: usize| {
            let producer = value.checked_sub(1).map(|index| &self.nodes[index]);
            producer.is_none_or(|node| node.part.is_none())
        };
        let again = self.values_computed_again();
        let mut is_restored = vec![false; self.shapes.len()];
        for value in (0..self.shapes.len()).rev() {
            let producer = value.checked_sub(1).map(|index| &self.nodes[index]);
            let is_needed = value > 0 || ends.needs_input_gradient;
            if is_needed && belongs_to_none(value) && is_read_by_parts(value) {
                let gathered = producer.and_then(|node| node.node.gathers_tokens());
                found.backward.push(match gathered {
                    Some(division) => PartTransfer::ScatteredSum {
                        elements: by_tokens(value, division),
                    },
                    None => PartTransfer::Sum {
                        elements: elements_of(value),
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
                    let elements = by_tokens(input, division);
                    found.backward.push(PartTransfer::Gather { elements });
                }
            }
            if let (Computation::SumParts, Some(division)) =
                (producer.node.computation(), &self.divisions[value])
            {
                let elements = by_tokens(value, division);
                found.backward.push(PartTransfer::Gather { elements });
            }
        }
        let with_tensors = self.nodes.iter().zip(&self.divisions[1..]);
        let with_tensors = with_tensors.filter(|(_, division)| division.is_some());
        let tensors = with_tensors.flat_map(|(node, _)| &self.layout.tensors[node.tensors.clone()]);
        let elements: usize = tensors.map(TensorEntry::elements).sum();
        if elements > 0 {
            found.weights.push(PartTransfer::Sum { elements });
        }
        found
    }
}
