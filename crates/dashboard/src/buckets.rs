//! [`Buckets`]: a series of values over steps in bounded memory, with the smallest and largest value of each bucket.

use serde::Serialize;

/// A part of a series: the values of some consecutive steps.
pub trait SeriesBucket: Default {
    /// Adds the values of the next bucket.
    fn merge(&mut self, next: &Self);
    /// Returns whether no value was added.
    fn is_empty(&self) -> bool;
}

/// A series over steps. All buckets cover the same number of steps, a power of two. When there are too many, neighbours
/// are merged, so a spike stays visible as the largest value of its bucket. Adding a value takes constant amortised time.
#[derive(Debug, Clone)]
pub struct Buckets<B> {
    steps_per_bucket: u64,
    buckets_max: usize,
    buckets: Vec<B>,
}

impl<B: SeriesBucket> Buckets<B> {
    /// Creates an empty series of at most `buckets_max` buckets, which must be even.
    #[must_use]
    pub fn new(buckets_max: usize) -> Self {
        Self {
            steps_per_bucket: 1,
            buckets_max: buckets_max.max(2),
            buckets: Vec::new(),
        }
    }

    /// Returns the bucket of a step, to which the caller adds a value.
    pub fn of_step(&mut self, step: u64) -> &mut B {
        while step / self.steps_per_bucket >= self.buckets_max as u64 {
            self.halve();
        }
        let at = (step / self.steps_per_bucket) as usize;
        if at >= self.buckets.len() {
            self.buckets.resize_with(at + 1, B::default);
        }
        &mut self.buckets[at]
    }

    /// Removes the buckets that begin at `step` or later: these steps are computed again. The bucket with `step`
    /// keeps its values.
    pub fn truncate(&mut self, step: u64) {
        let kept = usize::try_from(step.div_ceil(self.steps_per_bucket)).unwrap_or(usize::MAX);
        self.buckets.truncate(kept);
    }

    /// Returns the number of steps of a bucket.
    #[must_use]
    pub fn steps_per_bucket(&self) -> u64 {
        self.steps_per_bucket
    }

    /// Returns the buckets that are not empty, each with its first step, from the bucket of `step` on.
    pub fn from_step(&self, step: u64) -> impl Iterator<Item = (u64, &B)> {
        let width = self.steps_per_bucket;
        let skipped = usize::try_from(step / width).unwrap_or(usize::MAX);
        let numbered = self.buckets.iter().enumerate().skip(skipped);
        numbered
            .filter(|(_, bucket)| !bucket.is_empty())
            .map(move |(at, bucket)| (at as u64 * width, bucket))
    }

    fn halve(&mut self) {
        self.steps_per_bucket = self.steps_per_bucket.saturating_mul(2);
        for at in 0..self.buckets.len().div_ceil(2) {
            let mut merged = std::mem::take(&mut self.buckets[2 * at]);
            if let Some(next) = self.buckets.get(2 * at + 1) {
                merged.merge(next);
            }
            self.buckets[at] = merged;
        }
        self.buckets.truncate(self.buckets.len().div_ceil(2));
    }
}

/// The smallest, largest and mean value of a bucket. Values that are not finite are counted and do not enter the mean.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct ValueRange {
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The sum of the values.
    pub sum: f64,
    /// The number of values.
    pub count: u32,
    /// The number of values that are NaN or infinite.
    pub not_finite: u32,
}

impl ValueRange {
    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        let finite = value.is_finite();
        self.merge(&Self {
            min: value,
            max: value,
            sum: value,
            count: u32::from(finite),
            not_finite: u32::from(!finite),
        });
    }

    /// Returns the mean; NaN without a finite value.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum / f64::from(self.count)
    }
}

impl SeriesBucket for ValueRange {
    fn merge(&mut self, next: &Self) {
        self.not_finite += next.not_finite;
        match (self.count, next.count) {
            (_, 0) => {}
            (0, _) => {
                let not_finite = self.not_finite;
                *self = Self {
                    not_finite,
                    ..*next
                };
            }
            _ => {
                self.min = self.min.min(next.min);
                self.max = self.max.max(next.max);
                self.sum += next.sum;
                self.count += next.count;
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.count == 0 && self.not_finite == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_series_keeps_its_spikes_in_bounded_memory() {
        let mut series = Buckets::<ValueRange>::new(64);
        for step in 0..100_000 {
            let value = if step == 54_321 { 1e9 } else { step as f64 };
            series.of_step(step).add(value);
        }
        assert_eq!(series.steps_per_bucket(), 2_048);
        let found: Vec<_> = series.from_step(0).collect();
        assert!(found.len() <= 64);
        assert_eq!(
            found.iter().map(|(_, range)| range.count).sum::<u32>(),
            100_000
        );
        let spike = found.iter().find(|(_, range)| range.max > 1e6).unwrap();
        assert_eq!((spike.0, spike.1.max), (54_321 / 2_048 * 2_048, 1e9));
        assert_eq!(found[0].1.mean(), 1_023.5);
        assert_eq!(
            series.from_step(99_000).count(),
            1,
            "only the newest bucket"
        );
    }

    #[test]
    fn steps_that_are_computed_again_replace_the_earlier_ones() {
        let mut series = Buckets::<ValueRange>::new(64);
        (0..50).for_each(|step| series.of_step(step).add(1.0));
        series.truncate(20);
        assert_eq!(series.from_step(0).count(), 20);
        series.truncate(u64::MAX);
        (20..30).for_each(|step| series.of_step(step).add(2.0));
        assert_eq!(series.from_step(0).count(), 30);
        assert_eq!(series.from_step(25).next().unwrap().1.mean(), 2.0);
    }

    #[test]
    fn steps_may_be_missing_or_huge_and_values_not_finite() {
        let mut series = Buckets::<ValueRange>::new(64);
        series.of_step(3).add(f64::NAN);
        series.of_step(3).add(5.0);
        series.of_step(u64::MAX).add(f64::INFINITY);
        let found: Vec<_> = series.from_step(0).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].1.mean(), found[0].1.not_finite), (5.0, 1));
        assert_eq!((found[1].1.count, found[1].1.not_finite), (0, 1));
    }
}
