//! Attention in strips against the definition.

use super::*;
use crate::testing::{at_every_level, close, values};

/// Returns the sum of the output times `dy` for queries, and for keys and values.
fn objective(shape: &Attention, lengths: &[usize], [q, kv]: &[Vec<f64>; 2], dy: &[f32]) -> f64 {
    let mut sum = 0.0;
    for place in shape.places() {
        let ([own, memory], row) = (shape.starts(place), shape.row());
        for query in 0..shape.queries {
            let keys = shape.seen(lengths, place);
            let seen = if shape.causal {
                (query + 1).min(keys)
            } else {
                keys
            };
            let at = own + query * row;
            let score = |key: usize| {
                let from = memory + key * 2 * row;
                let dot: f64 = (0..shape.width).map(|i| q[at + i] * kv[from + i]).sum();
                (dot / (shape.width as f64).sqrt()).exp()
            };
            let total: f64 = (0..seen).map(score).sum();
            for key in 0..seen {
                let weight = score(key) / total;
                let from = memory + key * 2 * row + row;
                for i in 0..shape.width {
                    sum += weight * kv[from + i] * f64::from(dy[at + i]);
                }
            }
        }
    }
    sum
}

/// Returns the output, and the gradients of queries, and of keys and values.
fn outcome(shape: &Attention, lengths: &[usize], given: [&[f32]; 3]) -> [Vec<f32>; 3] {
    rounded_outcome(shape, lengths, given, None)
}

fn rounded_outcome(
    shape: &Attention,
    lengths: &[usize],
    given: [&[f32]; 3],
    format: Option<ShortFormat>,
) -> [Vec<f32>; 3] {
    let [asking, looked_at, rows] = shape.elements();
    let [q, kv, dy] = given;
    let (mut y, mut statistics) = (vec![f32::NAN; asking], vec![f32::NAN; rows]);
    shape.forward(q, kv, lengths, &mut y, &mut statistics);
    let mut dq = vec![f32::NAN; asking];
    let mut dkv = vec![f32::NAN; looked_at];
    let known = (&statistics[..], format);
    shape.backward([q, kv], lengths, known, dy, [&mut dq, &mut dkv]);
    [y, dq, dkv]
}

