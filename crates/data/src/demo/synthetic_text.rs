//! Synthetic text: most tokens follow from the previous one by a random table. Only the table is stored; each sample is
//! computed independently when it is read.

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

/// One in this many tokens is drawn at random; the others follow the table.
const FREE_OF: u32 = 4;

/// The identifier of the random stream of samples; that of the table follows.
const SAMPLE: u64 = 3;
const TABLE: u64 = 4;

/// Samples of token numbers; the targets are the next tokens. Cost of a read: half a Philox block per token.
struct SyntheticText {
    seed: u64,
    first: u64,
    /// The successor of each token.
    table: Arc<[u32]>,
}

/// Returns a training set and a test set with the same table.
pub(super) fn split(
    counts: SplitSizes,
    context: usize,
    tokens: u32,
    seed: u64,
) -> Result<Split, DataError> {
    check_form(&[context], tokens)?;
    let stream = SeedTree::new(seed).stream(Purpose::Synthetic, &[TABLE, 0]);
    let table: Arc<[u32]> = words(stream)
        .take(tokens as usize)
        .map(|word| below(word, tokens))
        .collect();
    Ok(counts.split(|numbers, _| {
        let identity = format!(
            "synthetic_text version 1: seed {seed}, samples {numbers:?}, context {context}, tokens {tokens}"
        );
        let source = SyntheticText {
            seed,
            first: numbers.start,
            table: table.clone(),
        };
        MemoryDataset::of(
            Arc::new(source),
            numbers.end - numbers.start,
            DatasetDescription {
                targets_per_sample: context,
                ..DatasetDescription::new(vec![context], tokens, identity)
            },
        )
    }))
}

/// Returns the words of a stream in order.
fn words(stream: Stream) -> impl Iterator<Item = u32> {
    (0..).flat_map(move |index| stream.block(index))
}

/// The high half of a product maps 32 random bits to `0..end` without a visible bias.
fn below(word: u32, end: u32) -> u32 {
    ((u64::from(word) * u64::from(end)) >> 32) as u32
}

impl SampleSource for SyntheticText {
    fn write(&self, sample: u64, _epoch: Epoch, out: &mut [f32], targets: &mut [u32]) {
        let number = self.first + sample;
        let stream = SeedTree::new(self.seed).stream(Purpose::Synthetic, &[SAMPLE, number]);
        let mut words = words(stream);
        let mut draw = || words.next().unwrap_or_default();
        let tokens = self.table.len() as u32;
        let mut token = below(draw(), tokens);
        for (place, target) in out.iter_mut().zip(targets) {
            *place = token as f32;
            let (choice, free) = (draw(), draw());
            token = if choice % FREE_OF == 0 {
                below(free, tokens)
            } else {
                self.table[token as usize]
            };
            *target = token;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DatasetExt;

    fn text(
        (samples, test_samples): (u64, u64),
        context: usize,
        tokens: u32,
        seed: u64,
    ) -> Result<Split, DataError> {
        super::split(
            SplitSizes::new(samples, test_samples)?,
            context,
            tokens,
            seed,
        )
    }

    #[test]
    fn targets_are_the_next_tokens_and_mostly_follow_the_table() {
        let split = text((20, 5), 33, 100, 7).unwrap();
        let (train, test) = (split.train, split.test.unwrap());
        assert_eq!(
            (train.len(), train.description().classes, test.len()),
            (20, 100, 5)
        );
        let mut follows = std::collections::BTreeMap::new();
        for set in [&train, &test] {
            for sample in 0..set.len() {
                let (out, targets) = set.sample(sample).unwrap();
                for place in 0..33 {
                    assert!(targets[place] < 100);
                    if place > 0 {
                        assert_eq!(out[place], targets[place - 1] as f32);
                    }
                    let pair = (out[place] as u32, targets[place]);
                    *follows.entry(pair).or_insert(0) += 1;
                }
                assert_eq!(set.sample(sample).unwrap(), (out, targets));
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
        assert_ne!(train.description().identity, test.description().identity);
    }

    #[test]
    fn invalid_parameters_are_rejected() {
        assert!(text((0, 0), 8, 10, 1).is_err());
        assert!(text((5, 0), 0, 10, 1).is_err());
        assert!(text((5, 0), 8, 0, 1).is_err());
        let split = text((5, 0), 8, 10, 1).unwrap();
        assert!(split.test.is_none());
        assert!(split.train.sample(5).is_err());
    }
}
