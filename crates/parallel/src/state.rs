//! [`ModelState`]: the parameters and buffers of a model in one flat vector, or a rank's part of it.
//!
//! Layers are in backward order, with the last one first, so that the gradients that are ready first
//! are adjacent. Within a layer, tensors keep the layer's order. Every tensor starts at a multiple
//! of 64 elements. If layers are divided into parts, the vector has a region for the tensors of each part, in this order,
//! after one for the tensors that belong to no part. So the elements of a rank's layers and parts are a few ranges.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::layout::{Arena, Role, StateLayout, TensorEntry};
use ronde_core::weight_hash;
use ronde_engine::{Chain, GradientForm, LayerExt, SavedValues, SharedState};
use ronde_protocol::holdings::HeldRanges;

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

/// The tensors of a model and their ranges in the flat state, without values.
#[derive(Debug)]
pub(crate) struct StateOutline {
    /// In the order of the flat state.
    pub(crate) tensors: Vec<TensorRange>,
    /// The range of each layer in each region, including padding.
    pub(crate) regions: Vec<Vec<Range<usize>>>,
    /// The ranges of the tensors of each layer, in the order of its layout.
    pub(crate) layer_ranges: Vec<Vec<Range<usize>>>,
    /// Whether each layer has tables, whose gradients are mostly zeros.
    pub(crate) has_tables: Vec<bool>,
    /// The number of elements of the flat state.
    pub(crate) len: usize,
}

/// The state of a model on one rank.
#[derive(Debug, Clone)]
pub struct ModelState {
    outline: Arc<StateOutline>,
    /// The elements that this rank stores.
    stored: HeldRanges,
    /// Their values, one stored range after the other. Shared with the layers, which read them in place.
    values: Arc<Vec<f32>>,
}

impl ModelState {
    /// Describes the state of a chain. Nothing of it is stored yet.
    #[must_use]
    pub fn outline(chain: &Chain) -> Self {
        let mut order: Vec<(usize, usize, &TensorEntry)> = Vec::new();
        for (layer, own) in chain.layers().iter().enumerate().rev() {
            let tensors = own.layout().tensors.iter().enumerate();
            order.extend(tensors.map(|(place, tensor)| (layer, place, tensor)));
        }
        order.sort_by_key(|(_, _, tensor)| region_of(tensor));
        let arena = Arena::new(order.iter().map(|(_, _, tensor)| tensor.elements()));
        let counts = chain.layers().iter().map(|own| own.layout().tensors.len());
        let mut layer_ranges: Vec<Vec<Range<usize>>> =
            counts.map(|tensors| vec![0..0; tensors]).collect();
        let mut tensors = Vec::with_capacity(order.len());
        for ((layer, place, entry), range) in order.into_iter().zip(arena.ranges()) {
            layer_ranges[layer][place] = range.clone();
            tensors.push(TensorRange {
                entry: entry.clone(),
                layer,
                range: range.clone(),
            });
        }
        let layers = chain.layers().iter();
        let outline = StateOutline {
            regions: regions(chain.len(), &tensors, arena.len()),
            layer_ranges,
            has_tables: layers
                .map(|own| own.facts().weight_gradients == GradientForm::Sparse)
                .collect(),
            tensors,
            len: arena.len(),
        };
        Self {
            outline: Arc::new(outline),
            stored: HeldRanges::default(),
            values: Arc::default(),
        }
    }

    /// Returns the tensors and their ranges.
    pub(crate) fn tensors_outline(&self) -> &Arc<StateOutline> {
        &self.outline
    }

    /// Copies the state of a chain.
    #[must_use]
    pub fn of(chain: &Chain) -> Self {
        let mut state = Self::outline(chain);
        state.store(state.all());
        state.copy_from(chain);
        state
    }

    /// Copies the state of a chain, as far as it is stored.
    pub fn copy_from(&mut self, chain: &Chain) {
        for layer in 0..chain.len() {
            self.write_layer(layer, |values, ranges| {
                chain.layers()[layer].save_state(values, ranges);
            });
        }
    }

    /// Writes the initial values of a layer of a chain, as far as they are stored. Returns false if the layer does not know them
    /// any more.
    pub fn write_initial(&mut self, chain: &Chain, layer: usize) -> bool {
        let mut is_known = true;
        self.write_layer(layer, |values, ranges| {
            is_known = chain.layers()[layer].save(SavedValues::Initial, values, ranges);
        });
        is_known
    }

