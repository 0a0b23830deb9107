//! [`ModelState`]: parameters, buffers and optimizer state of a model in one flat run each.
//!
//! Layers lie in backward order (the last one first), so that the gradients that are ready first
//! are neighbours; inside a layer tensors keep the layer's order. Every tensor starts at a multiple
//! of 64 elements.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::layout::{Arena, Role, StateLayout, TensorEntry};
use ronde_core::weight_hash;
use ronde_engine::Chain;

/// Where a tensor lies in the flat state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPlace {
    /// The tensor.
    pub entry: TensorEntry,
    /// The layer that it belongs to.
    pub layer: usize,
    /// Its elements, without padding.
    pub range: Range<usize>,
}

/// The state of a model on one rank.
#[derive(Debug, Clone)]
pub struct ModelState {
    places: Vec<TensorPlace>,
    layer_elements: Vec<Range<usize>>,
    layer_ranges: Vec<Vec<Range<usize>>>,
    /// Shared with the layers that read them where they lie.
    values: Arc<Vec<f32>>,
}

impl ModelState {
    /// Takes the state out of a chain.
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
        let places: Vec<TensorPlace> = order
            .into_iter()
            .zip(arena.ranges())
            .map(|((layer, entry), range)| TensorPlace {
                entry: entry.clone(),
                layer,
                range: range.clone(),
            })
            .collect();
        let mut state = Self {
            layer_ranges: (0..chain.len())
                .map(|layer| {
                    places
                        .iter()
                        .filter(|p| p.layer == layer)
                        .map(|p| p.range.clone())
                        .collect()
                })
                .collect(),
            layer_elements: layer_elements(chain.len(), &places, arena.len()),
            places,
            values: Arc::default(),
        };
        let mut values = vec![0.0; arena.len()];
        for (layer, ranges) in chain.layers().iter().zip(&state.layer_ranges) {
            layer.save(&mut values, ranges);
        }
        state.values = Arc::new(values);
        state
    }

    /// Puts the state into a chain of the same layout, whose layers may hold it from now on.
    pub fn load_into(&self, chain: &mut Chain) {
        for (layer, ranges) in chain.layers_mut().iter_mut().zip(&self.layer_ranges) {
            layer.load_shared(&self.values, ranges);
        }
    }

    /// All tensors in the order of the flat state.
    #[must_use]
    pub fn places(&self) -> &[TensorPlace] {
        &self.places
    }

    /// The elements of a layer, padding included.
    #[must_use]
    pub fn layer_elements(&self) -> &[Range<usize>] {
        &self.layer_elements
    }

    /// Ranges of a layer's tensors, in the order of its layout, counted from `base`.
    #[must_use]
    pub fn layer_ranges(&self, layer: usize, base: usize) -> Vec<Range<usize>> {
        self.layer_ranges[layer]
            .iter()
            .map(|r| r.start - base..r.end - base)
            .collect()
    }

    /// The flat state.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The flat state, writable. A copy of what others hold, such as the layers that it was loaded into:
    /// they keep the values that they have.
    pub fn values_mut(&mut self) -> &mut [f32] {
        Arc::make_mut(&mut self.values).as_mut_slice()
    }

    /// The tensors by name, role and shape.
    #[must_use]
    pub fn layout(&self) -> StateLayout {
        StateLayout {
            tensors: self
                .places
                .iter()
                .map(|place| place.entry.clone())
                .collect(),
        }
    }

    /// Hash of each tensor, in the order of [`ModelState::places`].
    #[must_use]
    pub fn tensor_digests(&self) -> Vec<u64> {
        self.places
            .iter()
            .map(|place| weight_hash::hash(&self.values[place.range.clone()]))
            .collect()
    }

    /// Trainable elements.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.places
            .iter()
            .filter(|p| p.entry.role == Role::Parameter)
            .map(|p| p.range.len())
            .sum()
    }
}

/// The run of each layer: from its first tensor to the first of the layer that lies after it.
fn layer_elements(layers: usize, places: &[TensorPlace], len: usize) -> Vec<Range<usize>> {
    let mut elements = vec![0..0; layers];
    let mut end = len;
    for (layer, run) in elements.iter_mut().enumerate() {
        let start = places
            .iter()
            .find(|p| p.layer == layer)
            .map_or(end, |p| p.range.start);
        *run = start..end;
        end = start;
    }
    elements
}
