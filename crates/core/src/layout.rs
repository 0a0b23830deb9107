//! [`StateLayout`]: the tensors of a model's state by global name.
//!
//! With global names, a state saved by one division among ranks can be loaded by any other. [`Arena`] is the
//! flat form on one rank: each tensor starts at a multiple of [`ARENA_ALIGNMENT`] elements.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;

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
    /// The larger tensor that this one belongs to; `None` for a whole tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<TensorPart>,
}

/// A part of a larger tensor, which is divided along one dimension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorPart {
    /// The name of the whole tensor.
    pub name: String,
    /// The shape of the whole tensor.
    pub shape: Vec<usize>,
    /// The number of the part, from 0.
    pub index: u32,
    /// The number of parts.
    pub parts: u32,
    /// The dimension that is divided.
    pub dim: usize,
    /// The elements of this dimension that the part has, one range after the other.
    pub ranges: Vec<Range<usize>>,
}

impl TensorPart {
    /// Returns the shape of the part.
    #[must_use]
    pub fn own_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some(length) = shape.get_mut(self.dim) {
            *length = self.ranges.iter().map(Range::len).sum();
        }
        shape
    }

    /// Returns the name of the part: that of the whole tensor, with the number of the part from 1.
    #[must_use]
    pub fn own_name(&self) -> String {
        format!("{}/{}of{}", self.name, self.index + 1, self.parts)
    }

    /// Returns the elements of the whole tensor that follow each other in the part, in the order of the part.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> + use<'_> {
        let after = self.shape.get(self.dim + 1..).unwrap_or_default();
        let row: usize = after.iter().product();
        let length = self.shape.get(self.dim).copied().unwrap_or(1);
        let before = self.shape.get(..self.dim).unwrap_or_default();
        let blocks: usize = before.iter().product();
        (0..blocks).flat_map(move |block| {
            let base = block * length;
            let ranges = self.ranges.iter();
            ranges.map(move |range| (base + range.start) * row..(base + range.end) * row)
        })
    }

    /// Copies the part out of the values of the whole tensor.
    pub fn take(&self, whole: &[f32], part: &mut [f32]) {
        let mut rest = part;
        for run in self.runs() {
            let (to, after) = rest.split_at_mut(run.len());
            to.copy_from_slice(&whole[run]);
            rest = after;
        }
    }

    /// Copies the part into the values of the whole tensor.
    pub fn place(&self, part: &[f32], whole: &mut [f32]) {
        let mut rest = part;
        for run in self.runs() {
            let (from, after) = rest.split_at(run.len());
            whole[run].copy_from_slice(from);
            rest = after;
        }
    }
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
            part: None,
        }
    }

    /// Creates an f32 tensor that is part of a larger one.
    #[must_use]
    pub fn f32_part(part: TensorPart, role: Role) -> Self {
        Self {
            part: Some(part.clone()),
            ..Self::f32(part.own_name(), &part.own_shape(), role)
        }
    }

    /// Returns the name of the whole tensor: for a part, that of the larger one.
    #[must_use]
    pub fn whole_name(&self) -> &str {
        self.part.as_ref().map_or(&self.name, |part| &part.name)
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

/// A layout in which two tensors have the same name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tensor {name} appears twice")]
pub struct RepeatedTensor {
    /// The name.
    pub name: String,
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

    /// Returns the tensors with whole ones instead of their parts: each where its first part is.
    #[must_use]
    pub fn whole(&self) -> Self {
        let of_first = |tensor: &TensorEntry| match &tensor.part {
            None => Some(tensor.clone()),
            Some(part) if part.index == 0 => Some(TensorEntry {
                dtype: tensor.dtype,
                ..TensorEntry::f32(part.name.clone(), &part.shape, tensor.role)
            }),
            Some(_) => None,
        };
        Self {
            tensors: self.tensors.iter().filter_map(of_first).collect(),
        }
    }

    /// Checks for duplicate names.
    ///
    /// # Errors
    /// Returns the first name that occurs twice.
    pub fn check(&self) -> Result<(), RepeatedTensor> {
        let mut names = std::collections::BTreeSet::new();
        for tensor in &self.tensors {
            if !names.insert(&tensor.name) {
                let name = tensor.name.clone();
                return Err(RepeatedTensor { name });
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

    /// Returns whether it is empty.
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

    fn columns(index: u32, ranges: Vec<Range<usize>>) -> TensorPart {
        TensorPart {
            name: "w".to_owned(),
            shape: vec![2, 6],
            index,
            parts: 2,
            dim: 1,
            ranges,
        }
    }

    #[test]
    fn parts_of_a_tensor_have_their_elements_and_make_it_whole_again() {
        let parts = [columns(0, vec![0..1, 3..4]), columns(1, vec![1..3, 4..6])];
        assert_eq!(parts[1].own_name(), "w/2of2");
        let whole: Vec<f32> = (0..12_u8).map(f32::from).collect();
        let mut again = vec![0.0; 12];
        let mut taken = Vec::new();
        for part in &parts {
            let mut own = vec![0.0; part.own_shape().iter().product()];
            part.take(&whole, &mut own);
            part.place(&own, &mut again);
            taken.push(own);
        }
        assert_eq!(taken[0], [0.0, 3.0, 6.0, 9.0]);
        assert_eq!(taken[1], [1.0, 2.0, 4.0, 5.0, 7.0, 8.0, 10.0, 11.0]);
        assert_eq!(again, whole);
        let tensors = parts.map(|part| TensorEntry::f32_part(part, Role::Parameter));
        let layout = StateLayout {
            tensors: tensors.into(),
        };
        let whole = TensorEntry::f32("w", &[2, 6], Role::Parameter);
        assert_eq!(layout.whole().tensors, [whole]);
    }

    #[test]
    fn rows_of_a_tensor_are_one_run() {
        let rows = TensorPart {
            dim: 0,
            ..columns(1, std::iter::once(1..2).collect())
        };
        assert!(rows.runs().eq(std::iter::once(6..12)));
        assert_eq!(rows.own_shape(), [1, 6]);
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
        assert!(layout.check().unwrap_err().to_string().contains("twice"));
    }
}
