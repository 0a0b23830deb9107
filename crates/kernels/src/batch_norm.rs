//! Batch normalisation of `[samples, channels, places]`, with the addition and the rectifier after it.
//!
//! One channel after the other, so that all passes over it but the first find it in the cache. Sums
//! are f32 in 32 lanes over the places of one sample, then f64 over samples: the same order at every
//! level.

use crate::simd::{Kernel, Vector, dispatch};

const LANES: usize = 32;

/// The lengths of a normalisation, and what is added to a variance before its root.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNorm {
    /// Samples.
    pub samples: usize,
    /// Channels.
    pub channels: usize,
    /// Places of a channel: height times width.
    pub places: usize,
    /// Added to the variance.
    pub epsilon: f64,
    /// Whether negative outputs become zero.
    pub rectified: bool,
}

/// What forward found in a batch, per channel.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BatchStatistics {
    /// Mean.
    pub mean: Vec<f32>,
    /// Mean squared deviation, not corrected.
    pub variance: Vec<f32>,
    /// `1 / sqrt(variance + epsilon)`.
    pub inverse: Vec<f32>,
}

/// Scale and shift per channel.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a> {
    /// Scale.
    pub gamma: &'a [f32],
    /// Shift.
    pub beta: &'a [f32],
}

/// Gradients that backward writes.
#[derive(Debug)]
pub struct BatchNormGradients<'a> {
    /// Of the input.
    pub input: &'a mut [f32],
    /// Of the scale.
    pub gamma: &'a mut [f32],
    /// Of the shift.
    pub beta: &'a mut [f32],
    /// Of what was added, if anything was and it is wanted.
    pub added: Option<&'a mut [f32]>,
}

impl BatchNorm {
    fn elements(&self) -> usize {
        self.samples * self.channels * self.places
    }

    /// `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta + added`, then the rectifier. Batch
    /// statistics; five passes over a channel, two of them in the cache.
    ///
    /// # Panics
    /// When lengths do not fit.
    pub fn forward(
        &self,
        x: &[f32],
        affine: Affine<'_>,
        added: Option<&[f32]>,
        y: &mut [f32],
    ) -> BatchStatistics {
        assert!(
            x.len() == self.elements()
                && y.len() == x.len()
                && added.is_none_or(|added| added.len() == x.len())
                && affine.gamma.len() == self.channels
                && affine.beta.len() == self.channels,
            "lengths of {self:?}"
        );
        dispatch(Forward {
            shape: *self,
            x,
            affine,
            added,
            y,
        })
    }

    /// Gradients from that of the output, `dy`. `y` is what forward gave: it says where the rectifier
    /// was closed.
    ///
    /// # Panics
    /// When lengths do not fit.
    pub fn backward(
        &self,
        x: &[f32],
        y: &[f32],
        dy: &[f32],
        gamma: &[f32],
        statistics: &BatchStatistics,
        gradients: BatchNormGradients<'_>,
    ) {
        let elements = self.elements();
        let added = gradients.added.as_ref();
        assert!(
            [x.len(), y.len(), dy.len(), gradients.input.len()] == [elements; 4]
                && added.is_none_or(|added| added.len() == elements)
                && [gamma.len(), gradients.gamma.len(), gradients.beta.len()] == [self.channels; 3]
                && statistics.mean.len() == self.channels
                && statistics.inverse.len() == self.channels,
            "lengths of {self:?}"
        );
        dispatch(Backward {
            shape: *self,
            x,
            y,
            dy,
            gamma,
            statistics,
            gradients,
        });
    }

    /// Where a channel of each sample lies.
    #[inline(always)]
    fn runs(self, channel: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..self.samples).map(move |sample| {
            let at = (sample * self.channels + channel) * self.places;
            at..at + self.places
        })
    }
}

/// Sums of two terms per element, in a fixed order.
#[inline(always)]
fn sums(first: &[f32], second: &[f32], term: impl Fn(f32, f32) -> [f32; 2]) -> [f64; 2] {
    let mut lanes = [[0.0_f32; LANES]; 2];
    let (a, a_rest) = first.as_chunks::<LANES>();
    let (b, b_rest) = second.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            let [one, two] = term(a[lane], b[lane]);
            lanes[0][lane] += one;
            lanes[1][lane] += two;
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        let [one, two] = term(*a, *b);
        lanes[0][lane] += one;
        lanes[1][lane] += two;
    }
    lanes.map(|lanes| lanes.iter().map(|&lane| f64::from(lane)).sum())
}

