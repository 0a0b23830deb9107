//! [`ModelState`]: the parameters and buffers of a model in one flat vector.
//!
//! Layers are in backward order, with the last one first, so that the gradients that are ready first
//! are adjacent. Within a layer, tensors keep the layer's order. Every tensor starts at a multiple
//! of 64 elements.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::layout::{Arena, Role, StateLayout, TensorEntry};
use ronde_core::weight_hash;
use ronde_engine::Chain;

/// A tensor and its range in the flat state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRange {
    /// The tensor.
    pub entry: TensorEntry,
    /// The index of its layer.
    pub layer: usize,
    /// The range of its elements, without padding.
    pub range: Range<usize>,
}

/// The state of a model on one rank.
#[derive(Debug, Clone)]
pub struct ModelState {
    tensors: Vec<TensorRange>,
    layer_elements: Vec<Range<usize>>,
    layer_ranges: Vec<Vec<Range<usize>>>,
    /// Shared with the layers, which read them in place.
    values: Arc<Vec<f32>>,
}

impl ModelState {
    /// Copies the state of a chain.
    #[must_use]
    pub fn of(chain: &Chain) -> Self {
        let order: Vec<(usize, &TensorEntry)> = chain
            .layers()
            .iter()
            .enumerate()
            .rev()
            .flat_map(|(layer, s)| s.layout().tensors.iter().map(move |tensor| (layer, tensor)))
            .collect();
        let arena = Arena::new(order.iter().map(|(_, tensor)| tensor.elements()));
        let tensors: Vec<TensorRange> = order
            .into_iter()
            .zip(arena.ranges())
            .map(|((layer, entry), range)| TensorRange {
                entry: entry.clone(),
                layer,
                range: range.clone(),
            })
            .collect();
        let mut state = Self {
            layer_ranges: (0..chain.len())
                .map(|layer| {
                    tensors
                        .iter()
                        .filter(|p| p.layer == layer)
                        .map(|p| p.range.clone())
                        .collect()
                })
                .collect(),
            layer_elements: layer_elements(chain.len(), &tensors, arena.len()),
            tensors,
            values: Arc::default(),
        };
        let mut values = vec![0.0; arena.len()];
        for (layer, ranges) in chain.layers().iter().zip(&state.layer_ranges) {
            layer.save(&mut values, ranges);
        }
        state.values = Arc::new(values);
        state
    }

    /// Loads the state into a chain of the same layout, whose layers may share it afterwards.
    pub fn load_into(&self, chain: &mut Chain) {
        for (layer, ranges) in chain.layers_mut().iter_mut().zip(&self.layer_ranges) {
            layer.load_shared(&self.values, ranges);
        }
    }

    /// Returns all tensors in the order of the flat state.
    #[must_use]
    pub fn tensors(&self) -> &[TensorRange] {
        &self.tensors
    }

    /// Returns the range of each layer, including padding.
    #[must_use]
    pub fn layer_elements(&self) -> &[Range<usize>] {
        &self.layer_elements
    }

    /// Returns the ranges of a layer's tensors in the order of its layout, relative to `base`.
    #[must_use]
    pub fn layer_ranges(&self, layer: usize, base: usize) -> Vec<Range<usize>> {
        self.layer_ranges[layer]
            .iter()
            .map(|r| r.start - base..r.end - base)
            .collect()
    }

    /// Returns the flat state.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the mutable flat state. If layers share it, it is copied first, and they keep their current values.
    pub fn values_mut(&mut self) -> &mut [f32] {
        Arc::make_mut(&mut self.values).as_mut_slice()
    }

    /// Exchanges the values with others of the same length. The layers have the previous values until the state is loaded
    /// again. Cost: none.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn swap_values(&mut self, values: &mut Arc<Vec<f32>>) {
        assert_eq!(self.values.len(), values.len(), "the lengths of two states");
        std::mem::swap(&mut self.values, values);
    }

    /// Returns the tensors by name, role and shape.
    #[must_use]
    pub fn layout(&self) -> StateLayout {
        StateLayout {
            tensors: self
                .tensors
                .iter()
                .map(|tensor| tensor.entry.clone())
                .collect(),
        }
    }

    /// Returns the hash of each tensor, in the order of [`ModelState::tensors`].
    #[must_use]
    pub fn tensor_digests(&self) -> Vec<u64> {
        self.tensors
            .iter()
            .map(|tensor| weight_hash::hash(&self.values[tensor.range.clone()]))
            .collect()
    }

    /// Returns the number of trainable elements.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.tensors
            .iter()
            .filter(|p| p.entry.role == Role::Parameter)
            .map(|p| p.range.len())
            .sum()
    }
}

/// Returns the range of each layer, from its first tensor to the first tensor of the next one in the flat state.
fn layer_elements(layers: usize, tensors: &[TensorRange], len: usize) -> Vec<Range<usize>> {
    let mut elements = vec![0..0; layers];
    let mut end = len;
    for (layer, range) in elements.iter_mut().enumerate() {
        let start = tensors
            .iter()
            .find(|p| p.layer == layer)
            .map_or(end, |p| p.range.start);
        *range = start..end;
        end = start;
    }
    elements
}
