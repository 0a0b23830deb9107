//! [`DistributedVector`]: a vector of the state whose elements are on different ranks.
//!
//! Residuals of senders and the values that replicas of local SGD keep are such vectors: each is on one rank.
//! `ronde_protocol::holdings` moves them like the slices of a divided state.

use std::ops::Range;

use ronde_protocol::holdings::HeldRanges;

use crate::state::remap;

/// The part that a rank holds of a vector whose elements belong to logical coordinates such as senders or replicas. The rank that computes
/// a coordinate holds its elements, so they move when the ranks divide the coordinates in another way.
#[derive(Debug, Clone, Default)]
pub struct DistributedVector {
    /// The number of elements on all ranks together.
    len: usize,
    /// The elements of each rank.
    layout: Vec<HeldRanges>,
    held: HeldRanges,
    values: Vec<f32>,
}

impl DistributedVector {
    /// Creates a vector of `len` zeros that the ranks hold as in `layout`. This is the part of rank `rank`.
    pub(crate) fn zeros(len: usize, layout: Vec<HeldRanges>, rank: usize) -> Self {
        let mut this = Self {
            len,
            layout,
            ..Self::default()
        };
        let mine = this.layout[rank].clone();
        this.hold(mine);
        this
    }

    /// Assigns the elements to ranks. Those that this rank holds stay the same until [`DistributedVector::hold`].
    pub(crate) fn assign(&mut self, layout: Vec<HeldRanges>) {
        self.layout = layout;
    }

    /// Returns the number of elements on all ranks together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are none, because the model has no state.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the elements that each rank of the group holds in training.
    #[must_use]
    pub fn layout(&self) -> &[HeldRanges] {
        &self.layout
    }

    /// Returns the elements that this rank holds.
    #[must_use]
    pub fn held(&self) -> &HeldRanges {
        &self.held
    }

    /// Holds other elements from now on. Values that were held before are kept, the remaining ones are zeros.
    pub fn hold(&mut self, elements: HeldRanges) {
        if self.held != elements {
            remap(&mut self.values, &self.held, &elements);
            self.held = elements;
        }
    }

    /// Returns the values of elements; `None` if this rank does not hold all of them. Every rank holds an empty range.
    pub(crate) fn values(&self, elements: &Range<usize>) -> Option<&[f32]> {
        if elements.is_empty() {
            return Some(&[]);
        }
        Some(&self.values[self.held.locate(elements)?])
    }

    /// Replaces the values of elements, if this rank holds them.
    pub(crate) fn write(&mut self, elements: &Range<usize>, values: &[f32]) {
        if let Some(to) = self.held.locate(elements) {
            self.values[to].copy_from_slice(values);
        }
    }

    /// Returns the values of the held elements, one held range after the other.
    pub(crate) fn held_values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the held elements with their mutable values.
    pub(crate) fn held_mut(&mut self) -> (&HeldRanges, &mut [f32]) {
        (&self.held, &mut self.values)
    }
}
