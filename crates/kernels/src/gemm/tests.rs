//! Products against the definition, and tests that their bits do not depend on the memory layout.

use super::*;
use crate::short::ShortFormat;
use crate::simd::emulated;
use crate::testing::{close, format_of, rounded_to_f16, values, values_for};

#[test]
fn products_of_all_small_shapes_and_orders_fit_the_definition() {
    for level in [Level::Portable, Level::Avx2, Level::Avx512] {
        for (m, k, n) in [
            (1, 1, 1),
            (5, 3, 7),
            (8, 16, 48),
            (9, 300, 50),
            (17, 513, 33),
            (200, 70, 100),
            (3, 0, 2),
            (0, 3, 2),
            (2, 5, 1000),
        ] {
            let (a, b) = (values(m * k, 1), values(k * n, 2));
            let (at, bt) = (turned(&a, m, k), turned(&b, k, n));
            let lefts = [Matrix::new(&a, m, k), Matrix::new(&at, k, m).transposed()];
            let rights = [Matrix::new(&b, k, n), Matrix::new(&bt, n, k).transposed()];
            let mut all = Vec::new();
            for left in lefts {
                for right in rights {
                    let mut out = vec![f32::NAN; m * n];
                    multiply_at(level, left, right, &mut out, false);
                    all.push(out);
                }
            }
            for i in 0..m {
                for j in 0..n {
                    let sum: f64 = (0..k)
                        .map(|l| f64::from(a[i * k + l]) * f64::from(b[l * n + j]))
                        .sum();
                    close(all[0][i * n + j], sum, 1e-5);
                }
            }
            assert!(
                all.iter().all(|out| *out == all[0]),
                "{m} {k} {n}: the result depends on the layout of operands"
            );
            let mut twice = all[0].clone();
            multiply_at(level, lefts[0], rights[0], &mut twice, true);
            let doubled: Vec<f32> = all[0].iter().map(|x| x + x).collect();
            if k <= DEPTH_MAX {
                assert_eq!(twice, doubled);
            }
        }
    }
}

fn turned(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns)
        .flat_map(|c| (0..rows).map(move |r| values[r * columns + c]))
        .collect()
}

#[test]
fn an_element_has_the_same_bits_whatever_lies_around_it() {
    let (k, n) = (700, 130);
    let (a, b) = (values(20 * k, 3), values(k * n, 4));
    let mut whole = vec![0.0; 20 * n];
    multiply(
        Matrix::new(&a, 20, k),
        Matrix::new(&b, k, n),
        &mut whole,
        false,
    );
    for (row, columns) in [(0, 0..n), (7, 3..4), (19, 60..130)] {
        let right = Matrix::strided(&b[columns.start..], k, columns.len(), n);
        let mut part = vec![0.0; columns.len()];
        multiply(
            Matrix::new(&a[row * k..(row + 1) * k], 1, k),
            right,
            &mut part,
            false,
        );
        assert_eq!(part, whole[row * n..][columns]);
    }
}

#[test]
fn levels_with_fused_multiply_add_agree_to_the_bit() {
    let (a, b) = (values(30 * 400, 5), values(400 * 70, 6));
    let at = |level| {
        let mut out = vec![0.0; 30 * 70];
        multiply_at(
            level,
            Matrix::new(&a, 30, 400),
            Matrix::new(&b, 400, 70),
            &mut out,
            false,
        );
        out
    };
    if Level::detect() == Level::Avx512 {
        assert_eq!(at(Level::Avx2), at(Level::Avx512));
    }
}

#[test]
#[should_panic(expected = "inner lengths")]
fn mismatched_lengths_are_rejected() {
    let x = [0.0; 6];
    multiply(
        Matrix::new(&x, 2, 3),
        Matrix::new(&x, 2, 3),
        &mut [0.0; 6],
        false,
    );
}

#[test]
fn products_of_rounded_operands_have_the_order_of_pairs() {
    let products = Products::of(Some(ShortFormat::Bf16));
    for (m, k, n) in [
        (1, 1, 1),
        (5, 3, 7),
        (17, 513, 33),
        (200, 70, 100),
        (3, 0, 2),
    ] {
        let bf16 = |count, seed| values_for(Products::Bf16Pairs, count, seed);
        let (a, b) = (bf16(m * k, 1), bf16(k * n, 2));
        let mut out = vec![0.5; m * n];
        let (left, right) = (Matrix::new(&a, m, k), Matrix::new(&b, k, n));
        multiply_with(products, left, right, &mut out, true);
        for (at, got) in out.iter().enumerate() {
            let term = |l: usize, sum: f32| a[at / n * k + l].mul_add(b[l * n + at % n], sum);
            let mut expected = 0.5;
            for depth in BlockedLength::of(k, DEPTH_MAX).ranges() {
                let mut sum = 0.0;
                for first in depth.clone().step_by(2) {
                    let pair = [first + 1, first];
                    let within = pair.into_iter().filter(|l| depth.contains(l));
                    sum = within.fold(sum, |sum, l| term(l, sum));
                }
                expected += sum;
            }
            if products == Products::Bf16Pairs {
                assert_eq!(*got, expected, "{m} {k} {n}");
            } else {
                close(*got, f64::from(expected), 1e-5);
            }
        }
        let (mut exact, mut other) = (vec![0.5; m * n], vec![0.5; m * n]);
        multiply_with(Products::F32, left, right, &mut other, false);
        multiply(left, right, &mut exact, false);
        assert_eq!(other, exact);
    }
}

/// Splits a value into parts of eight bits.
fn defined_parts(value: f32) -> [f32; 3] {
    let mut rest = f64::from(value);
    [(); 3].map(|()| {
        let ulp = match rest {
            0.0 => 1.0,
            rest => 2.0_f64.powi(rest.abs().log2().floor() as i32 - 7),
        };
        // Half of a unit is rounded away from zero, as `round` does.
        let part = (rest / ulp).round() * ulp;
        rest -= part;
        part as f32
    })
}

