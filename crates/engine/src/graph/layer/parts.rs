//! Layers in parts: which operations this process computes, and gradients of values that several parts read.

use super::{GraphLayer, ShardValues, add};
use crate::activation::Activation;
use crate::error::EngineError;
use crate::graph::PartPlace;
use crate::lock_step::NotSummed;

/// The gradients that parts have for a value that belongs to none of them, by value and shard, in the order of the own parts.
pub(super) type PartGradients = std::collections::BTreeMap<(usize, usize), Vec<Option<Activation>>>;

impl GraphLayer {
    /// Returns whether this process computes an operation.
    pub(super) fn computes(&self, index: usize) -> bool {
        self.place.has(self.outline.nodes[index].part)
    }

    /// Changes the parts that this process computes, and drops all pending shards.
    pub(super) fn change_parts(&mut self, place: &PartPlace) {
        self.drop_pending();
        self.place = place.clone();
        let nodes = &mut self.outline.nodes;
        nodes.iter_mut().for_each(|node| node.node.set_parts(place));
    }

    /// Adds the gradient of an operation's input to those of the value's other uses.
    pub(super) fn add_gradient(
        &mut self,
        index: usize,
        (value, position): (usize, usize),
        gradients: &mut ShardValues,
        of_input: Activation,
    ) {
        let device = self.device.clone();
        let producer = value.checked_sub(1).map(|node| &self.outline.nodes[node]);
        let part = self.outline.nodes[index].part;
        let part = part.filter(|_| producer.is_none_or(|node| node.part.is_none()));
        let to = match part {
            None => &mut gradients[value][position],
            Some(part) => {
                let own = self.place.own();
                let parts = self.part_gradients.entry((value, position)).or_default();
                parts.resize(own.len(), None);
                &mut parts[(part - own.start) as usize]
            }
        };
        add(device.as_ref(), to, of_input);
    }

    /// Completes the gradients of a value that several parts read: their sum, then the remaining uses.
    pub(super) fn sum_part_gradients(
        &mut self,
        value: usize,
        gradients: &mut ShardValues,
    ) -> Result<(), EngineError> {
        if self.outline.parts < 2 {
            return Ok(());
        }
        let device = self.device.clone();
        for (position, gradient) in gradients[value].iter_mut().enumerate() {
            let Some(parts) = self.part_gradients.remove(&(value, position)) else {
                continue;
            };
            let parts = parts.into_iter().flatten().collect();
            let producer = value.checked_sub(1).map(|index| &self.outline.nodes[index]);
            let gathered = producer.and_then(|producer| producer.node.gathers_tokens());
            let sum = match gathered {
                Some(division) => self.place.sum_by_tokens(device.as_ref(), parts, division),
                None => self.place.sum(device.as_ref(), parts),
            };
            let sum = sum.map_err(|NotSummed| EngineError::NotSummed {
                layer: self.outline.name.clone(),
            })?;
            let others = gradient.replace(sum);
            if let Some(others) = others {
                add(device.as_ref(), gradient, others);
            }
        }
        Ok(())
    }
}
