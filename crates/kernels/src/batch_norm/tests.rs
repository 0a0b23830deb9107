//! Tests of the batch normalisation against its definition.

use super::*;
use crate::testing::{at_every_level, values};

fn shape(rectified: bool) -> BatchNorm {
    BatchNorm {
        samples: 3,
        channels: 4,
        places: 37,
        epsilon: 1e-5,
        rectified,
    }
}

/// Computes the sum of `y * weight` in f64, directly from the definition.
fn objective(
    shape: &BatchNorm,
    x: &[f64],
    gamma: &[f64],
    beta: &[f64],
    added: &[f64],
    weight: &[f32],
) -> f64 {
    let count = (shape.samples * shape.places) as f64;
    let mut sum = 0.0;
    for channel in 0..shape.channels {
        let mean = shape
            .runs(channel)
            .flat_map(|run| x[run].to_vec())
            .sum::<f64>()
            / count;
        let square = shape.runs(channel).flat_map(|run| x[run].to_vec());
        let variance = square.map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        for i in shape.runs(channel).flatten() {
            let y = (x[i] - mean) / (variance + shape.epsilon).sqrt() * gamma[channel]
                + beta[channel]
                + added[i];
            sum += f64::from(weight[i]) * if shape.rectified { y.max(0.0) } else { y };
        }
    }
    sum
}

#[test]
fn values_and_gradients_fit_the_definition() {
    at_every_level(|| {
        for rectified in [false, true] {
            let shape = shape(rectified);
            let n = shape.elements();
            let (x, added, dy) = (values(n, 1), values(n, 2), values(n, 3));
            let (gamma, beta) = (values(4, 4), values(4, 5));
            let affine = Affine {
                gamma: &gamma,
                beta: &beta,
            };
            let mut y = vec![0.0; n];
            let statistics = shape.forward(&x, affine, Some(&added), &mut y);
            let (mut dx, mut dadded) = (vec![0.0; n], vec![0.0; n]);
            let (mut dgamma, mut dbeta) = (vec![0.0; 4], vec![0.0; 4]);
            let gradients = BatchNormGradients {
                input: &mut dx,
                gamma: &mut dgamma,
                beta: &mut dbeta,
                added: Some(&mut dadded),
            };
            shape.backward(&x, &y, &dy, &gamma, &statistics, gradients);

            let wide = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            let inputs = [wide(&x), wide(&gamma), wide(&beta), wide(&added)];
            let at = |inputs: &[Vec<f64>; 4]| {
                objective(&shape, &inputs[0], &inputs[1], &inputs[2], &inputs[3], &dy)
            };
            let total: f64 = y
                .iter()
                .zip(&dy)
                .map(|(y, dy)| f64::from(*y) * f64::from(*dy))
                .sum();
            assert!((total - at(&inputs)).abs() < 1e-4, "{total}");
            for (which, got) in [&dx, &dgamma, &dbeta, &dadded].into_iter().enumerate() {
                for place in (0..got.len()).step_by(if which == 0 || which == 3 { 17 } else { 1 }) {
                    let moved = |by: f64| {
                        let mut inputs = inputs.clone();
                        inputs[which][place] += by;
                        at(&inputs)
                    };
                    let slope = (moved(1e-6) - moved(-1e-6)) / 2e-6;
                    assert!(
                        (slope - f64::from(got[place])).abs() < 1e-3,
                        "{which} {place}: {slope} {}",
                        got[place]
                    );
                }
            }
        }
    });
}

#[test]
fn nan_values_are_not_hidden() {
    at_every_level(|| {
        let shape = shape(true);
        let mut x = values(shape.elements(), 1);
        x[5] = f32::NAN;
        let mut y = vec![0.0; x.len()];
        let affine = Affine {
            gamma: &[1.0; 4],
            beta: &[0.0; 4],
        };
        shape.forward(&x, affine, None, &mut y);
        assert!(y[5].is_nan() && !y[40].is_nan());
    });
}

