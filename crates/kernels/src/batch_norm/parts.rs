//! Batch normalisation of a batch in parts: sums over the parts, and the normalisation of each part.
//!
//! Each part computes its [`BatchNorm::moments`]; their sum over all parts gives the statistics with which every
//! part is normalised. The backward pass does the same with [`BatchNorm::gradient_sums`]. The sums are f64.
//! Another division into parts therefore changes values only by rounding at 1e-16, and not at all if the sums are
//! added in the same order.

use super::{Affine, BatchNorm, BatchStatistics, ChannelGradient};
use crate::simd::{SimdKernel, SimdVector, Vectorised, dispatch, vectorised};

impl BatchStatistics {
    /// Returns the mean of each channel of `count` values from its sum; zero for no values.
    #[must_use]
    pub fn mean_of(totals: &[f64], count: usize) -> Vec<f32> {
        let mean = |total: &f64| (total / count.max(1) as f64) as f32;
        totals.iter().map(mean).collect()
    }

    /// Returns the statistics of `count` values per channel from their means and the sums of
    /// [`BatchNorm::squares`] over all parts.
    #[must_use]
    pub fn of_squares(mean: &[f32], squares: &[f64], count: usize, epsilon: f64) -> Self {
        let mut found = Self::default();
        for (mean, squares) in mean.iter().zip(squares) {
            found.push(*mean, squares / count.max(1) as f64, epsilon);
        }
        found
    }

    /// Computes the statistics from the summed [`BatchNorm::moments`] of all parts.
    ///
    /// # Panics
    /// Unless `sums` has the number of values and two sums per channel.
    #[must_use]
    pub fn of_moments(moments: &[f64], epsilon: f64) -> Self {
        let (count, moments) = split(moments);
        let channels = moments.len() / 2;
        let mut found = Self::default();
        for (sum, squares) in moments[..channels].iter().zip(&moments[channels..]) {
            let mean = sum / count;
            let variance = squares / count - mean * mean;
            // Rounding may lead below zero. NaN remains.
            let variance = if variance < 0.0 { 0.0 } else { variance };
            found.push(mean as f32, variance, epsilon);
        }
        found
    }

    /// Returns known statistics, such as running ones.
    #[must_use]
    pub fn known(mean: &[f32], variance: &[f32], epsilon: f64) -> Self {
        let mut found = Self::default();
        for (mean, variance) in mean.iter().zip(variance) {
            found.push(*mean, f64::from(*variance), epsilon);
        }
        found
    }
}

/// Splits off the leading number of values (at least one).
fn split(sums: &[f64]) -> (f64, &[f64]) {
    let (count, rest) = sums
        .split_first()
        .expect("the first element is the number of values");
    assert!(rest.len().is_multiple_of(2), "two sums for each channel");
    (count.max(1.0), rest)
}

impl BatchNorm {
    /// Returns the length of [`BatchNorm::moments`] and [`BatchNorm::gradient_sums`].
    #[must_use]
    pub fn sums_len(&self) -> usize {
        1 + 2 * self.channels
    }

    /// Returns the contribution of a part to the statistics: the number of values of a channel, then the sum of values of
    /// each channel, then the sum of squares of each channel. Takes two passes, because squares are summed about the
    /// part's own mean.
    ///
    /// # Panics
    /// If lengths do not match.
    #[must_use]
    pub fn moments(&self, x: &[f32]) -> Vec<f64> {
        assert_eq!(x.len(), self.elements(), "length of {self:?}");
        let mut all = vec![0.0; self.sums_len()];
        if !x.is_empty() {
            dispatch(ChannelMoments {
                shape: *self,
                x,
                all: &mut all,
            });
        }
        all
    }

    /// Returns the sum of each channel of a part.
    ///
    /// # Panics
    /// If lengths do not match.
    #[must_use]
    pub fn totals(&self, x: &[f32]) -> Vec<f64> {
        self.channel_sums(x, None)
    }

    /// Returns the sum of the squared deviations of each channel of a part from a mean.
    ///
    /// # Panics
    /// If lengths do not match.
    #[must_use]
    pub fn squares(&self, x: &[f32], mean: &[f32]) -> Vec<f64> {
        assert_eq!(mean.len(), self.channels, "means of {self:?}");
        self.channel_sums(x, Some(mean))
    }

    fn channel_sums(&self, x: &[f32], mean: Option<&[f32]>) -> Vec<f64> {
        assert_eq!(x.len(), self.elements(), "length of {self:?}");
        dispatch(PartSums {
            shape: *self,
            x,
            mean,
        })
    }

