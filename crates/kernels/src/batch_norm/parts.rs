//! Batch normalisation of a batch that comes in parts: what the parts add up, and each part by the sum.
//!
//! A part gives its [`BatchNorm::moments`]; their sum over all parts makes the statistics that every part
//! is normalised by. Backward does the same with [`BatchNorm::gradient_sums`]. The sums are f64, so that
//! a batch cut otherwise gives the same values but for rounding at 1e-16, and the same bits where the
//! sums are added in one order.

use super::{Affine, BatchNorm, BatchStatistics, Turn, sums};
use crate::simd::{Vectorised, vectorised};

impl BatchStatistics {
    /// From the summed [`BatchNorm::moments`] of all parts.
    ///
    /// # Panics
    /// When there are not two sums a channel and the count.
    #[must_use]
    pub fn of_moments(moments: &[f64], epsilon: f64) -> Self {
        let (count, moments) = split(moments);
        let channels = moments.len() / 2;
        let mut found = Self::default();
        for (sum, squares) in moments[..channels].iter().zip(&moments[channels..]) {
            let mean = sum / count;
            found.push(
                mean as f32,
                (squares / count - mean * mean).max(0.0),
                epsilon,
            );
        }
        found
    }

    /// Statistics that are known: running ones.
    #[must_use]
    pub fn known(mean: &[f32], variance: &[f32], epsilon: f64) -> Self {
        let mut found = Self::default();
        for (mean, variance) in mean.iter().zip(variance) {
            found.push(*mean, f64::from(*variance), epsilon);
        }
        found
    }
}

/// The count that comes first (one where it is none), and the rest.
fn split(sums: &[f64]) -> (f64, &[f64]) {
    let (count, rest) = sums.split_first().expect("a count comes first");
    assert!(rest.len().is_multiple_of(2), "two sums for each channel");
    (count.max(1.0), rest)
}

impl BatchNorm {
    /// Length of [`BatchNorm::moments`] and [`BatchNorm::gradient_sums`].
    #[must_use]
    pub fn sums_len(&self) -> usize {
        1 + 2 * self.channels
    }

    /// What a part adds to the statistics: the count of values of a channel, then for each channel their
    /// sum, then for each the sum of their squares. Two passes, as squares are summed about the part's own
    /// mean.
    ///
    /// # Panics
    /// When lengths do not fit.
    #[must_use]
    pub fn moments(&self, x: &[f32]) -> Vec<f64> {
        assert_eq!(x.len(), self.elements(), "length of {self:?}");
        let mut all = vec![0.0; self.sums_len()];
        if !x.is_empty() {
            vectorised(Moments {
                shape: *self,
                x,
                all: &mut all,
            });
        }
        all
    }

    /// A part's output: `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta + added`, then the
    /// rectifier if the shape says so.
    ///
    /// # Panics
    /// When lengths do not fit.
    pub fn normalise(
        &self,
        x: &[f32],
        statistics: &BatchStatistics,
        affine: Affine<'_>,
        added: Option<&[f32]>,
        y: &mut [f32],
    ) {
        assert!(
            [x.len(), y.len()] == [self.elements(); 2]
                && added.is_none_or(|added| added.len() == x.len())
                && statistics.mean.len() == self.channels
                && [affine.gamma.len(), affine.beta.len()] == [self.channels; 2],
            "lengths of {self:?}"
        );
        vectorised(Normalise {
            shape: *self,
            x,
            statistics,
            affine,
            added,
            y,
        });
    }

    /// What a part adds to backward, `dy` being the gradient before the rectifier: the count again, then
    /// for each channel the sum of `dy`, then for each that of `dy * (x - mean)`.
    ///
    /// # Panics
    /// When lengths do not fit.
    #[must_use]
    pub fn gradient_sums(&self, x: &[f32], dy: &[f32], statistics: &BatchStatistics) -> Vec<f64> {
        assert!(
            [x.len(), dy.len()] == [self.elements(); 2] && statistics.mean.len() == self.channels,
            "lengths of {self:?}"
        );
        let mut all = vec![0.0; self.sums_len()];
        vectorised(GradientSums {
            shape: *self,
            x,
            dy,
            statistics,
            all: &mut all,
        });
        all
    }