/// Returns the sums of the parts, added in order.
fn summed(parts: impl Iterator<Item = Vec<f64>>) -> Vec<f64> {
    parts
        .reduce(|mut sum, part| {
            sum.iter_mut()
                .zip(part)
                .for_each(|(sum, part)| *sum += part);
            sum
        })
        .unwrap()
}

/// Returns the output and the gradients of the input, the scale and the shift of a batch of five samples in parts, with
/// values around `middle`.
fn in_parts(counts: &[usize], middle: f32) -> [Vec<f32>; 4] {
    let parts: Vec<BatchNorm> = counts
        .iter()
        .map(|&samples| BatchNorm {
            samples,
            ..shape(false)
        })
        .collect();
    let n = 5 * 4 * 37;
    let x: Vec<f32> = values(n, 1).iter().map(|x| x + middle).collect();
    let (added, mut dy) = (values(n, 2), values(n, 3));
    let (gamma, beta) = (values(4, 4), values(4, 5));
    let affine = Affine {
        gamma: &gamma,
        beta: &beta,
    };
    let mut end = 0;
    let ranges: Vec<std::ops::Range<usize>> = parts
        .iter()
        .map(|part| {
            end += part.elements();
            end - part.elements()..end
        })
        .collect();
    let each = || parts.iter().zip(ranges.iter().cloned());
    let moments = summed(each().map(|(part, range)| part.moments(&x[range])));
    assert_eq!(moments[0], 5.0 * 37.0);
    let found = BatchStatistics::of_moments(&moments, 1e-5);
    let mut y = vec![0.0; n];
    for (part, range) in each() {
        let (x, added) = (&x[range.clone()], &added[range.clone()]);
        part.normalise(x, &found, affine, Some(added), &mut y[range]);
    }
    let own = each().map(|(part, range)| part.gradient_sums(&x[range.clone()], &dy[range], &found));
    let sums = summed(own);
    let (mut dgamma, mut dbeta) = (vec![0.0; 4], vec![0.0; 4]);
    parts[0].affine_gradients(&sums, &found, &mut dgamma, &mut dbeta);
    for (part, range) in each() {
        part.input_gradient(&x[range.clone()], &gamma, &found, &sums, &mut dy[range]);
    }
    [y, dy, dgamma, dbeta]
}

#[test]
fn parts_are_normalised_like_the_whole_batch() {
    at_every_level(|| {
        for middle in [0.0, 300.0] {
            let shape = BatchNorm {
                samples: 5,
                ..shape(false)
            };
            let n = shape.elements();
            let x: Vec<f32> = values(n, 1).iter().map(|x| x + middle).collect();
            let (added, dy) = (values(n, 2), values(n, 3));
            let (gamma, beta) = (values(4, 4), values(4, 5));
            let affine = Affine {
                gamma: &gamma,
                beta: &beta,
            };
            let mut whole = [vec![0.0; n], vec![0.0; n], vec![0.0; 4], vec![0.0; 4]];
            let [y, dx, dgamma, dbeta] = &mut whole;
            let statistics = shape.forward(&x, affine, Some(&added), y);
            let gradients = BatchNormGradients {
                input: dx,
                gamma: dgamma,
                beta: dbeta,
                added: None,
            };
            shape.backward(&x, y, &dy, &gamma, &statistics, gradients);
            // The mean is rounded to f32: half a unit of its last place moves every value by as much.
            let bound = 2e-6 + middle * 1e-6;
            for counts in [&[5][..], &[2, 3], &[1, 0, 4], &[1; 5]] {
                for (got, whole) in in_parts(counts, middle).iter().zip(&whole) {
                    let scale = whole.iter().fold(1.0_f32, |most, x| most.max(x.abs()));
                    for (got, whole) in got.iter().zip(whole) {
                        let error = (got - whole).abs() / scale;
                        assert!(error < bound, "{counts:?}: {got} for {whole}");
                    }
                }
            }
        }
    });
}

