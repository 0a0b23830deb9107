//! Normalisation of groups of channels of each sample.

use crate::batch_norm::Affine;
use crate::simd::{Vectorised, vectorised};

/// The number of partial sums.
const LANES: usize = 16;

/// The lengths of a group normalisation of `[samples, channels, places]`. Source: Wu and He, ECCV 2018, section 3.1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNorm {
    /// The number of samples.
    pub samples: usize,
    /// The number of channels.
    pub channels: usize,
    /// The number of elements of a channel of one sample.
    pub places: usize,
    /// The number of groups, which divides the number of channels.
    pub groups: usize,
    /// The number that is added to the variance.
    pub epsilon: f64,
}

impl GroupNorm {
    fn elements(&self) -> usize {
        self.samples * self.channels * self.places
    }

    /// Returns the numbers of channels and elements of a group.
    fn group(&self) -> [usize; 2] {
        let channels = self.channels / self.groups;
        [channels, channels * self.places]
    }

    fn check(&self, all: &[usize], channels: &[usize]) {
        assert!(
            self.groups > 0
                && self.channels.is_multiple_of(self.groups)
                && all.iter().all(|&length| length == self.elements())
                && channels.iter().all(|&length| length == self.channels),
            "lengths of {self:?}"
        );
    }

    /// Normalises each group to mean 0 and variance 1, then scales and shifts each channel. Returns the mean and the
    /// inverse deviation of each group of each sample.
    ///
    /// # Panics
    /// If lengths do not match.
    #[must_use]
    pub fn forward(&self, x: &[f32], affine: Affine<'_>, y: &mut [f32]) -> Vec<[f32; 2]> {
        self.check(
            &[x.len(), y.len()],
            &[affine.gamma.len(), affine.beta.len()],
        );
        vectorised(GroupNormForward {
            shape: *self,
            x,
            affine,
            y,
        })
    }

    /// Computes the gradients of the input, and of gamma and beta summed over samples. `statistics` are those that
    /// [`GroupNorm::forward`] returned.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn backward(
        &self,
        x: &[f32],
        gamma: &[f32],
        statistics: &[[f32; 2]],
        dy: &[f32],
        dx: &mut [f32],
        affine: [&mut [f32]; 2],
    ) {
        self.check(
            &[x.len(), dy.len(), dx.len()],
            &[gamma.len(), affine[0].len(), affine[1].len()],
        );
        assert_eq!(
            statistics.len(),
            self.samples * self.groups,
            "statistics of {self:?}"
        );
        vectorised(GroupNormBackward {
            shape: *self,
            x,
            gamma,
            statistics,
            dy,
            dx,
            affine,
        });
    }
}

/// Sums two terms of each pair of elements.
#[inline(always)]
fn sums(first: &[f32], second: &[f32], term: impl Fn(f32, f32) -> [f32; 2]) -> [f64; 2] {
    let mut lanes = [[0.0_f32; LANES]; 2];
    for (a, b) in first.chunks(LANES).zip(second.chunks(LANES)) {
        for (lane, (a, b)) in a.iter().zip(b).enumerate() {
            let [one, two] = term(*a, *b);
            lanes[0][lane] += one;
            lanes[1][lane] += two;
        }
    }
    lanes.map(|lanes| lanes.iter().map(|&lane| f64::from(lane)).sum())
}

struct GroupNormForward<'a> {
    shape: GroupNorm,
    x: &'a [f32],
    affine: Affine<'a>,
    y: &'a mut [f32],
}

impl Vectorised for GroupNormForward<'_> {
    type Output = Vec<[f32; 2]>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        let shape = self.shape;
        let [channels, elements] = shape.group();
        let mut statistics = Vec::with_capacity(shape.samples * shape.groups);
        let groups = self.x.chunks_exact(elements.max(1));
        for (index, (x, y)) in groups
            .zip(self.y.chunks_exact_mut(elements.max(1)))
            .enumerate()
        {
            let mean = (sums(x, x, |x, _| [x, 0.0])[0] / elements as f64) as f32;
            let squares = sums(x, x, |x, _| [(x - mean) * (x - mean), 0.0])[0];
            let inverse = (1.0 / (squares / elements as f64 + shape.epsilon).sqrt()) as f32;
            statistics.push([mean, inverse]);
            let first = index % shape.groups * channels;
            let places = x
                .chunks_exact(shape.places)
                .zip(y.chunks_exact_mut(shape.places));
            for (channel, (x, y)) in (first..).zip(places) {
                let scale = inverse * self.affine.gamma[channel];
                let shift = self.affine.beta[channel];
                for (y, x) in y.iter_mut().zip(x) {
                    *y = (x - mean) * scale + shift;
                }
            }
        }
        statistics
    }
}

