//! Synthetic images: noise over a random pattern of the class. Each sample is computed independently when it is read.

use std::sync::Arc;

use ronde_core::philox::Stream;
use ronde_core::seed::{Purpose, SeedTree};

use crate::dataset::{check_form, check_read};
use crate::{DataError, Dataset, Split};

/// The maximum number of samples, so that sample numbers cannot overflow.
const SAMPLES_MAX: u64 = 1 << 40;

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
pub(crate) struct SyntheticImages {
    seed: u64,
    first: u64,
    samples: u64,
    shape: Vec<usize>,
    elements: usize,
    classes: u32,
    /// The concatenated patterns of all classes; empty if they are not stored.
    patterns: Arc<[f32]>,
}

impl SyntheticImages {
    /// Returns a training set and, unless `test_samples` is zero, a test set with the same patterns and other noise.
    pub(crate) fn split(
        samples: u64,
        test_samples: u64,
        shape: &[usize],
        classes: u32,
        seed: u64,
    ) -> Result<Split, DataError> {
        if !(1..=SAMPLES_MAX).contains(&samples) || test_samples > SAMPLES_MAX {
            return Err(DataError::SampleCount {
                samples,
                test_samples,
            });
        }
        let elements = check_form(shape, classes)?;
        let patterns = patterns(seed, elements, classes);
        let set = |first, samples| Self {
            seed,
            first,
            samples,
            shape: shape.to_vec(),
            elements,
            classes,
            patterns: patterns.clone(),
        };
        Ok(Split {
            train: Arc::new(set(0, samples)),
            test: (test_samples > 0)
                .then(|| Arc::new(set(samples, test_samples)) as Arc<dyn Dataset>),
        })
    }
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

impl Dataset for SyntheticImages {
    fn len(&self) -> u64 {
        self.samples
    }

    fn sample_shape(&self) -> &[usize] {
        &self.shape
    }

    fn sample_elements(&self) -> usize {
        self.elements
    }

    fn classes(&self) -> u32 {
        self.classes
    }

    fn read(&self, sample: u64, out: &mut [f32]) -> Result<u32, DataError> {
        check_read(self, sample, out)?;
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
            let pattern = &self.patterns[label as usize * self.elements..];
            out.iter_mut().zip(pattern).for_each(|(v, p)| mix(v, *p));
        }
        Ok(label)
    }

    fn identity(&self) -> String {
        format!(
            "synthetic_images version 1: seed {}, samples {}..{}, shape {:?}, classes {}",
            self.seed,
            self.first,
            self.first + self.samples,
            self.shape,
            self.classes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(set: &dyn Dataset) -> Vec<(Vec<f32>, u32)> {
        (0..set.len())
            .map(|sample| {
                let mut out = vec![0.0; set.sample_elements()];
                let label = set.read(sample, &mut out).unwrap();
                (out, label)
            })
            .collect()
    }

    #[test]
    fn classes_can_be_classified_by_the_mean_of_their_training_images() {
        let split = SyntheticImages::split(400, 100, &[1, 6, 6], 4, 9).unwrap();
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
        let one = SyntheticImages::split(8, 8, &[5], 3, 1).unwrap();
        let same = SyntheticImages::split(8, 0, &[5], 3, 1).unwrap();
        let other = SyntheticImages::split(8, 0, &[5], 3, 2).unwrap();
        assert_eq!(all(&*one.train), all(&*same.train));
        assert_eq!(one.train.identity(), same.train.identity());
        assert_ne!(all(&*one.train), all(&*other.train));
        assert_ne!(one.train.identity(), other.train.identity());
        assert!(same.test.is_none());
        assert_ne!(all(&*one.train), all(&*one.test.unwrap()));
    }

    #[test]
    fn invalid_parameters_are_rejected() {
        let split = |samples, shape: &[usize], classes| {
            SyntheticImages::split(samples, 0, shape, classes, 0).err()
        };
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
