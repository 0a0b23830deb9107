//! Products of shards in a tree against products of each shard and additions of whole matrices.

use super::*;
use crate::short::ShortFormat;
use crate::simd::emulated;
use crate::testing::{add_in_tree, at_every_level, format_of, values_for};

/// Returns operands in which some values are not finite or very small.
fn operand(products: Products, length: usize, seed: u64, is_plain: bool) -> Vec<f32> {
    let mut found = values_for(products, length, seed);
    if is_plain {
        return found;
    }
    let odd = [
        f32::from_bits(0x7fc1_2345),
        f32::from_bits(0xffc5_4321),
        f32::INFINITY,
        f32::NEG_INFINITY,
        -0.0,
        1e-41,
        -1e-38,
    ];
    for (number, value) in found.iter_mut().enumerate() {
        if (number * 31 + seed as usize).is_multiple_of(97) {
            *value = odd[number % odd.len()];
        } else if number % 5 == 0 {
            *value *= 1e-20;
        }
    }
    if let Some(format) = format_of(products) {
        crate::short::round_short(format, &mut found);
    }
    found
}

fn compare(products: Products, shards: &[usize], [inputs, outputs]: [usize; 2], is_plain: bool) {
    let rows: usize = shards.iter().sum();
    let x = operand(products, rows * inputs, 1, is_plain);
    let dy = operand(products, rows * outputs, 2, is_plain);
    let left = |rows: Range<usize>| {
        let x = &x[rows.start * inputs..rows.end * inputs];
        Matrix::new(x, rows.len(), inputs).transposed()
    };
    let right = |rows: Range<usize>| {
        let dy = &dy[rows.start * outputs..rows.end * outputs];
        Matrix::new(dy, rows.len(), outputs)
    };
    let mut start = 0;
    let of_shard = |rows: &usize| {
        let shard = start..start + rows;
        start += rows;
        let mut product = vec![f32::NAN; inputs * outputs];
        let (left, right) = (left(shard.clone()), right(shard));
        multiply_with(products, left, right, &mut product, false);
        product
    };
    let expected = add_in_tree(shards.iter().map(of_shard).collect());
    let mut got = vec![-7.0; inputs * outputs];
    multiply_in_tree(products, left(0..rows), right(0..rows), shards, &mut got);
    // The bits of a NaN that is not added to anything are not specified.
    let has_one = shards.len() == 1;
    let differs = |(got, expected): (&f32, &f32)| {
        got.to_bits() != expected.to_bits() && !(has_one && got.is_nan() && expected.is_nan())
    };
    let at = got.iter().zip(&expected).position(differs);
    assert!(
        at.is_none(),
        "{products:?}, shards of {shards:?}, {inputs} by {outputs}: element {at:?}"
    );
    // Some rows of the output.
    let part = inputs / 3..inputs;
    let mut some = vec![-7.0; part.len() * outputs];
    let left = left(0..rows).some_rows(part.clone());
    multiply_in_tree(products, left, right(0..rows), shards, &mut some);
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(bits(&some) == bits(&got[part.start * outputs..]));
}

fn compare_all(products: Products) {
    let cases: [&[usize]; 16] = [
        &[5],
        &[0],
        &[0, 0],
        &[1, 1],
        &[2, 1],
        &[3, 0, 5, 1, 0, 0, 7],
        &[8; 8],
        &[8; 64],
        &[0, 1, 3, 8, 33, 300],
        &[300, 33, 8, 3, 1, 0, 1],
        &[3; 5],
        &[256, 256],
        &[257, 1, 512],
        &[40; 32],
        &[600, 700],
        &[33, 0, 0, 600, 1],
    ];
    for shards in cases {
        for is_plain in [true, false] {
            for size in [[1, 1], [9, 50], [17, 97]] {
                compare(products, shards, size, is_plain);
            }
        }
    }
    for shards in [&[1; 7][..], &[8; 3], &[520, 9, 9]] {
        compare(products, shards, [200, 1100], true);
        compare(products, shards, [3, 0], true);
        compare(products, shards, [0, 3], true);
    }
}

#[test]
fn a_sum_has_the_bits_of_products_added_in_a_tree() {
    at_every_level(|| {
        compare_all(Products::F32);
        compare_all(Products::of(Some(ShortFormat::Bf16)));
    });
    for products in [Products::SplitTiles, Products::Bf16Tiles, Products::F16Sums] {
        if Products::of(format_of(products)) == products {
            compare_all(products);
        }
        emulated::run(|| {
            compare(products, &[8; 8], [33, 50], true);
            compare(products, &[0, 1, 3, 8, 33, 300], [33, 50], false);
            compare(products, &[600, 7, 9], [9, 97], true);
        });
    }
}

#[test]
#[should_panic(expected = "inner lengths")]
fn rows_of_no_shard_are_rejected() {
    let x = [0.0; 3];
    let (left, right) = (Matrix::new(&x, 1, 3), Matrix::new(&x, 3, 1));
    multiply_in_tree(Products::F32, left, right, &[1, 1], &mut [0.0]);
}