struct Forward<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    affine: Affine<'a>,
    added: Option<&'a [f32]>,
    y: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = BatchStatistics;

    #[inline(always)]
    fn run<V: Vector>(self) -> BatchStatistics {
        let shape = self.shape;
        let count = (shape.samples * shape.places) as f64;
        let floor = if shape.rectified {
            0.0
        } else {
            f32::NEG_INFINITY
        };
        let mut found = BatchStatistics::default();
        for channel in 0..shape.channels {
            let mut total = 0.0;
            for run in shape.runs(channel) {
                let x = &self.x[run];
                total += sums(x, x, |x, _| [x, 0.0])[0];
            }
            let mean = (total / count) as f32;
            let mut squares = 0.0;
            for run in shape.runs(channel) {
                let x = &self.x[run];
                squares += sums(x, x, |x, _| [(x - mean) * (x - mean), 0.0])[0];
            }
            let variance = squares / count;
            let inverse = (1.0 / (variance + shape.epsilon).sqrt()) as f32;
            let scale = inverse * self.affine.gamma[channel];
            let shift = self.affine.beta[channel];
            for run in shape.runs(channel) {
                let (x, y) = (&self.x[run.clone()], &mut self.y[run.clone()]);
                match self.added {
                    Some(added) => {
                        for ((y, x), added) in y.iter_mut().zip(x).zip(&added[run]) {
                            let value = (x - mean) * scale + shift + added;
                            *y = if value > floor {
                                value
                            } else {
                                rectified(value, floor)
                            };
                        }
                    }
                    None => {
                        for (y, x) in y.iter_mut().zip(x) {
                            let value = (x - mean) * scale + shift;
                            *y = if value > floor {
                                value
                            } else {
                                rectified(value, floor)
                            };
                        }
                    }
                }
            }
            found.mean.push(mean);
            found.variance.push(variance as f32);
            found.inverse.push(inverse);
        }
        found
    }
}

/// What is not above the floor: the floor, but a NaN stays one, so that it shows.
#[inline(always)]
fn rectified(value: f32, floor: f32) -> f32 {
    if value.is_nan() { value } else { floor }
}

struct Backward<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    y: &'a [f32],
    dy: &'a [f32],
    gamma: &'a [f32],
    statistics: &'a BatchStatistics,
    gradients: BatchNormGradients<'a>,
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let shape = self.shape;
        let count = (shape.samples * shape.places) as f64;
        for channel in 0..shape.channels {
            let (mean, inverse) = (
                self.statistics.mean[channel],
                self.statistics.inverse[channel],
            );
            let [mut total, mut along] = [0.0, 0.0];
            for run in shape.runs(channel) {
                let (x, input) = (&self.x[run.clone()], &mut self.gradients.input[run.clone()]);
                // The gradient behind the rectifier is kept where that of the input will be.
                if shape.rectified {
                    let open = self.y[run.clone()].iter().zip(&self.dy[run.clone()]);
                    for (to, (y, dy)) in input.iter_mut().zip(open) {
                        *to = if *y > 0.0 { *dy } else { 0.0 };
                    }
                } else {
                    input.copy_from_slice(&self.dy[run.clone()]);
                }
                if let Some(added) = self.gradients.added.as_deref_mut() {
                    added[run].copy_from_slice(input);
                }
                let found = sums(input, x, |dy, x| [dy, dy * (x - mean)]);
                total += found[0];
                along += found[1];
            }
            self.gradients.beta[channel] = total as f32;
            self.gradients.gamma[channel] = (along * f64::from(inverse)) as f32;
            let scale = self.gamma[channel] * inverse;
            let offset = (total / count) as f32;
            let slope = (along * f64::from(inverse) * f64::from(inverse) / count) as f32;
            for run in shape.runs(channel) {
                let (x, input) = (&self.x[run.clone()], &mut self.gradients.input[run]);
                for (to, x) in input.iter_mut().zip(x) {
                    *to = scale * (*to - offset - (x - mean) * slope);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::values;

    fn shape(rectified: bool) -> BatchNorm {
        BatchNorm {
            samples: 3,
            channels: 4,
            places: 37,
            epsilon: 1e-5,
            rectified,
        }
    }

    /// In f64, straight from the definition: the sum of `y * weight`.
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
    }

    #[test]
    fn a_value_that_is_not_a_number_shows() {
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
    }
}