    /// Passes the stored part of a layer to `write`, which writes all of its tensors at the ranges that it receives.
    fn write_layer(&mut self, layer: usize, write: impl FnOnce(&mut [f32], &[Range<usize>])) {
        let values = Arc::make_mut(&mut self.values);
        if let Some(ranges) = located(&self.stored, &self.outline.layer_ranges[layer]) {
            return write(values, &ranges);
        }
        let tensors = &self.outline.layer_ranges[layer];
        let has_any = |tensor: &Range<usize>| self.stored.within(tensor).next().is_some();
        if !tensors.iter().any(has_any) {
            return;
        }
        let whole = Arena::new(tensors.iter().map(Range::len));
        let mut written = vec![0.0; whole.len()];
        write(&mut written, whole.ranges());
        for (tensor, from) in tensors.iter().zip(whole.ranges()) {
            for part in self.stored.within(tensor) {
                if let Some(to) = self.stored.locate(&part) {
                    let start = from.start + part.start - tensor.start;
                    values[to].copy_from_slice(&written[start..start + part.len()]);
                }
            }
        }
    }

    /// Loads the state of a layer into a chain of the same layout, which may share it afterwards. Tensors that are not stored
    /// belong to parts that the chain does not compute.
    ///
    /// # Panics
    /// When a tensor that the chain computes with is not stored completely.
    pub fn load_into(&self, chain: &mut Chain, layer: usize) {
        let ranges = self.outline.layer_ranges[layer].iter();
        let ranges = ranges.map(|range| self.stored.locate(range).unwrap_or(0..0));
        let ranges: Vec<Range<usize>> = ranges.collect();
        let values: SharedState = self.values.clone();
        chain.layers_mut()[layer].load_shared(&values, &ranges);
    }

    /// Returns all elements.
    #[must_use]
    pub fn all(&self) -> HeldRanges {
        HeldRanges::new(std::iter::once(0..self.outline.len))
    }

    /// Stores other elements from now on. Values that were stored before are kept, the remaining ones are zeros.
    pub fn store(&mut self, elements: HeldRanges) {
        if self.stored != elements {
            let mut values = Arc::unwrap_or_clone(std::mem::take(&mut self.values));
            remap(&mut values, &self.stored, &elements);
            (self.values, self.stored) = (Arc::new(values), elements);
        }
    }

    /// Returns all tensors in the order of the flat state.
    #[must_use]
    pub fn tensors(&self) -> &[TensorRange] {
        &self.outline.tensors
    }

    /// Returns the range of each layer in each region, including padding: in one region, unless layers are divided into parts.
    #[must_use]
    pub fn regions(&self) -> &[Vec<Range<usize>>] {
        &self.outline.regions
    }

    /// Returns the ranges of a layer's tensors in the order of its layout.
    #[must_use]
    pub fn layer_ranges(&self, layer: usize) -> &[Range<usize>] {
        &self.outline.layer_ranges[layer]
    }

    /// Returns the number of elements of the flat state, stored or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.outline.len
    }

    /// Returns whether the model has no state.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outline.len == 0
    }

    /// Returns the elements that this rank stores.
    #[must_use]
    pub fn stored(&self) -> &HeldRanges {
        &self.stored
    }

    /// Returns the values of the stored elements, one stored range after the other.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the same values, mutable. If layers share them, they are copied first, and the layers keep their current ones.
    pub fn values_mut(&mut self) -> &mut [f32] {
        Arc::make_mut(&mut self.values).as_mut_slice()
    }

    /// Returns the values of a range of the flat state; `None` unless all of it is stored.
    #[must_use]
    pub fn get(&self, elements: &Range<usize>) -> Option<&[f32]> {
        Some(&self.values[self.stored.locate(elements)?])
    }

    /// Returns the mutable values of a range of the flat state; `None` unless all of it is stored.
    pub fn get_mut(&mut self, elements: &Range<usize>) -> Option<&mut [f32]> {
        let range = self.stored.locate(elements)?;
        Some(&mut Arc::make_mut(&mut self.values)[range])
    }

    /// Copies the stored part of a range of the flat state to the same elements of `to`, which has the whole range.
    pub fn read(&self, elements: &Range<usize>, to: &mut [f32]) {
        for part in self.stored.within(elements) {
            if let Some(values) = self.get(&part) {
                to[part.start - elements.start..part.end - elements.start].copy_from_slice(values);
            }
        }
    }

    /// Copies values of a range of the flat state to its stored part.
    pub fn write(&mut self, elements: &Range<usize>, values: &[f32]) {
        let values_of = Arc::make_mut(&mut self.values);
        for part in self.stored.within(elements) {
            if let Some(to) = self.stored.locate(&part) {
                let from = part.start - elements.start..part.end - elements.start;
                values_of[to].copy_from_slice(&values[from]);
            }
        }
    }

    /// Returns the tensors by name, role and shape.
    #[must_use]
    pub fn layout(&self) -> StateLayout {
        StateLayout {
            tensors: self
                .tensors()
                .iter()
                .map(|tensor| tensor.entry.clone())
                .collect(),
        }
    }

    /// Returns the hash of each tensor, in the order of [`ModelState::tensors`]; `None` for one that is not stored.
    #[must_use]
    pub fn tensor_digests(&self) -> Vec<Option<u64>> {
        let each = self.tensors().iter();
        each.map(|tensor| Some(weight_hash::hash(self.get(&tensor.range)?)))
            .collect()
    }

    /// Returns the number of trainable elements.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.tensors()
            .iter()
            .filter(|p| p.entry.role == Role::Parameter)
            .map(|p| p.range.len())
            .sum()
    }
}

