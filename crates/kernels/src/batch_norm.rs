//! Batch normalisation of `[samples, channels, positions]`, including a following addition and rectifier.
//!
//! A few channels are processed together, so that all passes except the first find them in the cache, and neighbouring
//! channels of a sample are read together. Sums are f32 in 32 lanes over the positions of one sample, then f64 over lanes
//! and samples: the same order at every level.

mod parts;
mod sums;

use std::ops::Range;

use crate::gemm::chunks;
use crate::simd::{SimdKernel, SimdVector, dispatch};

use sums::{CHANNELS_MAX, GradientTerms, NormBlockSums, SquaredDeviations, Values};

/// The number of values of a block of channels, so that it stays in the second-level cache.
const BLOCK_VALUES: usize = 1 << 15;

/// The lengths and the settings of a normalisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNorm {
    /// The number of samples.
    pub samples: usize,
    /// The number of channels.
    pub channels: usize,
    /// The number of positions of a channel: height times width.
    pub places: usize,
    /// The constant that is added to the variance.
    pub epsilon: f64,
    /// Whether negative outputs become zero.
    pub rectified: bool,
}

/// The statistics of a batch per channel, computed by the forward pass.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BatchStatistics {
    /// The mean.
    pub mean: Vec<f32>,
    /// The mean squared deviation, without Bessel's correction.
    pub variance: Vec<f32>,
    /// `1 / sqrt(variance + epsilon)`.
    pub inverse: Vec<f32>,
}

impl BatchStatistics {
    fn push(&mut self, mean: f32, variance: f64, epsilon: f64) {
        self.mean.push(mean);
        self.variance.push(variance as f32);
        self.inverse
            .push((1.0 / (variance + epsilon).sqrt()) as f32);
    }

    /// Returns the mean, the scale and the shift of a channel.
    fn applied(&self, channel: usize, affine: Affine<'_>) -> [f32; 3] {
        let scale = self.inverse[channel] * affine.gamma[channel];
        [self.mean[channel], scale, affine.beta[channel]]
    }
}

/// The coefficients of a channel's input gradient: `scale * (dy - offset - (x - mean) * slope)`.
#[derive(Clone, Copy)]
struct ChannelGradient {
    mean: f32,
    scale: f32,
    offset: f32,
    slope: f32,
}

/// The scale and the shift per channel.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a> {
    /// The scale.
    pub gamma: &'a [f32],
    /// The shift.
    pub beta: &'a [f32],
}

/// The gradients that the backward pass writes.
#[derive(Debug)]
pub struct BatchNormGradients<'a> {
    /// The gradient of the input.
    pub input: &'a mut [f32],
    /// The gradient of the scale.
    pub gamma: &'a mut [f32],
    /// The gradient of the shift.
    pub beta: &'a mut [f32],
    /// The gradient of the added operand, if there is one and it is needed.
    pub added: Option<&'a mut [f32]>,
}

impl BatchNorm {
    fn elements(&self) -> usize {
        self.samples * self.channels * self.places
    }

    /// Returns the number of values of a channel, at least 1: the mean and the variance of no values are zero.
    fn count(&self) -> f64 {
        (self.samples * self.places).max(1) as f64
    }

    /// Computes `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta + added`, then the rectifier, with batch
    /// statistics. Cost: five passes over a channel, two of them in the cache.
    ///
    /// # Panics
    /// If lengths do not match.
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
        dispatch(BatchNormForward {
            shape: *self,
            x,
            affine,
            added,
            y,
        })
    }

    /// Computes the gradients from the output's gradient `dy`. `y` is the output of the forward pass, which shows where
    /// the rectifier set values to zero.
    ///
    /// # Panics
    /// If lengths do not match.
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
        dispatch(BatchNormBackward {
            shape: *self,
            x,
            y,
            dy,
            gamma,
            statistics,
            gradients,
        });
    }

    /// Divides the channels into blocks that are processed together.
    #[inline(always)]
    fn blocks(self) -> impl Iterator<Item = Range<usize>> {
        let values = (self.samples * self.places).max(1);
        let channels = (BLOCK_VALUES / values).clamp(1, CHANNELS_MAX);
        chunks(0..self.channels, channels)
    }

    /// Returns the sums of some channels.
    #[inline(always)]
    fn totals_of<V: SimdVector>(self, channels: &Range<usize>, x: &[f32]) -> NormBlockSums<1> {
        NormBlockSums::add_runs::<V>(&self, channels, &Values(x))
    }

    /// Returns the sums of the squared deviations of some channels from their means.
    #[inline(always)]
    fn squares_of<V: SimdVector>(
        self,
        channels: &Range<usize>,
        x: &[f32],
        means: &[f32],
    ) -> NormBlockSums<1> {
        NormBlockSums::add_runs::<V>(&self, channels, &SquaredDeviations { x, means })
    }

    /// Returns the sums of the gradients, and of the gradients times the deviations from the means, of some channels.
    #[inline(always)]
    fn gradient_sums_of<V: SimdVector>(
        self,
        channels: &Range<usize>,
        x: &[f32],
        dy: &[f32],
        means: &[f32],
    ) -> NormBlockSums<2> {
        NormBlockSums::add_runs::<V>(&self, channels, &GradientTerms { x, dy, means })
    }

    /// Returns the means of some channels from their sums.
    #[inline(always)]
    fn means_of(self, totals: &NormBlockSums<1>) -> [f32; CHANNELS_MAX] {
        let count = self.count();
        totals.sums.map(|[total]| (total / count) as f32)
    }

    /// Writes a channel of the output.
    #[inline(always)]
    fn normalise_channel(
        self,
        channel: usize,
        x: &[f32],
        [mean, scale, shift]: [f32; 3],
        added: Option<&[f32]>,
        y: &mut [f32],
    ) {
        let floor = if self.rectified {
            0.0
        } else {
            f32::NEG_INFINITY
        };
        let above = |value: f32| {
            if value > floor {
                value
            } else {
                rectified(value, floor)
            }
        };
        for run in self.runs(channel) {
            let (x, y) = (&x[run.clone()], &mut y[run.clone()]);
            match added {
                Some(added) => {
                    for ((y, x), added) in y.iter_mut().zip(x).zip(&added[run]) {
                        *y = above((x - mean) * scale + shift + added);
                    }
                }
                None => {
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = above((x - mean) * scale + shift);
                    }
                }
            }
        }
    }

    /// Converts a channel of the output's gradient to the input's gradient, in place.
    #[inline(always)]
    fn turn_channel(self, channel: usize, x: &[f32], turn: ChannelGradient, gradient: &mut [f32]) {
        let ChannelGradient {
            mean,
            scale,
            offset,
            slope,
        } = turn;
        for run in self.runs(channel) {
            for (to, x) in gradient[run.clone()].iter_mut().zip(&x[run]) {
                *to = scale * (*to - offset - (x - mean) * slope);
            }
        }
    }

    /// Returns the ranges of a channel in all samples.
    #[inline(always)]
    fn runs(self, channel: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..self.samples).map(move |sample| {
            let at = (sample * self.channels + channel) * self.places;
            at..at + self.places
        })
    }
}

