//! [`StateLayout`]: the tensors of a model's state by global name.
//!
//! With global names, a state saved by one division among ranks can be loaded by any other. [`Arena`] is the
//! flat form on one rank: each tensor starts at a multiple of [`ARENA_ALIGNMENT`] elements.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::DType;

/// Tensors start at multiples of this many elements in an [`Arena`].
pub const ARENA_ALIGNMENT: usize = 64;

/// The purpose of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Trained by the optimizer.
    Parameter,
    /// Changed by forward passes, not by gradients: running statistics of a normalisation.
    Buffer,
    /// Belongs to the optimizer, such as momentum.
    OptimizerState,
}

/// One tensor of the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// The global name, equal in all processes: `conv1.weight`.
    pub name: String,
    /// The length of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// The element type.
    pub dtype: DType,
    /// The purpose of the tensor.
    pub role: Role,
}

impl TensorEntry {
    /// Creates an f32 tensor.
    #[must_use]
    pub fn f32(name: impl Into<String>, shape: &[usize], role: Role) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
            dtype: DType::F32,
            role,
        }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// All tensors of a state, in a fixed order that is equal in all processes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StateLayout {
    /// The tensors.
    pub tensors: Vec<TensorEntry>,
}

impl StateLayout {
    /// Returns the tensors of one role.
    pub fn of_role(&self, role: Role) -> impl Iterator<Item = &TensorEntry> {
        self.tensors
            .iter()
            .filter(move |tensor| tensor.role == role)
    }

    /// Returns the number of elements of all tensors of one role.
    #[must_use]
    pub fn elements(&self, role: Role) -> usize {
        self.of_role(role).map(TensorEntry::elements).sum()
    }

    /// Checks for duplicate names.
    ///
    /// # Errors
    /// The first problem, with the name of the tensor.
    pub fn check(&self) -> Result<(), String> {
        let mut names = std::collections::BTreeSet::new();
        for tensor in &self.tensors {
            if !names.insert(&tensor.name) {
                return Err(format!("tensor {} appears twice", tensor.name));
            }
        }
        Ok(())
    }
}

/// The positions of tensors in one flat sequence of elements.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Arena {
    ranges: Vec<Range<usize>>,
    len: usize,
}

impl Arena {
    /// Arranges tensors of the given lengths one after another, each aligned, and pads the end.
    #[must_use]
    pub fn new(elements: impl IntoIterator<Item = usize>) -> Self {
        let mut arena = Self::default();
        for count in elements {
            arena.ranges.push(arena.len..arena.len + count);
            arena.len = (arena.len + count).next_multiple_of(ARENA_ALIGNMENT);
        }
        arena
    }

    /// Returns the range of the elements of tensor `index`, without padding.
    #[must_use]
    pub fn range(&self, index: usize) -> Range<usize> {
        self.ranges[index].clone()
    }

    /// Returns the ranges of the elements of all tensors in order, without padding.
    #[must_use]
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Returns the number of elements including padding, a multiple of [`ARENA_ALIGNMENT`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_are_aligned_and_do_not_overlap() {
        let arena = Arena::new([1, 64, 0, 65, 7]);
        assert_eq!(
            arena.ranges(),
            [0..1, 64..128, 128..128, 128..193, 256..263]
        );
        assert_eq!(arena.len(), 320);
        assert!(Arena::new([]).is_empty());
    }

    #[test]
    fn duplicate_names_are_reported() {
        let twin = TensorEntry::f32("w", &[1], Role::Buffer);
        let layout = StateLayout {
            tensors: vec![twin.clone()],
        };
        assert_eq!(layout.check(), Ok(()));
        let layout = StateLayout {
            tensors: vec![twin.clone(), twin],
        };
        assert!(layout.check().unwrap_err().contains("twice"));
    }
}
