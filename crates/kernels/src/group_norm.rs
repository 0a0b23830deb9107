//! Normalisation of groups of channels of each sample.

use crate::Affine;
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