struct BatchNormForward<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    affine: Affine<'a>,
    added: Option<&'a [f32]>,
    y: &'a mut [f32],
}

impl SimdKernel for BatchNormForward<'_> {
    type Output = BatchStatistics;

    #[inline(always)]
    fn run<V: SimdVector>(self) -> BatchStatistics {
        let shape = self.shape;
        let count = shape.count();
        let mut found = BatchStatistics::default();
        for channels in shape.blocks() {
            let means = shape.means_of(&shape.totals_of::<V>(&channels, self.x));
            let squares = shape.squares_of::<V>(&channels, self.x, &means);
            for (mean, [squares]) in means.iter().zip(squares.sums).take(channels.len()) {
                found.push(*mean, squares / count, shape.epsilon);
            }
            for channel in channels {
                let affine = found.applied(channel, self.affine);
                shape.normalise_channel(channel, self.x, affine, self.added, self.y);
            }
        }
        found
    }
}

/// Returns the maximum of a value and the floor. NaN remains NaN, so that it is noticed.
#[inline(always)]
fn rectified(value: f32, floor: f32) -> f32 {
    if value.is_nan() { value } else { floor }
}

struct BatchNormBackward<'a> {
    shape: BatchNorm,
    x: &'a [f32],
    y: &'a [f32],
    dy: &'a [f32],
    gamma: &'a [f32],
    statistics: &'a BatchStatistics,
    gradients: BatchNormGradients<'a>,
}

impl SimdKernel for BatchNormBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(mut self) {
        let shape = self.shape;
        let count = shape.count();
        for channels in shape.blocks() {
            for channel in channels.clone() {
                self.open_channel(channel);
            }
            let means = &self.statistics.mean[channels.clone()];
            let dy = &*self.gradients.input;
            let sums = shape.gradient_sums_of::<V>(&channels, self.x, dy, means);
            for (channel, [total, along]) in channels.zip(sums.sums) {
                let inverse = self.statistics.inverse[channel];
                self.gradients.beta[channel] = total as f32;
                self.gradients.gamma[channel] = (along * f64::from(inverse)) as f32;
                let turn = ChannelGradient {
                    mean: self.statistics.mean[channel],
                    scale: self.gamma[channel] * inverse,
                    offset: (total / count) as f32,
                    slope: (along * f64::from(inverse) * f64::from(inverse) / count) as f32,
                };
                shape.turn_channel(channel, self.x, turn, self.gradients.input);
            }
        }
    }
}

impl BatchNormBackward<'_> {
    /// Stores the gradient of a channel before the rectifier in the memory of the input's gradient.
    #[inline(always)]
    fn open_channel(&mut self, channel: usize) {
        for run in self.shape.runs(channel) {
            let input = &mut self.gradients.input[run.clone()];
            if self.shape.rectified {
                let open = self.y[run.clone()].iter().zip(&self.dy[run.clone()]);
                for (to, (y, dy)) in input.iter_mut().zip(open) {
                    *to = if *y <= 0.0 { 0.0 } else { *dy };
                }
            } else {
                input.copy_from_slice(&self.dy[run.clone()]);
            }
            if let Some(added) = self.gradients.added.as_deref_mut() {
                added[run].copy_from_slice(input);
            }
        }
    }
}

#[cfg(test)]
mod tests;