/// Returns the same as [`rounded_outcome`] from matrices of all pairs.
fn outcome_of_whole_matrices(
    shape: &Attention,
    lengths: &[usize],
    [q, kv, dy]: [&[f32]; 3],
    format: Option<ShortFormat>,
) -> [Vec<f32>; 3] {
    let [asking, looked_at, _] = shape.elements();
    let row = shape.row();
    let (mut y, mut dq) = (vec![0.0; asking], vec![0.0; asking]);
    let mut dkv = vec![0.0; looked_at];
    let multiply = |left: Matrix<'_>, right: Matrix<'_>, to: (&mut [f32], usize), triangle| {
        let part = PartialProduct::new(left.columns(), triangle);
        multiply_part(left, right, to, part);
    };
    for place in shape.places() {
        let strip = Strip {
            keys: shape.seen(lengths, place),
            ..shape.strip(0..shape.queries, shape.seen(lengths, place))
        };
        let stride = Strip::stride_of(strip.keys);
        let strip = Strip { stride, ..strip };
        let mut weights = vec![0.0; strip.elements()];
        let mut statistics = vec![0.0; 2 * shape.queries];
        shape.write_scores([q, kv], place, &strip, &mut weights);
        dispatch(RowSoftmax {
            strip: &strip,
            weights: &mut weights,
            statistics: &mut statistics,
        });
        let [keys, values] = shape.looked_at(kv, place, &strip);
        let ([start, memory], given) = (shape.starts(place), shape.asking(dy, place, &strip));
        let in_left = strip.triangle(Triangle::AboveInLeft);
        let below = strip.triangle(Triangle::BelowInLeft);
        let to = (&mut y[start..], row);
        multiply(strip.matrix(&weights), values, to, in_left);
        if let Some(format) = format {
            round_short(format, &mut weights);
        }
        let to = (&mut dkv[memory + row..], 2 * row);
        multiply(strip.matrix(&weights).transposed(), given, to, below);
        let mut slopes = vec![0.0; strip.elements()];
        strip.multiply_by_rows(given, values, &mut slopes);
        dispatch(SoftmaxGradient {
            strip: &strip,
            weights: &weights,
            slopes: &mut slopes,
        });
        let slopes = strip.matrix(&slopes);
        multiply(slopes, keys, (&mut dq[start..], row), in_left);
        let asking = shape.asking(q, place, &strip);
        multiply(
            slopes.transposed(),
            asking,
            (&mut dkv[memory..], 2 * row),
            below,
        );
    }
    [y, dq, dkv]
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn strips_have_the_bits_of_whole_matrices() {
    at_every_level(|| {
        let cases: [(usize, usize, bool, &[usize]); 9] = [
            (5, 5, true, &[]),
            (128, 128, true, &[]),
            (256, 256, true, &[]),
            (257, 257, true, &[]),
            (600, 600, true, &[]),
            (600, 600, true, &[3, 411]),
            (530, 530, false, &[]),
            (300, 700, false, &[650, 120]),
            (700, 9, false, &[]),
        ];
        for (queries, keys, causal, lengths) in cases {
            let shape = Attention {
                batch: 2,
                queries,
                keys,
                heads: 2,
                width: 20,
                causal,
            };
            let [asking, looked_at, _] = shape.elements();
            let (q, kv) = (values(asking, 1), values(looked_at, 2));
            let dy = values(asking, 4);
            let given: [&[f32]; 3] = [&q, &kv, &dy];
            for format in [None, Some(ShortFormat::Bf16)] {
                let found = rounded_outcome(&shape, lengths, given, format);
                let expected = outcome_of_whole_matrices(&shape, lengths, given, format);
                for (found, expected) in found.iter().zip(&expected) {
                    assert!(bits(found) == bits(expected), "{shape:?} {format:?}");
                }
            }
        }
    });
}

#[test]
fn memory_grows_with_the_tokens_and_not_with_their_pairs() {
    let bytes = |tokens| {
        let measure = move || {
            let shape = Attention {
                batch: 1,
                queries: tokens,
                keys: tokens,
                heads: 1,
                width: 8,
                causal: true,
            };
            let [asking, looked_at, _] = shape.elements();
            let (q, kv) = (values(asking, 1), values(looked_at, 2));
            outcome(&shape, &[], [&q, &kv, &q]);
            crate::buffer_bytes()
        };
        // A new thread has no buffers yet.
        std::thread::spawn(measure).join().unwrap()
    };
    let [short, long] = [1024, 4096].map(bytes);
    let strips = |tokens: usize| 2 * 256 * 4 * tokens;
    assert!(long > strips(4096), "{long}");
    assert!(long - short < strips(4096 - 1024) + 4096, "{short}, {long}");
}

#[test]
fn values_and_gradients_fit_the_definition() {
    at_every_level(|| {
        let cases: [(usize, usize, bool, &[usize]); 8] = [
            (5, 5, true, &[]),
            (270, 270, true, &[]),
            (290, 300, false, &[300, 70]),
            (3, 6, false, &[]),
            (18, 18, true, &[]),
            (70, 70, true, &[]),
            (4, 7, false, &[7, 3]),
            (6, 6, true, &[0, 4]),
        ];
        for (queries, keys, causal, lengths) in cases {
            let shape = Attention {
                batch: 2,
                queries,
                keys,
                heads: 2,
                width: 3,
                causal,
            };
            let [asking, looked_at, _] = shape.elements();
            let (q, kv) = (values(asking, 1), values(looked_at, 2));
            let dy = values(asking, 4);
            let [y, dq, dkv] = outcome(&shape, lengths, [&q, &kv, &dy]);
            let wide = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            let inputs = [wide(&q), wide(&kv)];
            let products = y.iter().zip(&dy);
            let total: f64 = products.map(|(y, dy)| f64::from(*y) * f64::from(*dy)).sum();
            assert!((total - objective(&shape, lengths, &inputs, &dy)).abs() < 1e-4);
            for (which, got) in [dq, dkv].iter().enumerate() {
                assert!(got.iter().all(|value| value.is_finite()));
                let places = if queries > 200 { 5 } else { 40 };
                for place in (0..got.len()).step_by(got.len() / places + 1) {
                    let moved = |by: f64| {
                        let mut inputs = inputs.clone();
                        inputs[which][place] += by;
                        objective(&shape, lengths, &inputs, &dy)
                    };
                    close(got[place], (moved(1e-5) - moved(-1e-5)) / 2e-5, 1e-5);
                }
            }
        }
    });
}

#[test]
fn masked_tokens_do_not_change_the_bits() {
    at_every_level(|| {
        let long = Attention {
            batch: 1,
            queries: 9,
            keys: 9,
            heads: 2,
            width: 3,
            causal: false,
        };
        let short = Attention { keys: 5, ..long };
        let [asking, looked_at, _] = long.elements();
        let (q, dy) = (values(asking, 1), values(asking, 4));
        let mut kv = values(looked_at, 2);
        kv[5 * 12..].fill(f32::NAN);
        let [y, dq, dkv] = outcome(&long, &[5], [&q, &kv, &dy]);
        let expected = outcome(&short, &[], [&q, &kv[..5 * 12], &dy]);
        assert_eq!([y, dq, dkv[..5 * 12].to_vec()], expected);
        assert_eq!(dkv[5 * 12..], [0.0; 4 * 12]);
    });
}
