//! [`Statistics`] of repeated timings.

use serde::{Deserialize, Serialize};

/// Median, tenth percentile and minimum of timings, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// The number of timings.
    pub samples: usize,
    /// The median.
    pub median_us: f64,
    /// The tenth percentile.
    pub p10_us: f64,
    /// The minimum.
    pub min_us: f64,
}

impl Statistics {
    /// Computes the statistics of timings in seconds, in any order; `None` without any. The
    /// percentile is interpolated between two samples, as in numpy.
    #[must_use]
    pub fn of(mut seconds: Vec<f64>) -> Option<Self> {
        seconds.sort_by(f64::total_cmp);
        let min = *seconds.first()?;
        Some(Self {
            samples: seconds.len(),
            median_us: percentile(&seconds, 0.5) * 1e6,
            p10_us: percentile(&seconds, 0.1) * 1e6,
            min_us: min * 1e6,
        })
    }
}

/// Returns the mean of values and their standard deviation, without correction; NaN without any.
pub(crate) fn mean_and_deviation(values: &[f64]) -> [f64; 2] {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2));
    [mean, (squares.sum::<f64>() / count).sqrt()]
}

/// Returns the median of values in any order; NaN without any.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    percentile(values, 0.5)
}

/// Returns a percentile of sorted values, at least one.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, part) = (place.floor() as usize, place.fract());
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_interpolated_and_order_does_not_matter() {
        let of = |values: &[f64]| Statistics::of(values.to_vec()).unwrap();
        let one = of(&[2e-6]);
        assert_eq!((one.samples, one.median_us, one.min_us), (1, 2.0, 2.0));
        let even = of(&[4e-6, 1e-6, 3e-6, 2e-6]);
        assert!((even.median_us - 2.5).abs() < 1e-9, "{even:?}");
        assert!((even.p10_us - 1.3).abs() < 1e-9, "{even:?}");
        let many: Vec<f64> = (0..=100).rev().map(|i| f64::from(i) * 1e-6).collect();
        let many = of(&many);
        assert!((many.p10_us - 10.0).abs() < 1e-9 && (many.median_us - 50.0).abs() < 1e-9);
        assert_eq!(Statistics::of(Vec::new()), None);
    }
}
