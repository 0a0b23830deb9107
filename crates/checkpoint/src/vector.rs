//! [`StateVector`]: one flat array of the state and the tensors in it.

use std::collections::BTreeSet;
use std::ops::Range;

use ronde_core::DType;
use ronde_core::layout::{ARENA_ALIGNMENT, Arena, Role, StateLayout};
use serde::{Deserialize, Serialize};

use crate::error::CheckpointError;

/// A tensor and its offset in a vector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorTensor {
    /// The global name.
    pub name: String,
    /// The length of each dimension; empty for a scalar.
    pub shape: Vec<u64>,
    /// The role of the tensor in the state.
    pub role: Role,
    /// The first element in the vector.
    pub start: u64,
}

impl VectorTensor {
    /// Returns the number of elements; `None` on overflow.
    #[must_use]
    pub fn elements(&self) -> Option<u64> {
        self.shape
            .iter()
            .try_fold(1_u64, |product, &length| product.checked_mul(length))
    }
}

/// A named flat array of the state, for example `weights` or `adam.m`. The padding between its tensors is saved, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateVector {
    /// The name, unique in a state.
    pub name: String,
    /// The type of all elements.
    pub dtype: DType,
    /// The number of elements, including padding.
    pub elements: u64,
    /// The tensors in the order of their offsets; they do not overlap.
    pub tensors: Vec<VectorTensor>,
}

impl StateVector {
    /// Returns a vector with the tensors of `layout` at the offsets of `arena`; both list them in the same order.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] when layout and arena do not match, or the tensors have different types.
    pub fn of_layout(
        name: impl Into<String>,
        layout: &StateLayout,
        arena: &Arena,
    ) -> Result<Self, CheckpointError> {
        let dtype = layout
            .tensors
            .first()
            .map_or(DType::F32, |tensor| tensor.dtype);
        let vector = Self {
            name: name.into(),
            dtype,
            elements: arena.len() as u64,
            tensors: layout
                .tensors
                .iter()
                .zip(arena.ranges())
                .map(|(tensor, range)| VectorTensor {
                    name: tensor.name.clone(),
                    shape: tensor.shape.iter().map(|&length| length as u64).collect(),
                    role: tensor.role,
                    start: range.start as u64,
                })
                .collect(),
        };
        let problem = if layout.tensors.len() != arena.ranges().len() {
            Some("layout and arena have different numbers of tensors".to_owned())
        } else {
            let mut others = layout.tensors.iter().filter(|t| t.dtype != dtype);
            others.next().map(|t| {
                format!(
                    "tensor {} has type {}, but the first one has type {dtype}",
                    t.name, t.dtype
                )
            })
        };
        match problem {
            Some(problem) => Err(CheckpointError::invalid(
                format!("vector {}", vector.name),
                problem,
            )),
            None => check_all(std::slice::from_ref(&vector))
                .map(|()| vector)
                .map_err(|problem| CheckpointError::invalid("layout", problem)),
        }
    }

    /// Returns the bytes of all elements; `None` on overflow.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.elements.checked_mul(self.dtype.size() as u64)
    }

    /// Returns the name of the tensor that owns an element, and the end of its range. Padding belongs to the tensor before
    /// it.
    pub(crate) fn owner_of(&self, element: u64) -> (Option<&str>, u64) {
        let after = self
            .tensors
            .partition_point(|tensor| tensor.start <= element);
        let end = self
            .tensors
            .get(after)
            .map_or(self.elements, |tensor| tensor.start);
        let owner = after
            .checked_sub(1)
            .map(|index| self.tensors[index].name.as_str());
        (owner, end)
    }
}

/// The reason why vectors cannot be saved or read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VectorError {
    #[error("vector {vector} appears twice")]
    Repeated { vector: String },
    #[error("vector {vector} is too long: its byte length overflows")]
    TooLong { vector: String },
    #[error("vector {vector}: tensor {tensor} appears twice")]
    RepeatedTensor { vector: String, tensor: String },
    #[error(
        "vector {vector}: tensor {tensor} overlaps the previous tensor or exceeds {elements} elements"
    )]
    Overlap {
        vector: String,
        tensor: String,
        elements: u64,
    },
}

