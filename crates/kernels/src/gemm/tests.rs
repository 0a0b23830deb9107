//! Products against the definition, and tests that their bits do not depend on the memory layout.

use super::*;
use crate::simd::emulated;
use crate::testing::{close, rounded_to_f16, values};
use crate::{ShortProducts, round_short};

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
    let bf16 = |count, seed| {
        let mut found = values(count, seed);
        round_short(ShortFormat::Bf16, &mut found);
        found
    };
    for (m, k, n) in [
        (1, 1, 1),
        (5, 3, 7),
        (17, 513, 33),
        (200, 70, 100),
        (3, 0, 2),
    ] {
        let (a, b) = (bf16(m * k, 1), bf16(k * n, 2));
        let mut out = vec![0.5; m * n];
        let (left, right) = (Matrix::new(&a, m, k), Matrix::new(&b, k, n));
        multiply_rounded(Some(ShortFormat::Bf16), left, right, &mut out, true);
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
            if ShortProducts::of(ShortFormat::Bf16) == Some(ShortProducts::Bf16Pairs) {
                assert_eq!(*got, expected, "{m} {k} {n}");
            } else {
                close(*got, f64::from(expected), 1e-5);
            }
        }
        let mut exact = vec![0.5; m * n];
        multiply(left, right, &mut exact, true);
        let mut other = vec![0.5; m * n];
        multiply_rounded(None, left, right, &mut other, false);
        multiply(left, right, &mut exact, false);
        assert_eq!(other, exact);
    }
}

/// Multiplies each element by the definition of the instructions: blocks of the inner index, and within them blocks of 32
/// products in two sums (tiles of bf16), or of 16 products (sums in f16).
fn defined(products: ShortProducts, a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Vec<f32> {
    let element = |at: usize| {
        let (row, column) = (at / n, at % n);
        let factors = |l: usize| [a[row * k + l], b[l * n + column]];
        let mut whole = 0.0_f32;
        for depth in BlockedLength::of_depth(k).ranges() {
            let mut sum = 0.0_f32;
            match products {
                ShortProducts::Bf16Tiles => {
                    for first in depth.clone().step_by(32) {
                        let mut both = [0.0_f32; 2];
                        for l in first..(first + 32).min(depth.end) {
                            let ([x, y], parity) = (factors(l), (l - first) % 2);
                            both[parity] = x.mul_add(y, both[parity]);
                        }
                        sum += both[0] + both[1];
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
fn instructions_of_short_formats_have_the_bits_of_their_definition_for_all_layouts() {
    for products in [ShortProducts::Bf16Tiles, ShortProducts::F16Sums] {
        let format = products.format();
        let runs_here = ShortProducts::of(format) == Some(products);
        if !runs_here {
            eprintln!("emulated: no {} here", products.name());
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
            let rounded = |count, seed| {
                let mut found = values(count, seed);
                round_short(format, &mut found);
                found
            };
            let (a, b) = (rounded(m * k, 1), rounded(k * n, 2));
            let expected = defined(products, &a, &b, shape);
            let (at, bt) = (turned(&a, m, k), turned(&b, k, n));
            for left in [Matrix::new(&a, m, k), Matrix::new(&at, k, m).transposed()] {
                for right in [Matrix::new(&b, k, n), Matrix::new(&bt, n, k).transposed()] {
                    let multiplied = || {
                        let mut out = vec![f32::NAN; m * n];
                        multiply_rounded(Some(format), left, right, &mut out, false);
                        let mut sum = vec![1.5; m * n];
                        multiply_rounded(Some(format), left, right, &mut sum, true);
                        (out, sum)
                    };
                    let mut all = vec![emulated::with(products, multiplied)];
                    if runs_here {
                        all.push(multiplied());
                    }
                    for (out, sum) in all {
                        assert_eq!(out, expected, "{products:?} {shape:?}");
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