#[test]
fn known_statistics_are_used_as_they_are() {
    at_every_level(|| {
        let found = BatchStatistics::known(&[2.0], &[4.0 - 1e-5], 1e-5);
        let shape = BatchNorm {
            samples: 1,
            channels: 1,
            places: 3,
            epsilon: 1e-5,
            rectified: true,
        };
        let affine = Affine {
            gamma: &[3.0],
            beta: &[1.0],
        };
        let mut y = vec![0.0; 3];
        shape.normalise(&[2.0, 4.0, -2.0], &found, affine, None, &mut y);
        assert_eq!(y, [1.0, 4.0, 0.0]);
    });
}

/// Returns the sum of terms of a channel: lanes in f32, their sums and those of the samples in f64.
fn summed_in_order(shape: &BatchNorm, channel: usize, term: impl Fn(usize) -> f32) -> f64 {
    let mut total = 0.0;
    for run in shape.runs(channel) {
        let mut lanes = [0.0_f32; 32];
        for (place, at) in run.enumerate() {
            lanes[place % 32] += term(at);
        }
        total += lanes.iter().map(|lane| f64::from(*lane)).sum::<f64>();
    }
    total
}

#[test]
fn sums_have_one_order_for_every_shape() {
    at_every_level(|| {
        for (samples, channels, places) in [
            (1, 1, 1),
            (3, 5, 16),
            (9, 11, 37),
            (2, 8, 64),
            (5, 17, 100),
            (4, 3, 9_000),
        ] {
            let shape = BatchNorm {
                samples,
                channels,
                places,
                epsilon: 1e-5,
                rectified: true,
            };
            let n = shape.elements();
            let (x, dy) = (values(n, 1), values(n, 2));
            let (gamma, beta) = (values(channels, 3), values(channels, 4));
            let affine = Affine {
                gamma: &gamma,
                beta: &beta,
            };
            let mut y = vec![0.0; n];
            let found = shape.forward(&x, affine, None, &mut y);
            let (mut dx, mut dgamma) = (vec![0.0; n], vec![0.0; channels]);
            let mut dbeta = dgamma.clone();
            let gradients = BatchNormGradients {
                input: &mut dx,
                gamma: &mut dgamma,
                beta: &mut dbeta,
                added: None,
            };
            shape.backward(&x, &y, &dy, &gamma, &found, gradients);
            let count = (samples * places) as f64;
            for channel in 0..channels {
                let mean = (summed_in_order(&shape, channel, |at| x[at]) / count) as f32;
                let square = |at: usize| (x[at] - mean) * (x[at] - mean);
                let variance = summed_in_order(&shape, channel, square) / count;
                assert_eq!(
                    [found.mean[channel], found.variance[channel]],
                    [mean, variance as f32]
                );
                let open = |at: usize| if y[at] > 0.0 { dy[at] } else { 0.0 };
                let total = summed_in_order(&shape, channel, open);
                let along = summed_in_order(&shape, channel, |at| open(at) * (x[at] - mean));
                let inverse = f64::from(found.inverse[channel]);
                let expected = [total as f32, (along * inverse) as f32];
                assert_eq!([dbeta[channel], dgamma[channel]], expected);
            }
        }
    });
}

#[test]
fn moments_that_are_not_finite_have_no_variance() {
    let of = |sum: f64| BatchStatistics::of_moments(&[4.0, sum, f64::INFINITY], 1e-5);
    for sum in [f64::NAN, f64::INFINITY] {
        let found = of(sum);
        assert!(found.variance[0].is_nan() && found.inverse[0].is_nan());
    }
    let rounded = BatchStatistics::of_moments(&[2.0, 2.0, 1.999_999], 0.25);
    assert_eq!((rounded.variance[0], rounded.inverse[0]), (0.0, 2.0));
}
