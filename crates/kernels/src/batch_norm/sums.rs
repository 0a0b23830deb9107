//! [`NormBlockSums`]: sums over the positions of channels, in a fixed order.
#![expect(unsafe_code, reason = "blocks of lanes are transposed in registers")]

use std::ops::Range;

use super::BatchNorm;
use crate::gemm::chunks;
use crate::simd::SimdVector;

/// The number of lanes in which the positions of a channel of one sample are summed.
const LANES: usize = 32;
/// The number of runs whose lanes are added at the same time: additions of one run wait for each other.
const RUNS: usize = 8;
/// The largest number of channels of a block.
pub(super) const CHANNELS_MAX: usize = 64;

/// The terms of a sum over the positions of channels. A closure could be compiled without the instructions of the kernel's
/// level.
pub(super) trait ChannelTerms<const T: usize> {
    /// Returns the lanes of the sums over a range of positions of a channel of the block.
    fn lanes(&self, channel: usize, run: Range<usize>) -> [[f32; LANES]; T];
}

/// The values.
pub(super) struct Values<'a>(pub(super) &'a [f32]);

impl ChannelTerms<1> for Values<'_> {
    #[inline(always)]
    fn lanes(&self, _channel: usize, run: Range<usize>) -> [[f32; LANES]; 1] {
        lanes_of_term(&self.0[run], |x| x)
    }
}

/// The squared deviations of values from the means of the block's channels.
pub(super) struct SquaredDeviations<'a> {
    pub(super) x: &'a [f32],
    pub(super) means: &'a [f32],
}

impl ChannelTerms<1> for SquaredDeviations<'_> {
    #[inline(always)]
    fn lanes(&self, channel: usize, run: Range<usize>) -> [[f32; LANES]; 1] {
        let mean = self.means[channel];
        lanes_of_term(&self.x[run], |x| (x - mean) * (x - mean))
    }
}

/// The gradients, and the gradients times the deviations from the means of the block's channels.
pub(super) struct GradientTerms<'a> {
    pub(super) x: &'a [f32],
    pub(super) dy: &'a [f32],
    pub(super) means: &'a [f32],
}

impl ChannelTerms<2> for GradientTerms<'_> {
    #[inline(always)]
    fn lanes(&self, channel: usize, run: Range<usize>) -> [[f32; LANES]; 2] {
        let mean = self.means[channel];
        lanes_of_terms(&self.dy[run.clone()], &self.x[run], |dy, x| {
            [dy, dy * (x - mean)]
        })
    }
}

/// The sums of `T` terms per element of each channel of a block; those after the last channel are zero.
pub(super) struct NormBlockSums<const T: usize> {
    pub(super) sums: [[f64; T]; CHANNELS_MAX],
}

/// Returns the sums of a term per element of a channel of one sample in lanes: lane `i` has the elements `i`, `i + 32` and
/// so on.
#[inline(always)]
fn lanes_of_term(values: &[f32], term: impl Fn(f32) -> f32) -> [[f32; LANES]; 1] {
    let mut lanes = [0.0_f32; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for values in whole {
        for lane in 0..LANES {
            lanes[lane] += term(values[lane]);
        }
    }
    for (sum, value) in lanes.iter_mut().zip(rest) {
        *sum += term(*value);
    }
    [lanes]
}

/// Returns the sums of two terms per element of two channels, as [`lanes_of_term`].
#[inline(always)]
fn lanes_of_terms(
    first: &[f32],
    second: &[f32],
    term: impl Fn(f32, f32) -> [f32; 2],
) -> [[f32; LANES]; 2] {
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
    lanes
}

impl<const T: usize> NormBlockSums<T> {
    /// Adds the sums of each channel of each sample, in the order of the samples.
    #[inline(always)]
    pub(super) fn add_runs<V: SimdVector>(
        shape: &BatchNorm,
        channels: &Range<usize>,
        terms: &impl ChannelTerms<T>,
    ) -> Self {
        let places = shape.places;
        assert!(channels.len() <= CHANNELS_MAX, "channels of a block");
        let mut found = Self {
            sums: [[0.0; T]; CHANNELS_MAX],
        };
        let mut lanes = [[[0.0; LANES]; RUNS]; T];
        let (mut owners, mut count) = ([0; RUNS], 0);
        for sample in 0..shape.samples {
            for (channel, position) in channels.clone().enumerate() {
                let at = (sample * shape.channels + position) * places;
                let of_run = terms.lanes(channel, at..at + places);
                for term in 0..T {
                    lanes[term][count] = of_run[term];
                }
                owners[count] = channel;
                count += 1;
                if count == RUNS {
                    found.add_lanes::<V>(&lanes, &owners, places);
                    count = 0;
                }
            }
        }
        found.add_lanes::<V>(&lanes, &owners[..count], places);
        found
    }

    /// Adds the lanes of some runs of `places` positions to the sums of their channels.
    #[inline(always)]
    fn add_lanes<V: SimdVector>(
        &mut self,
        lanes: &[[[f32; LANES]; RUNS]; T],
        owners: &[usize],
        places: usize,
    ) {
        for (term, lanes) in lanes.iter().enumerate() {
            let totals = sums_of_lanes::<V>(lanes, places.min(LANES));
            for (owner, total) in owners.iter().zip(totals) {
                self.sums[*owner][term] += total;
            }
        }
    }
}

/// Returns the sum of the first lanes of each run, in order. The other lanes are zero.
#[inline(always)]
fn sums_of_lanes<V: SimdVector>(lanes: &[[f32; LANES]; RUNS], used: usize) -> [f64; RUNS] {
    let mut turned = [[0.0_f32; RUNS]; LANES];
    for block in chunks(0..used, RUNS) {
        // SAFETY: 8 rows of 8 lanes from a multiple of 8 on, of 32; and as many rows of 8 runs.
        unsafe {
            let from = lanes.as_ptr().cast::<f32>().add(block.start);
            let to = turned.as_mut_ptr().cast::<f32>().add(block.start * RUNS);
            V::transpose(from, LANES, to, RUNS);
        }
    }
    let mut totals = [0.0; RUNS];
    for runs in &turned[..used] {
        for (total, lane) in totals.iter_mut().zip(runs) {
            *total += f64::from(*lane);
        }
    }
    totals
}
