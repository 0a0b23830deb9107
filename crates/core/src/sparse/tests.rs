//! Sparse sums have the bits of dense ones, and damaged bytes are refused.

use proptest::prelude::*;

use super::*;

/// Vectors of zeros with some other values, among them negative zeros and NaN.
fn vector(len: usize) -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        12 => Just(0.0_f32),
        1 => Just(-0.0),
        1 => Just(f32::NAN),
        1 => Just(f32::NEG_INFINITY),
        4 => -2.0_f32..2.0,
    ];
    let block = prop_oneof![3 => Just(0.0_f32), 1 => value];
    prop::collection::vec(block, len)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn dense(sparse: &SparseValues) -> Vec<f32> {
    let mut values = vec![7.0; sparse.len];
    sparse.write(0, &mut values);
    values
}

proptest! {
    #[test]
    fn a_sparse_sum_has_the_bits_of_the_dense_one(
        (left, right) in (0_usize..400).prop_flat_map(|len| (vector(len), vector(len))),
        cut in (0_usize..400, 0_usize..400),
    ) {
        let sparse = |values: &[f32]| SparseValues::of(values, usize::MAX).expect("there is no limit");
        prop_assert_eq!(bits(&dense(&sparse(&left))), bits(&left));
        let sum = sparse(&left).add(&sparse(&right));
        let mut expected = left.clone();
        exact::add(
            DType::F32,
            bytemuck::cast_slice_mut(&mut expected),
            bytemuck::cast_slice(&right),
        );
        prop_assert_eq!(bits(&dense(&sum)), bits(&expected));
        let (first, end) = (cut.0.min(cut.1).min(left.len()), cut.0.max(cut.1).min(left.len()));
        let mut part = vec![7.0; end - first];
        sum.write(first, &mut part);
        prop_assert_eq!(bits(&part), bits(&expected[first..end]));
        let mut bytes = Vec::new();
        sum.encode(&mut bytes);
        prop_assert_eq!(bytes.len(), sum.size().bytes());
        let read = SparseValues::decode(&bytes, left.len(), sum.size()).expect("valid bytes");
        prop_assert_eq!(bits(&dense(&read)), bits(&expected));
    }

    #[test]
    fn other_bytes_are_read_or_refused_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        len in 0_usize..100,
        (runs, blocks) in (0_u32..4, 0_u32..4),
    ) {
        let size = SparseSize { runs, blocks };
        let mut bytes = bytes;
        bytes.resize(size.bytes(), 1);
        if let Some(read) = SparseValues::decode(&bytes, len, size) {
            prop_assert!(dense(&read).len() == len);
        }
    }
}

#[test]
fn a_vector_that_takes_more_than_the_limit_is_dense() {
    let mut values = vec![0.0; 100 * SPARSE_BLOCK];
    assert_eq!(
        SparseValues::of(&values, 0).map(|of| of.size().blocks),
        Some(0)
    );
    // One run of two blocks: 8 + 128 bytes.
    values[5 * SPARSE_BLOCK + 15] = 1.0;
    values[6 * SPARSE_BLOCK] = 1.0;
    assert!(SparseValues::of(&values, 135).is_none());
    let sparse = SparseValues::of(&values, 136).expect("it takes 136 bytes");
    assert_eq!(sparse.size(), SparseSize { runs: 1, blocks: 2 });
    assert_eq!(sparse.size().bytes(), 136);
}