/// Checks the vectors of a state; the error describes the first problem.
pub(crate) fn check_all(vectors: &[StateVector]) -> Result<(), VectorError> {
    let mut names = BTreeSet::new();
    for vector in vectors {
        let name = &vector.name;
        if !names.insert(name) {
            return Err(VectorError::Repeated {
                vector: name.clone(),
            });
        }
        if vector.bytes().is_none() {
            return Err(VectorError::TooLong {
                vector: name.clone(),
            });
        }
        let mut at = 0;
        let mut tensors = BTreeSet::new();
        for tensor in &vector.tensors {
            if !tensors.insert(&tensor.name) {
                return Err(VectorError::RepeatedTensor {
                    vector: name.clone(),
                    tensor: tensor.name.clone(),
                });
            }
            let end = tensor
                .elements()
                .and_then(|elements| tensor.start.checked_add(elements));
            match end {
                Some(end) if tensor.start >= at && end <= vector.elements => at = end,
                _ => {
                    return Err(VectorError::Overlap {
                        vector: name.clone(),
                        tensor: tensor.name.clone(),
                        elements: vector.elements,
                    });
                }
            }
        }
    }
    Ok(())
}

/// Returns the elements of a vector that rank `index` of `count` saves when every rank holds the whole vector: ranges of
/// nearly equal length that start at multiples of 64 elements.
#[must_use]
pub fn share(elements: u64, index: u32, count: u32) -> Range<u64> {
    let block = ARENA_ALIGNMENT as u64;
    let blocks = elements.div_ceil(block);
    let (index, count) = (u64::from(index), u64::from(count.max(1)));
    // Avoids the product blocks * index, which could overflow.
    let start = |i: u64| (blocks / count) * i + (blocks % count).min(i);
    let at = |i: u64| (start(i.min(count)) * block).min(elements);
    at(index)..at(index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_a_vector_once() {
        for elements in [0, 1, 63, 64, 65, 1000, 4096, 12_345] {
            for count in 1..=7 {
                let mut at = 0;
                for index in 0..count {
                    let range = share(elements, index, count);
                    assert_eq!(range.start, at, "{elements} {index}/{count}");
                    at = range.end;
                }
                assert_eq!(at, elements);
            }
        }
    }

    #[test]
    fn invalid_vectors_are_reported_by_name() {
        let place = |name: &str, shape: &[u64], start| VectorTensor {
            name: name.into(),
            shape: shape.to_vec(),
            role: Role::Parameter,
            start,
        };
        let vector = |tensors: Vec<VectorTensor>| StateVector {
            name: "w".into(),
            dtype: DType::F32,
            elements: 100,
            tensors,
        };
        assert_eq!(check_all(&[vector(vec![place("a", &[10, 10], 0)])]), Ok(()));
        for (tensors, part) in [
            (vec![place("a", &[101], 0)], "tensor a"),
            (vec![place("a", &[u64::MAX, 2], 0)], "tensor a"),
            (vec![place("a", &[1], u64::MAX)], "tensor a"),
            (vec![place("a", &[8], 0), place("b", &[8], 7)], "tensor b"),
            (
                vec![place("a", &[8], 0), place("a", &[8], 8)],
                "a appears twice",
            ),
        ] {
            let problem = check_all(&[vector(tensors)]).unwrap_err().to_string();
            assert!(problem.contains(part), "{problem}");
        }
        let twice = [vector(vec![]), vector(vec![])];
        assert!(
            check_all(&twice)
                .unwrap_err()
                .to_string()
                .contains("appears twice")
        );
    }

    #[test]
    fn padding_belongs_to_the_tensor_before_it() {
        let arena = Arena::new([65, 3]);
        let layout = StateLayout {
            tensors: vec![
                ronde_core::layout::TensorEntry::f32("a", &[65], Role::Parameter),
                ronde_core::layout::TensorEntry::f32("b", &[3], Role::Buffer),
            ],
        };
        let vector = StateVector::of_layout("weights", &layout, &arena).unwrap();
        assert_eq!(vector.owner_of(0), (Some("a"), 128));
        assert_eq!(vector.owner_of(127), (Some("a"), 128));
        assert_eq!(vector.owner_of(128), (Some("b"), 192));
    }
}
