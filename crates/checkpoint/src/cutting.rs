//! Splits a slice into separately hashed parts, at tensor boundaries and every 8 MiB.

use crate::vector::StateVector;

/// The maximum length of a part.
pub(crate) const PART_BYTES_MAX: u64 = 8 << 20;

/// Returns the tensor and the number of elements of each part of `start..start + elements`.
pub(crate) fn parts(vector: &StateVector, start: u64, elements: u64) -> Vec<(Option<String>, u64)> {
    let longest = PART_BYTES_MAX / vector.dtype.size() as u64;
    let end = start + elements;
    let mut parts = Vec::new();
    let mut at = start;
    while at < end {
        let (tensor, owned_until) = vector.owner_of(at);
        let next = end.min(owned_until).min(at + longest);
        parts.push((tensor.map(str::to_owned), next - at));
        at = next;
    }
    parts
}

#[cfg(test)]
mod tests {
    use ronde_core::DType;
    use ronde_core::layout::Role;

    use super::*;
    use crate::vector::VectorTensor;

    #[test]
    fn parts_fill_a_slice_and_never_span_two_tensors() {
        let long = 5 << 20;
        let place = |name: &str, shape: &[u64], start| VectorTensor {
            name: name.into(),
            shape: shape.to_vec(),
            role: Role::Parameter,
            start,
        };
        let vector = StateVector {
            name: "w".into(),
            dtype: DType::F32,
            elements: 10 + long + 64,
            tensors: vec![
                place("a", &[3], 4),
                place("empty", &[0], 10),
                place("b", &[long], 10),
                place("c", &[], 10 + long),
            ],
        };
        let all = parts(&vector, 0, vector.elements);
        let named: Vec<(Option<&str>, u64)> =
            all.iter().map(|(name, n)| (name.as_deref(), *n)).collect();
        let piece = 2 << 20;
        assert_eq!(
            named,
            [
                (None, 4),
                (Some("a"), 6),
                (Some("b"), piece),
                (Some("b"), piece),
                (Some("b"), long - 2 * piece),
                (Some("c"), 64),
            ]
        );
        assert_eq!(parts(&vector, 5, 6).len(), 2);
        assert!(parts(&vector, 7, 0).is_empty());
    }
}