/// Returns the positions of ranges among the stored elements, if all of them are stored.
fn located(stored: &HeldRanges, ranges: &[Range<usize>]) -> Option<Vec<Range<usize>>> {
    // A tensor without elements is everywhere.
    let each = ranges.iter().map(|range| match range.is_empty() {
        true => Some(0..0),
        false => stored.locate(range),
    });
    each.collect()
}

/// Turns the values of `from` into those of `to` in place: values of common elements are kept, the remaining ones become zeros.
/// Memory is taken for elements that are added and given back for those that are dropped, not for all of them.
///
/// # Panics
/// When there are not as many values as elements of `from`.
pub fn remap(values: &mut Vec<f32>, from: &HeldRanges, to: &HeldRanges) {
    remap_for(values, from, to, 0);
}

/// Does [`remap`], and keeps memory for `later` elements, because others are about to follow.
pub(crate) fn remap_for(values: &mut Vec<f32>, from: &HeldRanges, to: &HeldRanges, later: usize) {
    assert_eq!(values.len(), from.len(), "the values of the held elements");
    // The start of each common range among those of `to`, and its length.
    let mut kept: Vec<(usize, usize)> = Vec::new();
    let mut len = 0;
    for range in to.ranges() {
        for common in from.within(range) {
            if let (Some(old), Some(new)) = (from.locate(&common), to.locate(&common)) {
                if old.start != len {
                    values.copy_within(old, len);
                }
                kept.push((new.start, new.len()));
                len += new.len();
            }
        }
    }
    values.truncate(len);
    values.reserve_exact(to.len() - len);
    values.resize(to.len(), 0.0);
    // Backwards: a range moves towards the end, so the ranges in front of it have not moved yet.
    let (mut source, mut end) = (len, to.len());
    // From `len` on, only kept values were written over the zeros of new elements.
    let clear = |values: &mut Vec<f32>, start: usize, end: usize| {
        values[start.min(len)..end.min(len)].fill(0.0);
    };
    for (start, count) in kept.into_iter().rev() {
        source -= count;
        if source != start {
            values.copy_within(source..source + count, start);
        }
        clear(values, start + count, end);
        end = start;
    }
    clear(values, 0, end);
    values.shrink_to(later);
}

/// Returns the region of a tensor: the first one for those that belong to no part.
fn region_of(tensor: &TensorEntry) -> usize {
    tensor
        .part
        .as_ref()
        .map_or(0, |part| part.index as usize + 1)
}

/// Returns the range of each layer in each region, from its first tensor to that of the next layer in the flat state. `tensors`
/// are in the order of the flat state.
fn regions(layers: usize, tensors: &[TensorRange], len: usize) -> Vec<Vec<Range<usize>>> {
    let count = tensors.last().map_or(0, |tensor| region_of(&tensor.entry)) + 1;
    let mut end = len;
    let mut found = Vec::with_capacity(count);
    for region in (0..count).rev() {
        let of_region = |tensor: &&TensorRange| region_of(&tensor.entry) == region;
        let mut elements = vec![0..0; layers];
        for (layer, range) in elements.iter_mut().enumerate() {
            let mut of_layer = tensors.iter().filter(of_region);
            let first = of_layer.find(|tensor| tensor.layer == layer);
            let start = first.map_or(end, |tensor| tensor.range.start);
            *range = start..end;
            end = start;
        }
        found.push(elements);
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held() -> impl Strategy<Value = HeldRanges> {
        let ranges = prop::collection::vec((0_usize..60, 0_usize..12), 0..8);
        ranges.prop_map(|ranges| {
            HeldRanges::new(ranges.into_iter().map(|(start, len)| start..start + len))
        })
    }

    proptest! {
        #[test]
        fn remapped_values_are_those_of_the_same_elements(from in held(), to in held()) {
            let value = |element: usize| element as f32 + 1.0;
            let all = |held: &HeldRanges| held.ranges().iter().cloned().flatten().collect::<Vec<usize>>();
            let mut values: Vec<f32> = all(&from).into_iter().map(value).collect();
            remap(&mut values, &from, &to);
            let had = all(&from);
            let expected = all(&to).into_iter().map(|element| match had.contains(&element) {
                true => value(element),
                false => 0.0,
            });
            prop_assert_eq!(values, expected.collect::<Vec<f32>>());
        }
    }
}
