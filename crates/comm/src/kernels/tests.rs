//! Values at the edges, and equal bits from every instruction set.

use bytemuck::Pod;
use ronde_core::exact;
use ronde_core::philox::Stream;

use super::*;

fn two<T: Pod>(dtype: DType, op: ReduceOp, left: T, right: T) -> [T; 2] {
    let mut one = [left];
    let bytes = bytemuck::cast_slice_mut(&mut one);
    reduce(dtype, op, bytes, bytemuck::bytes_of(&right), true);
    let mut other = [right];
    let bytes = bytemuck::cast_slice_mut(&mut other);
    reduce(dtype, op, bytes, bytemuck::bytes_of(&left), false);
    [one[0], other[0]]
}

const FLOAT_OPS: [ReduceOp; 5] = [
    ReduceOp::Min,
    ReduceOp::Max,
    ReduceOp::Sum,
    ReduceOp::Product,
    ReduceOp::Mean,
];

#[test]
fn nan_wins_is_canonical_and_order_is_kept() {
    for op in FLOAT_OPS {
        for (left, right) in [(f32::from_bits(0xffc0_1234), 1.0), (1.0, f32::NAN)] {
            let bits = two(DType::F32, op, left, right).map(f32::to_bits);
            assert_eq!(bits, [f32::NAN.to_bits(); 2]);
            let (l, r) = (bf16::from_f32(left), bf16::from_f32(right));
            assert_eq!(two(DType::Bf16, op, l, r).map(bf16::to_bits), [0x7fc0; 2]);
            let (l, r) = (f16::from_f32(left), f16::from_f32(right));
            assert_eq!(two(DType::F16, op, l, r).map(f16::to_bits), [0x7e00; 2]);
        }
    }
    for result in two(DType::F32, ReduceOp::Min, 0.0_f32, -0.0) {
        assert!(result.is_sign_positive(), "the left one of equals");
    }
    assert_eq!(two(DType::F64, ReduceOp::Max, 2.0_f64, 3.0), [3.0; 2]);
}

#[test]
fn integers_wrap_and_halves_round_to_even() {
    assert_eq!(two(DType::U8, ReduceOp::Sum, 250_u8, 10), [4; 2]);
    assert_eq!(two(DType::I32, ReduceOp::Product, i32::MAX, 2), [-2; 2]);
    assert_eq!(two(DType::I64, ReduceOp::Min, -5_i64, 3), [-5; 2]);
    assert_eq!(two(DType::U32, ReduceOp::Max, 7_u32, 9), [9; 2]);
    assert_eq!(two(DType::U8, ReduceOp::And, 6_u8, 3), [2; 2]);
    assert_eq!(two(DType::I64, ReduceOp::Or, 6_i64, 3), [7; 2]);
    assert_eq!(two(DType::I32, ReduceOp::Xor, 6_i32, 3), [5; 2]);
    let (big, tie) = (bf16::from_f32(256.0), bf16::from_f32(1.0));
    assert_eq!(two(DType::Bf16, ReduceOp::Sum, big, tie), [big; 2]);
    let (big, tie) = (f16::from_f32(2048.0), f16::from_f32(1.0));
    assert_eq!(two(DType::F16, ReduceOp::Sum, big, tie), [big; 2]);
}

/// Returns arbitrary bits, with special values more often than at random.
fn hostile(seed: u32, bytes: usize) -> Vec<u64> {
    let mut words = vec![0; bytes.div_ceil(8) * 2];
    Stream::new([seed, 1, 2, 3]).fill(&mut words);
    let special: [u32; 7] = [
        0x7f80_0000,
        0xff80_0000,
        0x8000_0000,
        0,
        0x7fc0_0001,
        0x7c01_fc00,
        1,
    ];
    words
        .chunks(2)
        .map(|pair| match pair[0] % 16 {
            choice @ 0..7 => {
                let word = u64::from(special[choice as usize]);
                word << 32 | word
            }
            _ => u64::from(pair[0]) << 32 | u64::from(pair[1]),
        })
        .collect()
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for dtype in DType::ALL {
        for op in ReduceOp::ALL {
            if op.refusal(dtype).is_some() {
                continue;
            }
            for len in [0, 1, 7, 31, 64, 511, 513, 1000] {
                let bytes = len * dtype.size();
                let (left, right) = (hostile(1, bytes), hostile(2, bytes));
                let right = &bytemuck::cast_slice(&right)[..bytes];
                for into_is_left in [true, false] {
                    let results: Vec<Vec<u64>> = InstructionSet::all()
                        .map(|by| {
                            let mut into = left.clone();
                            let into_bytes = &mut bytemuck::cast_slice_mut(&mut into)[..bytes];
                            reduce_by(by, dtype, op, into_bytes, right, into_is_left);
                            into
                        })
                        .collect();
                    for result in &results[1..] {
                        assert!(*result == results[0], "{op} of {len} {dtype}");
                    }
                }
            }
        }
    }
}

