//! Synthetic images: noise over a random pattern of the class. Each sample is computed independently when it is read.

use std::sync::Arc;

use ronde_core::Epoch;
use ronde_core::philox::Stream;
use ronde_core::seed::{Purpose, SeedTree};

use super::SplitSizes;
use crate::dataset::Split;
use crate::dataset::{DatasetDescription, check_form};
use crate::error::DataError;
use crate::memory::MemoryDataset;
use crate::memory::SampleSource;

/// The maximum number of elements of all patterns for storing them.
const STORED_ELEMENTS_MAX: usize = 1 << 22;

/// The identifier of the random stream of samples; that of class patterns follows.
const NOISE: u64 = 0;
const PATTERN: u64 = 1;
const LABEL: u64 = 2;

/// The weight of the class's pattern in a pixel; the rest is noise.
const PATTERN_WEIGHT: f32 = 0.5;

/// Images of values in `[0, 1)`: the mean of uniform noise, drawn per sample, and of a uniform pattern, drawn per class. Cost
/// of a read: a quarter of a Philox block per pixel, half a block if the patterns are too large to be stored.
struct SyntheticImages {
    seed: u64,
    first: u64,
    classes: u32,
    /// The concatenated patterns of all classes; empty if they are not stored.
    patterns: Arc<[f32]>,
}

/// Returns a training set and a test set with the same patterns and other noise.
pub(super) fn split(
    counts: SplitSizes,
    shape: &[usize],
    classes: u32,
    seed: u64,
) -> Result<Split, DataError> {
    let elements = check_form(shape, classes)?;
    let patterns = patterns(seed, elements, classes);
    Ok(counts.split(|numbers, _| {
        let identity = format!(
            "synthetic_images version 1: seed {seed}, samples {numbers:?}, shape {shape:?}, classes {classes}"
        );
        let source = SyntheticImages {
            seed,
            first: numbers.start,
            classes,
            patterns: patterns.clone(),
        };
        MemoryDataset::of(
            Arc::new(source),
            numbers.end - numbers.start,
            DatasetDescription::new(shape.to_vec(), classes, identity),
        )
    }))
}

fn stream(seed: u64, what: u64, number: u64) -> Stream {
    SeedTree::new(seed).stream(Purpose::Synthetic, &[what, number])
}

fn patterns(seed: u64, elements: usize, classes: u32) -> Arc<[f32]> {
    let kept = elements.saturating_mul(classes as usize);
    if kept > STORED_ELEMENTS_MAX {
        return Arc::default();
    }
    let mut all = vec![0.0; kept];
    for (class, pattern) in (0..).zip(all.chunks_exact_mut(elements)) {
        stream(seed, PATTERN, class).fill_uniform(pattern);
    }
    all.into()
}

impl SampleSource for SyntheticImages {
    fn write(&self, sample: u64, _epoch: Epoch, out: &mut [f32], targets: &mut [u32]) {
        let number = self.first + sample;
        let [word, ..] = stream(self.seed, LABEL, number).block(0);
        // The high half of a product maps 32 random bits to 0..classes without a visible bias.
        let label = ((u64::from(word) * u64::from(self.classes)) >> 32) as u32;
        stream(self.seed, NOISE, number).fill_uniform(out);
        let mix = |value: &mut f32, uniform: f32| {
            *value = PATTERN_WEIGHT * uniform + (1.0 - PATTERN_WEIGHT) * *value;
        };
        if self.patterns.is_empty() {
            let mut pattern = vec![0.0; out.len()];
            stream(self.seed, PATTERN, label.into()).fill_uniform(&mut pattern);
            out.iter_mut().zip(&pattern).for_each(|(v, p)| mix(v, *p));
        } else {
            let pattern = &self.patterns[label as usize * out.len()..];
            out.iter_mut().zip(pattern).for_each(|(v, p)| mix(v, *p));
        }
        targets.fill(label);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{Dataset, DatasetExt};

    fn all(set: &dyn Dataset) -> Vec<(Vec<f32>, u32)> {
        (0..set.len())
            .map(|number| {
                let (features, targets) = set.sample(number).unwrap();
                (features, targets[0])
            })
            .collect()
    }

    fn images(
        (samples, test_samples): (u64, u64),
        shape: &[usize],
        classes: u32,
        seed: u64,
    ) -> Result<Split, DataError> {
        super::split(
            SplitSizes::new(samples, test_samples)?,
            shape,
            classes,
            seed,
        )
    }

    #[test]
    fn classes_can_be_classified_by_the_mean_of_their_training_images() {
        let split = images((400, 100), &[1, 6, 6], 4, 9).unwrap();
        let mut means = vec![(vec![0.0; 36], 0.0_f32); 4];
        for (image, label) in all(&*split.train) {
            let (sum, count) = &mut means[label as usize];
            sum.iter_mut()
                .zip(image)
                .for_each(|(sum, value)| *sum += value);
            *count += 1.0;
        }
        assert!(means.iter().all(|(_, count)| (60.0..140.0).contains(count)));
        let distance = |image: &[f32], class: usize| -> f32 {
            let (sum, count) = &means[class];
            image
                .iter()
                .zip(sum)
                .map(|(value, sum)| (value - sum / count).powi(2))
                .sum()
        };
        let right = all(&*split.test.unwrap())
            .iter()
            .filter(|(image, label)| {
                let nearest =
                    (0..4).min_by(|&a, &b| distance(image, a).total_cmp(&distance(image, b)));
                nearest == Some(*label as usize)
            })
            .count();
        assert!(right >= 90, "{right} of 100");
    }

    #[test]
    fn samples_depend_only_on_the_seed_and_their_number() {
        let one = images((8, 8), &[5], 3, 1).unwrap();
        let same = images((8, 0), &[5], 3, 1).unwrap();
        let other = images((8, 0), &[5], 3, 2).unwrap();
        assert_eq!(all(&*one.train), all(&*same.train));
        assert_eq!(
            one.train.description().identity,
            same.train.description().identity
        );
        assert_ne!(all(&*one.train), all(&*other.train));
        assert_ne!(
            one.train.description().identity,
            other.train.description().identity
        );
        assert!(same.test.is_none());
        assert_ne!(all(&*one.train), all(&*one.test.unwrap()));
    }

    #[test]
    fn invalid_parameters_are_rejected() {
        let split =
            |samples, shape: &[usize], classes| images((samples, 0), shape, classes, 0).err();
        assert!(matches!(
            split(0, &[1], 2),
            Some(DataError::SampleCount { .. })
        ));
        assert!(matches!(
            split(u64::MAX, &[1], 2),
            Some(DataError::SampleCount { .. })
        ));
        assert!(matches!(split(1, &[0], 2), Some(DataError::Shape { .. })));
        assert!(matches!(split(1, &[1], 0), Some(DataError::Classes { .. })));
        assert!(split(1, &[], 1).is_none(), "a sample may be one number");
    }
}
