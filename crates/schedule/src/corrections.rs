//! [`Corrections`]: ratios of the measured times of algorithms to the predictions of a model.
//!
//! Algorithms with similar counts may still differ in time, for reasons that the counts do not include: the
//! scheduling of ranks that share cores, cache contents, wake-up order. Corrections store the measured times, as
//! multiples of the predicted times, for several operand lengths.

use std::array;

use crate::algorithm::Algorithm;
use crate::cost_sample::CostSample;

/// The operand sizes in bytes at which times are compared. Corrections between two sizes are interpolated, except
/// towards the last one: from about there on, operands are processed in blocks and do not stay in a cache, so
/// shorter operands do not predict longer ones.
pub const CORRECTED_BYTES: [usize; 6] = [128, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// The number of words of encoded corrections.
pub(crate) const WORDS: usize = CORRECTED_BYTES.len() * Algorithm::ALL.len();
/// The limit of a correction in both directions, because a single measured time may be an outlier.
const MOST: f64 = 3.0;

/// The measured time of one algorithm for one operand size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The size of an operand in bytes.
    pub bytes: usize,
    /// The counts and the measured time.
    pub sample: CostSample,
}

/// The factors on predicted times, by algorithm in the order of [`Algorithm::ALL`] and by length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Corrections([[f64; CORRECTED_BYTES.len()]; Algorithm::ALL.len()]);

impl Default for Corrections {
    fn default() -> Self {
        Self([[1.0; CORRECTED_BYTES.len()]; Algorithm::ALL.len()])
    }
}

impl Corrections {
    /// Computes corrections from measured times and the model's predictions (`predict`). An algorithm without a time at
    /// a length gets the mean of the other algorithms; if there is none, the correction of the previous length.
    pub(crate) fn of(timings: &[Timing], predict: impl Fn(&CostSample) -> f64) -> Self {
        let mut found = Self::default();
        let mut means = [1.0; CORRECTED_BYTES.len()];
        let mut ratios = [[None; CORRECTED_BYTES.len()]; Algorithm::ALL.len()];
        for timing in timings {
            let level = CORRECTED_BYTES.iter().position(|b| *b == timing.bytes);
            let ratio = timing.sample.seconds / predict(&timing.sample);
            if let Some(level) = level
                && ratio.is_finite()
                && ratio > 0.0
            {
                ratios[index(timing.algorithm)][level] = Some(ratio.clamp(1.0 / MOST, MOST));
            }
        }
        for level in 0..CORRECTED_BYTES.len() {
            let known: Vec<f64> = ratios.iter().filter_map(|of| of[level]).collect();
            means[level] = match known.len() {
                0 if level > 0 => means[level - 1],
                0 => 1.0,
                count => known.iter().sum::<f64>() / count as f64,
            };
            for (of, known) in found.0.iter_mut().zip(&ratios) {
                of[level] = known[level].unwrap_or(means[level]);
            }
        }
        found
    }

    /// Returns the factor on the predicted time of an algorithm for operands of `bytes` bytes.
    pub(crate) fn at(&self, algorithm: Algorithm, bytes: usize) -> f64 {
        let of = &self.0[index(algorithm)];
        let above = CORRECTED_BYTES.iter().position(|at| *at >= bytes);
        let Some(above) = above else {
            return of[CORRECTED_BYTES.len() - 1];
        };
        let Some(below) = above.checked_sub(1) else {
            return of[0];
        };
        if above == CORRECTED_BYTES.len() - 1 && bytes < CORRECTED_BYTES[above] {
            return of[below];
        }
        let (from, to) = (CORRECTED_BYTES[below], CORRECTED_BYTES[above]);
        let part = (bytes - from) as f64 / (to - from) as f64;
        of[below] + part * (of[above] - of[below])
    }

    pub(crate) fn to_words(self) -> [u64; WORDS] {
        array::from_fn(|word| {
            self.0[word / CORRECTED_BYTES.len()][word % CORRECTED_BYTES.len()].to_bits()
        })
    }

    /// Decodes corrections; `None` if a word is not a positive number.
    pub(crate) fn from_words(words: &[u64; WORDS]) -> Option<Self> {
        let number = |algorithm: usize, level: usize| {
            f64::from_bits(words[algorithm * CORRECTED_BYTES.len() + level])
        };
        let found = Self(array::from_fn(|algorithm| {
            array::from_fn(|level| number(algorithm, level))
        }));
        let is_good = |ratio: &f64| ratio.is_finite() && *ratio > 0.0;
        found.0.iter().flatten().all(is_good).then_some(found)
    }
}

fn index(algorithm: Algorithm) -> usize {
    let index = Algorithm::ALL.iter().position(|known| *known == algorithm);
    index.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::Counts;

    fn timing(algorithm: Algorithm, bytes: usize, seconds: f64) -> Timing {
        let counts = Counts::default();
        let sample = CostSample { counts, seconds };
        Timing {
            algorithm,
            bytes,
            sample,
        }
    }

    fn found() -> Corrections {
        let timings = [
            timing(Algorithm::Tree, 64 << 10, 1.2),
            timing(Algorithm::Direct, 64 << 10, 0.8),
            timing(Algorithm::Tree, 256 << 10, 1.6),
            timing(Algorithm::Ring, 256 << 10, f64::NAN),
            timing(Algorithm::Ring, 12_345, 2.0),
            timing(Algorithm::Tree, 1 << 20, 2.0),
        ];
        Corrections::of(&timings, |_| 1.0)
    }

    #[test]
    fn corrections_match_measured_lengths_and_interpolate_between() {
        let found = found();
        assert_eq!(found.at(Algorithm::Tree, 64 << 10), 1.2);
        assert_eq!(found.at(Algorithm::Tree, 256 << 10), 1.6);
        let between = found.at(Algorithm::Tree, 160 << 10);
        assert!((between - 1.4).abs() < 1e-12, "{between}");
        // Long operands are independent of shorter ones.
        assert_eq!(found.at(Algorithm::Tree, 1 << 19), 1.6);
        assert_eq!(found.at(Algorithm::Tree, 1 << 20), 2.0);
        assert_eq!(found.at(Algorithm::Tree, 64 << 20), 2.0);
        assert_eq!(found.at(Algorithm::Direct, 64 << 10), 0.8);
        // Shorter lengths are not measured.
        assert_eq!(found.at(Algorithm::Tree, 8), 1.0);
    }

    #[test]
    fn algorithms_without_measurements_get_the_mean_correction() {
        let found = found();
        assert_eq!(found.at(Algorithm::Ring, 64 << 10), 1.0);
        for algorithm in [Algorithm::Ring, Algorithm::Direct] {
            assert_eq!(found.at(algorithm, 256 << 10), 1.6);
        }
        let far = Corrections::of(&[timing(Algorithm::Ring, 128, 99.0)], |_| 1.0);
        assert_eq!(far.at(Algorithm::Ring, 128), MOST);
    }

    #[test]
    fn words_bring_the_same_bits_and_nonsense_none() {
        let found = found();
        let mut words = found.to_words();
        assert_eq!(Corrections::from_words(&words), Some(found));
        for nonsense in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            words[3] = nonsense.to_bits();
            assert_eq!(Corrections::from_words(&words), None);
        }
    }
}