    /// Gradients of a part's scale and shift, from the part's own [`BatchNorm::gradient_sums`].
    ///
    /// # Panics
    /// When lengths do not fit.
    pub fn affine_gradients(
        &self,
        own: &[f64],
        statistics: &BatchStatistics,
        gamma: &mut [f32],
        beta: &mut [f32],
    ) {
        let (_, own) = split(own);
        let (totals, along) = own.split_at(self.channels);
        for (beta, total) in beta.iter_mut().zip(totals) {
            *beta = *total as f32;
        }
        for ((gamma, along), inverse) in gamma.iter_mut().zip(along).zip(&statistics.inverse) {
            *gamma = (along * f64::from(*inverse)) as f32;
        }
    }

    /// Turns the gradient of a part's output into that of its input, in place, by the
    /// [`BatchNorm::gradient_sums`] of all parts together.
    ///
    /// # Panics
    /// When lengths do not fit.
    pub fn input_gradient(
        &self,
        x: &[f32],
        gamma: &[f32],
        statistics: &BatchStatistics,
        summed: &[f64],
        dy: &mut [f32],
    ) {
        assert!(
            [x.len(), dy.len()] == [self.elements(); 2]
                && [gamma.len(), statistics.mean.len()] == [self.channels; 2]
                && summed.len() == self.sums_len(),
            "lengths of {self:?}"
        );
        vectorised(InputGradient {
            shape: *self,
            x,
            gamma,
            statistics,
            summed,
            dy,
        });
    }
}

struct Moments<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    all: &'a mut [f64],
}

impl Vectorised for Moments<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let channels = self.shape.channels;
        let count = (self.shape.samples * self.shape.places) as f64;
        self.all[0] = count;
        for channel in 0..channels {
            let (total, mean, squares) = self.shape.moments_of(channel, self.x);
            let mean = f64::from(mean);
            self.all[1 + channel] = total;
            // About zero, so that parts with other means can be added.
            self.all[1 + channels + channel] = squares + mean * (2.0 * total - count * mean);
        }
    }
}

struct Normalise<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    statistics: &'a BatchStatistics,
    affine: Affine<'a>,
    added: Option<&'a [f32]>,
    y: &'a mut [f32],
}

impl Vectorised for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for channel in 0..self.shape.channels {
            let affine = self.statistics.applied(channel, self.affine);
            self.shape
                .normalise_channel(channel, self.x, affine, self.added, self.y);
        }
    }
}

struct GradientSums<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    dy: &'a [f32],
    statistics: &'a BatchStatistics,
    all: &'a mut [f64],
}

impl Vectorised for GradientSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let channels = self.shape.channels;
        self.all[0] = (self.shape.samples * self.shape.places) as f64;
        for channel in 0..channels {
            let mean = self.statistics.mean[channel];
            for run in self.shape.runs(channel) {
                let (x, dy) = (&self.x[run.clone()], &self.dy[run]);
                let [total, along] = sums(dy, x, |dy, x| [dy, dy * (x - mean)]);
                self.all[1 + channel] += total;
                self.all[1 + channels + channel] += along;
            }
        }
    }
}

struct InputGradient<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    gamma: &'a [f32],
    statistics: &'a BatchStatistics,
    summed: &'a [f64],
    dy: &'a mut [f32],
}

impl Vectorised for InputGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (count, summed) = split(self.summed);
        let (totals, along) = summed.split_at(self.shape.channels);
        for channel in 0..self.shape.channels {
            let inverse = self.statistics.inverse[channel];
            let wide = f64::from(inverse);
            let turn = Turn {
                mean: self.statistics.mean[channel],
                scale: self.gamma[channel] * inverse,
                offset: (totals[channel] / count) as f32,
                slope: (along[channel] * wide * wide / count) as f32,
            };
            self.shape.turn_channel(channel, self.x, turn, self.dy);
        }
    }
}
