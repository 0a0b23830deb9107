//! The exchanges of a layer in parts, from its description.

use ronde_core::{PartTransfer, PartTransfers};

use super::builder::NodeEntry;
use super::{Computation, GraphOutline};

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
        for (index, node) in self.nodes.iter().enumerate() {
            let is_output = index + 1 == self.nodes.len();
            match node.node.computation() {
                Computation::SumParts => found.forward.push(PartTransfer::Sum {
                    elements: elements_of(index + 1),
                }),
                Computation::JoinParts if !(is_output && ends.has_output_apart) => {
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
        for value in (0..self.shapes.len()).rev() {
            let is_needed = value > 0 || ends.needs_input_gradient;
            if is_needed && belongs_to_none(value) && is_read_by_parts(value) {
                found.backward.push(PartTransfer::Sum {
                    elements: elements_of(value),
                });
            }
        }
        found
    }
}