/// Multiplies each element by the definition of the instructions: blocks of the inner index, and within them blocks of 32
/// products in two sums (tiles), or of 16 products (sums in f16).
fn defined(products: Products, a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Vec<f32> {
    let element = |at: usize| {
        let (row, column) = (at / n, at % n);
        let factors = |l: usize| [a[row * k + l], b[l * n + column]];
        let tile = |depth: Range<usize>, factors: &dyn Fn(usize) -> [f32; 2]| {
            let mut both = [0.0_f32; 2];
            for l in depth.clone() {
                let ([x, y], parity) = (factors(l), (l - depth.start) % 2);
                both[parity] = x.mul_add(y, both[parity]);
            }
            both[0] + both[1]
        };
        let mut whole = 0.0_f32;
        for depth in BlockedLength::of_depth(k).ranges() {
            let mut sum = 0.0_f32;
            match products {
                Products::Bf16Tiles => {
                    for depth in chunks(depth.clone(), 32) {
                        sum += tile(depth, &factors);
                    }
                }
                Products::SplitTiles => {
                    for depth in chunks(depth.clone(), 32) {
                        for [x, y] in [[2, 0], [1, 0], [1, 1], [0, 1], [0, 2], [0, 0]] {
                            let parts = |l: usize| {
                                let [a, b] = factors(l).map(defined_parts);
                                [a[x], b[y]]
                            };
                            sum += tile(depth.clone(), &parts);
                        }
                    }
                }
                _ => {
                    for first in depth.clone().step_by(16) {
                        let products = (first..(first + 16).min(depth.end)).map(factors);
                        let part = products.fold(0.0, |sum, [x, y]| {
                            rounded_to_f16(f64::from(x).mul_add(f64::from(y), sum))
                        });
                        sum += part as f32;
                    }
                }
            }
            whole += sum;
        }
        whole
    };
    (0..m * n).map(element).collect()
}

#[test]
fn instructions_have_the_bits_of_their_definition_for_all_layouts() {
    for products in [Products::SplitTiles, Products::Bf16Tiles, Products::F16Sums] {
        let runs_here = Products::of(format_of(products)) == products;
        if !runs_here {
            eprintln!("emulated: no {products:?} here");
        }
        for shape in [
            [1, 1, 1],
            [5, 3, 7],
            [33, 31, 33],
            [17, 513, 65],
            [200, 70, 100],
            [8, 10_241, 2],
            [3, 0, 2],
            [0, 3, 2],
            [2, 5, 1100],
        ] {
            let [m, k, n] = shape;
            let (a, b) = (
                values_for(products, m * k, 1),
                values_for(products, k * n, 2),
            );
            let expected = defined(products, &a, &b, shape);
            let (at, bt) = (turned(&a, m, k), turned(&b, k, n));
            for left in [Matrix::new(&a, m, k), Matrix::new(&at, k, m).transposed()] {
                for right in [Matrix::new(&b, k, n), Matrix::new(&bt, n, k).transposed()] {
                    let multiplied = || {
                        let mut out = vec![f32::NAN; m * n];
                        multiply_with(products, left, right, &mut out, false);
                        let mut sum = vec![1.5; m * n];
                        multiply_with(products, left, right, &mut sum, true);
                        (out, sum)
                    };
                    let mut all = vec![emulated::run(multiplied)];
                    if runs_here {
                        all.push(multiplied());
                    }
                    for (out, sum) in all {
                        assert!(out == expected, "{products:?} {shape:?}");
                        if k <= DEPTH_MAX {
                            let whole = expected.iter().map(|product| 1.5 + product);
                            assert!(sum.iter().copied().eq(whole), "{products:?} {shape:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn split_values_are_as_exact_as_f32() {
    for (m, k, n) in [(33, 700, 40), (7, 64, 9)] {
        let (a, b) = (values(m * k, 1), values(k * n, 2));
        let (left, right) = (Matrix::new(&a, m, k), Matrix::new(&b, k, n));
        let exact = |at: usize| -> f64 {
            let terms = (0..k).map(|l| f64::from(a[at / n * k + l]) * f64::from(b[l * n + at % n]));
            terms.sum()
        };
        let error = |out: &[f32]| -> f64 {
            let errors = out.iter().enumerate();
            let squares = errors.map(|(at, found)| (f64::from(*found) - exact(at)).powi(2));
            (squares.sum::<f64>() / (m * n) as f64).sqrt()
        };
        let mut out = vec![0.0; m * n];
        multiply_with(Products::F32, left, right, &mut out, false);
        let in_f32 = error(&out);
        emulated::run(|| multiply_with(Products::SplitTiles, left, right, &mut out, false));
        let split = error(&out);
        assert!(split <= in_f32, "{split:e} instead of {in_f32:e}");
    }
}

#[test]
fn no_value_that_is_infinite_or_not_a_number_is_lost_in_its_parts() {
    let hidden = f32::from_bits(0x7fff_ffff);
    for value in [
        f32::NAN,
        hidden,
        -hidden,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
    ] {
        let a = [1.0, value, 0.0, 2.0];
        let mut out = [0.0; 4];
        let (left, right) = (Matrix::new(&a, 2, 2), Matrix::new(&[1.0; 4], 2, 2));
        emulated::run(|| multiply_with(Products::SplitTiles, left, right, &mut out, false));
        assert!(
            out[0].is_nan() && out[1].is_nan(),
            "{value} results in {out:?}"
        );
        assert_eq!(out[2..], [2.0, 2.0], "{value}");
    }
}