#[test]
fn bf16_and_f16_round_as_the_reference_does() {
    let (left, right) = (hostile(3, 1 << 16), hostile(4, 1 << 16));
    for op in [ReduceOp::Sum, ReduceOp::Product] {
        let apply = |a: f32, b: f32| if op == ReduceOp::Sum { a + b } else { a * b };
        let mut sums = left.clone();
        let bytes = bytemuck::cast_slice_mut(&mut sums);
        reduce(DType::Bf16, op, bytes, bytemuck::cast_slice(&right), true);
        let of = |v: &[u64]| bytemuck::cast_slice::<u64, bf16>(v).to_vec();
        for ((a, b), got) in of(&left).iter().zip(of(&right)).zip(of(&sums)) {
            let expected = bf16::from_f32_const(apply(a.to_f32_const(), b.to_f32_const()));
            let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
            assert!(same, "{op} of {a:?} and {b:?}: {got:?}");
        }
        let mut sums = left.clone();
        let bytes = bytemuck::cast_slice_mut(&mut sums);
        reduce(DType::F16, op, bytes, bytemuck::cast_slice(&right), true);
        let of = |v: &[u64]| bytemuck::cast_slice::<u64, f16>(v).to_vec();
        for ((a, b), got) in of(&left).iter().zip(of(&right)).zip(of(&sums)) {
            let expected = f16::from_f32_const(apply(a.to_f32_const(), b.to_f32_const()));
            let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
            assert!(same, "{op} of {a:?} and {b:?}: {got:?}");
        }
    }
}

#[test]
fn extremes_of_all_pairs_of_edges_are_those_of_f32() {
    let edges = [
        0, 1, 0x3ff, 0x400, 0x3c00, 0x7bff, 0x7c00, 0x7c01, 0x7e00, 0x7f80, 0x7f81, 0x7fff,
    ];
    let all: Vec<u16> = edges
        .iter()
        .flat_map(|&bits| [bits, bits | 0x8000])
        .collect();
    // The rule, in f32: NaN wins, of equal values the left one.
    let rule = |op, left: f32, right: f32, bits: [u16; 2], nan: u16| {
        let is_right = if op == ReduceOp::Max {
            right > left
        } else {
            right < left
        };
        if left.is_nan() || right.is_nan() {
            nan
        } else {
            bits[usize::from(is_right)]
        }
    };
    for op in [ReduceOp::Min, ReduceOp::Max] {
        for &left in &all {
            for &right in &all {
                let (l, r) = (f16::from_bits(left), f16::from_bits(right));
                let expected = rule(
                    op,
                    l.to_f32_const(),
                    r.to_f32_const(),
                    [left, right],
                    0x7e00,
                );
                assert_eq!(two(DType::F16, op, l, r).map(f16::to_bits), [expected; 2]);
                let (l, r) = (bf16::from_bits(left), bf16::from_bits(right));
                let expected = rule(
                    op,
                    l.to_f32_const(),
                    r.to_f32_const(),
                    [left, right],
                    0x7fc0,
                );
                assert_eq!(two(DType::Bf16, op, l, r).map(bf16::to_bits), [expected; 2]);
            }
        }
    }
}

#[test]
fn sums_equal_those_of_the_exact_sum() {
    for dtype in [DType::F32, DType::F64] {
        let (mut one, right) = (hostile(5, 1 << 14), hostile(6, 1 << 14));
        let mut other = one.clone();
        let right = bytemuck::cast_slice(&right);
        exact::add(dtype, bytemuck::cast_slice_mut(&mut one), right);
        let into = bytemuck::cast_slice_mut(&mut other);
        reduce(dtype, ReduceOp::Sum, into, right, true);
        assert!(one == other, "{dtype}");
    }
}

#[test]
fn a_mean_is_divided_once() {
    let mut values = [3.0_f32, -1.0, f32::INFINITY];
    divide(DType::F32, bytemuck::cast_slice_mut(&mut values), 3);
    assert_eq!(values, [1.0, -1.0 / 3.0, f32::INFINITY]);
    let mut values = [3.0, 1.0].map(bf16::from_f32);
    divide(DType::Bf16, bytemuck::cast_slice_mut(&mut values), 3);
    assert_eq!(values, [1.0, 1.0 / 3.0].map(bf16::from_f32));
    let mut values = [3.0, 1.0].map(f16::from_f32);
    divide(DType::F16, bytemuck::cast_slice_mut(&mut values), 3);
    assert_eq!(values, [1.0, 1.0 / 3.0].map(f16::from_f32));
}
