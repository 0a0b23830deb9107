//! Synthetic text: most tokens follow from the previous one by a random table. Only the table is stored; each sample is
//! computed independently when it is read.

use std::sync::Arc;

use ronde_core::philox::Stream;
use ronde_core::seed::{Purpose, SeedTree};

use crate::dataset::{check_form, check_read_all};
use crate::{DataError, Dataset, Split};

/// The maximum number of samples, so that sample numbers cannot overflow.
const SAMPLES_MAX: u64 = 1 << 40;

/// One in this many tokens is drawn at random; the others follow the table.
const FREE_OF: u32 = 4;

/// The identifier of the random stream of samples; that of the table follows.
const SAMPLE: u64 = 3;
const TABLE: u64 = 4;

/// Samples of token numbers; the targets are the next tokens. Cost of a read: half a Philox block per token.
pub(crate) struct SyntheticText {
    seed: u64,
    first: u64,
    samples: u64,
    shape: [usize; 1],
    /// The successor of each token.
    table: Arc<[u32]>,
}

impl SyntheticText {
    /// Returns a training set and, unless `test_samples` is zero, a test set with the same table.
    pub(crate) fn split(
        samples: u64,
        test_samples: u64,
        context: usize,
        tokens: u32,
        seed: u64,
    ) -> Result<Split, DataError> {
        if !(1..=SAMPLES_MAX).contains(&samples) || test_samples > SAMPLES_MAX {
            return Err(DataError::SampleCount {
                samples,
                test_samples,
            });
        }
        check_form(&[context], tokens)?;
        let stream = SeedTree::new(seed).stream(Purpose::Synthetic, &[TABLE, 0]);
        let table: Arc<[u32]> = words(stream)
            .take(tokens as usize)
            .map(|word| below(word, tokens))
            .collect();
        let set = |first, samples| Self {
            seed,
            first,
            samples,
            shape: [context],
            table: table.clone(),
        };
        Ok(Split {
            train: Arc::new(set(0, samples)),
            test: (test_samples > 0)
                .then(|| Arc::new(set(samples, test_samples)) as Arc<dyn Dataset>),
        })
    }
}

/// Returns the words of a stream in order.
fn words(stream: Stream) -> impl Iterator<Item = u32> {
    (0..).flat_map(move |index| stream.block(index))
}

/// The high half of a product maps 32 random bits to `0..end` without a visible bias.
fn below(word: u32, end: u32) -> u32 {
    ((u64::from(word) * u64::from(end)) >> 32) as u32
}

impl Dataset for SyntheticText {
    fn len(&self) -> u64 {
        self.samples
    }

    fn sample_shape(&self) -> &[usize] {
        &self.shape
    }

    fn classes(&self) -> u32 {
        self.table.len() as u32
    }

    fn targets_per_sample(&self) -> usize {
        self.shape[0]
    }

    fn read_all(&self, sample: u64, out: &mut [f32], targets: &mut [u32]) -> Result<(), DataError> {
        check_read_all(self, sample, out, targets)?;
        let number = self.first + sample;
        let stream = SeedTree::new(self.seed).stream(Purpose::Synthetic, &[SAMPLE, number]);
        let mut words = words(stream);
        let mut draw = || words.next().unwrap_or_default();
        let mut token = below(draw(), self.classes());
        for (place, target) in out.iter_mut().zip(targets) {
            *place = token as f32;
            let (choice, free) = (draw(), draw());
            token = if choice % FREE_OF == 0 {
                below(free, self.classes())
            } else {
                self.table[token as usize]
            };
            *target = token;
        }
        Ok(())
    }

    fn read(&self, sample: u64, out: &mut [f32]) -> Result<u32, DataError> {
        let mut targets = vec![0; self.shape[0]];
        self.read_all(sample, out, &mut targets)?;
        Ok(targets[0])
    }

    fn identity(&self) -> String {
        format!(
            "synthetic_text version 1: seed {}, samples {}..{}, context {}, tokens {}",
            self.seed,
            self.first,
            self.first + self.samples,
            self.shape[0],
            self.classes()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_next_tokens_and_mostly_follow_the_table() {
        let split = SyntheticText::split(20, 5, 33, 100, 7).unwrap();
        let (train, test) = (split.train, split.test.unwrap());
        assert_eq!((train.len(), train.classes(), test.len()), (20, 100, 5));
        let mut follows = std::collections::BTreeMap::new();
        for set in [&train, &test] {
            for sample in 0..set.len() {
                let (mut out, mut targets) = ([0.0; 33], [0; 33]);
                set.read_all(sample, &mut out, &mut targets).unwrap();
                for place in 0..33 {
                    assert!(targets[place] < 100);
                    if place > 0 {
                        assert_eq!(out[place], targets[place - 1] as f32);
                    }
                    let pair = (out[place] as u32, targets[place]);
                    *follows.entry(pair).or_insert(0) += 1;
                }
                let mut again = [0.0; 33];
                assert_eq!(set.read(sample, &mut again).unwrap(), targets[0]);
                assert_eq!(again, out);
            }
        }
        // 25 x 33 tokens, three quarters by one rule for both sets.
        let by_rule: u32 = (0..100)
            .map(|token| {
                let followers = follows.iter().filter(|((from, _), _)| *from == token);
                followers.map(|(_, count)| *count).max().unwrap_or(0)
            })
            .sum();
        assert!((550..750).contains(&by_rule), "{by_rule} of 825");
        assert_ne!(train.identity(), test.identity());
    }

    #[test]
    fn invalid_parameters_are_rejected() {
        assert!(SyntheticText::split(0, 0, 8, 10, 1).is_err());
        assert!(SyntheticText::split(5, 0, 0, 10, 1).is_err());
        assert!(SyntheticText::split(5, 0, 8, 0, 1).is_err());
        let split = SyntheticText::split(5, 0, 8, 10, 1).unwrap();
        assert!(split.test.is_none());
        assert!(split.train.read(5, &mut [0.0; 8]).is_err());
    }
}