    /// Computes a part's output: `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta + added`, then the
    /// rectifier if it is enabled.
    ///
    /// # Panics
    /// If lengths do not match.
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
        vectorised(NormalisedPart {
            shape: *self,
            x,
            statistics,
            affine,
            added,
            y,
        });
    }

    /// Returns the contribution of a part to the backward pass, where `dy` is the gradient before the rectifier: the
    /// number of values, then the sum of `dy` of each channel, then the sum of `dy * (x - mean)` of each channel.
    ///
    /// # Panics
    /// If lengths do not match.
    #[must_use]
    pub fn gradient_sums(&self, x: &[f32], dy: &[f32], statistics: &BatchStatistics) -> Vec<f64> {
        assert!(
            [x.len(), dy.len()] == [self.elements(); 2] && statistics.mean.len() == self.channels,
            "lengths of {self:?}"
        );
        let mut all = vec![0.0; self.sums_len()];
        dispatch(ChannelGradientSums {
            shape: *self,
            x,
            dy,
            statistics,
            all: &mut all,
        });
        all
    }

    /// Computes the gradients of a part's scale and shift from the part's own [`BatchNorm::gradient_sums`].
    ///
    /// # Panics
    /// If lengths do not match.
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

    /// Converts the gradient of a part's output to the gradient of its input, in place, with the summed
    /// [`BatchNorm::gradient_sums`] of all parts.
    ///
    /// # Panics
    /// If lengths do not match.
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
        vectorised(BatchNormInputGradient {
            shape: *self,
            x,
            gamma,
            statistics,
            summed,
            dy,
        });
    }
}

/// The sums of channels, or of their squared deviations from a mean.
struct PartSums<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    mean: Option<&'a [f32]>,
}

impl SimdKernel for PartSums<'_> {
    type Output = Vec<f64>;

    #[inline(always)]
    fn run<V: SimdVector>(self) -> Vec<f64> {
        let mut found = vec![0.0; self.shape.channels];
        for channels in self.shape.blocks() {
            let sums = match self.mean {
                None => self.shape.totals_of::<V>(&channels, self.x),
                Some(mean) => {
                    let means = &mean[channels.clone()];
                    self.shape.squares_of::<V>(&channels, self.x, means)
                }
            };
            for (found, [sum]) in found[channels].iter_mut().zip(sums.sums) {
                *found = sum;
            }
        }
        found
    }
}

struct ChannelMoments<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    all: &'a mut [f64],
}

impl SimdKernel for ChannelMoments<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let shape = self.shape;
        let count = (shape.samples * shape.places) as f64;
        self.all[0] = count;
        let (of_values, of_squares) = self.all[1..].split_at_mut(shape.channels);
        for channels in shape.blocks() {
            let totals = shape.totals_of::<V>(&channels, self.x);
            let means = shape.means_of(&totals);
            let squares = shape.squares_of::<V>(&channels, self.x, &means);
            let sums = totals.sums.into_iter().zip(squares.sums).zip(means);
            for (channel, (([total], [squares]), mean)) in channels.zip(sums) {
                let mean = f64::from(mean);
                of_values[channel] = total;
                // The moments are about zero, so that parts with different means can be added.
                of_squares[channel] = squares + mean * (2.0 * total - count * mean);
            }
        }
    }
}

struct NormalisedPart<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    statistics: &'a BatchStatistics,
    affine: Affine<'a>,
    added: Option<&'a [f32]>,
    y: &'a mut [f32],
}

impl Vectorised for NormalisedPart<'_> {
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

struct ChannelGradientSums<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    dy: &'a [f32],
    statistics: &'a BatchStatistics,
    all: &'a mut [f64],
}

impl SimdKernel for ChannelGradientSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let shape = self.shape;
        self.all[0] = (shape.samples * shape.places) as f64;
        let (totals, along) = self.all[1..].split_at_mut(shape.channels);
        for channels in shape.blocks() {
            let means = &self.statistics.mean[channels.clone()];
            let found = shape.gradient_sums_of::<V>(&channels, self.x, self.dy, means);
            for (channel, sums) in channels.zip(found.sums) {
                [totals[channel], along[channel]] = sums;
            }
        }
    }
}

struct BatchNormInputGradient<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    gamma: &'a [f32],
    statistics: &'a BatchStatistics,
    summed: &'a [f64],
    dy: &'a mut [f32],
}

impl Vectorised for BatchNormInputGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (count, summed) = split(self.summed);
        let (totals, along) = summed.split_at(self.shape.channels);
        for channel in 0..self.shape.channels {
            let inverse = self.statistics.inverse[channel];
            let wide = f64::from(inverse);
            let turn = ChannelGradient {
                mean: self.statistics.mean[channel],
                scale: self.gamma[channel] * inverse,
                offset: (totals[channel] / count) as f32,
                slope: (along[channel] * wide * wide / count) as f32,
            };
            self.shape.turn_channel(channel, self.x, turn, self.dy);
        }
    }
}