struct GroupNormBackward<'a> {
    shape: GroupNorm,
    x: &'a [f32],
    gamma: &'a [f32],
    statistics: &'a [[f32; 2]],
    dy: &'a [f32],
    dx: &'a mut [f32],
    affine: [&'a mut [f32]; 2],
}

impl Vectorised for GroupNormBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let shape = self.shape;
        let [channels, elements] = shape.group();
        let mut of_affine = vec![[0.0_f64; 2]; shape.channels];
        for (index, [mean, inverse]) in self.statistics.iter().copied().enumerate() {
            let first = index % shape.groups * channels;
            let start = index * elements;
            let of = |channel: usize| {
                let start = start + (channel - first) * shape.places;
                start..start + shape.places
            };
            // The sums over the group of the scaled gradient, and of its product with the normalised input.
            let [mut total, mut along] = [0.0; 2];
            let affine = &mut of_affine[first..first + channels];
            for (channel, affine) in (first..).zip(affine) {
                let (x, dy) = (&self.x[of(channel)], &self.dy[of(channel)]);
                let [sum, product] = sums(dy, x, |dy, x| [dy, dy * (x - mean)]);
                let product = product * f64::from(inverse);
                affine[0] += product;
                affine[1] += sum;
                total += sum * f64::from(self.gamma[channel]);
                along += product * f64::from(self.gamma[channel]);
            }
            let offset = (total / elements as f64) as f32;
            let slope = (along * f64::from(inverse) / elements as f64) as f32;
            for channel in first..first + channels {
                let gamma = self.gamma[channel];
                let given = self.x[of(channel)].iter().zip(&self.dy[of(channel)]);
                for (dx, (x, dy)) in self.dx[of(channel)].iter_mut().zip(given) {
                    *dx = inverse * (dy * gamma - offset - (x - mean) * slope);
                }
            }
        }
        let [of_gamma, of_beta] = self.affine;
        for ((gamma, beta), found) in of_gamma.iter_mut().zip(of_beta).zip(of_affine) {
            (*gamma, *beta) = (found[0] as f32, found[1] as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_every_level, close, values};

    const SHAPE: GroupNorm = GroupNorm {
        samples: 2,
        channels: 6,
        places: 19,
        groups: 2,
        epsilon: 1e-5,
    };

    /// Returns the sum of the outputs times `dy`. `inputs` are x, gamma and beta.
    fn objective(inputs: &[Vec<f64>; 3], dy: &[f32]) -> f64 {
        let [channels, elements] = SHAPE.group();
        let mut sum = 0.0;
        let groups = inputs[0].chunks(elements).zip(dy.chunks(elements));
        for (index, (x, dy)) in groups.enumerate() {
            let mean = x.iter().sum::<f64>() / elements as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / elements as f64;
            let first = index % SHAPE.groups * channels;
            for (place, (x, dy)) in x.iter().zip(dy).enumerate() {
                let channel = first + place / SHAPE.places;
                let normal = (x - mean) / (variance + SHAPE.epsilon).sqrt();
                sum += (normal * inputs[1][channel] + inputs[2][channel]) * f64::from(*dy);
            }
        }
        sum
    }

    #[test]
    fn groups_and_their_gradients_fit_the_definition() {
        at_every_level(|| {
            let count = SHAPE.elements();
            let (x, dy) = (values(count, 1), values(count, 2));
            let (gamma, beta) = (values(6, 3), values(6, 4));
            let mut y = vec![f32::NAN; count];
            let affine = Affine {
                gamma: &gamma,
                beta: &beta,
            };
            let statistics = SHAPE.forward(&x, affine, &mut y);
            let mut dx = vec![f32::NAN; count];
            let (mut dgamma, mut dbeta) = ([f32::NAN; 6], [f32::NAN; 6]);
            let affine = [&mut dgamma[..], &mut dbeta];
            SHAPE.backward(&x, &gamma, &statistics, &dy, &mut dx, affine);

            let wide = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            let inputs = [wide(&x), wide(&gamma), wide(&beta)];
            let products = y.iter().zip(&dy);
            let total: f64 = products.map(|(y, dy)| f64::from(*y) * f64::from(*dy)).sum();
            assert!((total - objective(&inputs, &dy)).abs() < 1e-4);
            for (which, got) in [&dx[..], &dgamma, &dbeta].into_iter().enumerate() {
                for (place, &got) in got.iter().enumerate() {
                    let moved = |by: f64| {
                        let mut inputs = inputs.clone();
                        inputs[which][place] += by;
                        objective(&inputs, &dy)
                    };
                    close(got, (moved(1e-6) - moved(-1e-6)) / 2e-6, 1e-5);
                }
            }
        });
    }
}
