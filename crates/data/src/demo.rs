//! Data for examples and tests, which needs no files: two embedded files, and samples that are computed from a seed.

mod number_words;
mod objects;
mod ratings;
mod shapes;
mod square_images;
mod synthetic_images;
mod synthetic_text;

use std::ops::Range;
use std::sync::Arc;

pub use ratings::RatingsConfig;
pub use square_images::SquareImagesConfig;

use crate::dataset::{Dataset, Split};
use crate::error::DataError;
use crate::format::object::InMemory;
use crate::memory::MemoryDataset;

/// The maximum number of samples, so that sample numbers cannot overflow.
const SAMPLES_MAX: u64 = 1 << 40;

/// A file that is part of the program; `assets/README.md` states its origin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmbeddedFile {
    name: &'static str,
    bytes: &'static [u8],
}

/// Handwritten digits: lines of 64 grey levels from 0 to 16 and the digit. The first [`DIGITS_FOR_TRAINING`] lines are for
/// training.
pub(crate) const DIGITS: EmbeddedFile = EmbeddedFile {
    name: "digits.csv.gz",
    bytes: include_bytes!("../assets/digits.csv.gz"),
};

/// The number of [`DIGITS`] for training.
pub(crate) const DIGITS_FOR_TRAINING: usize = 1437;

/// The beginning of a novel.
pub(crate) const NOVEL: EmbeddedFile = EmbeddedFile {
    name: "pride.txt.gz",
    bytes: include_bytes!("../assets/pride.txt.gz"),
};

impl EmbeddedFile {
    /// Opens the file.
    pub(crate) fn open(&self) -> InMemory {
        InMemory::new(self.name, self.bytes)
    }
}

/// A rule that computes samples from a seed and their number.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Generator {
    /// Noise over one random pattern per class.
    Images { shape: Vec<usize>, classes: u32 },
    /// Token numbers, mostly following from the previous one.
    Text { context: usize, tokens: u32 },
    /// Numbers in English and French words.
    NumberWords,
    /// Discs and squares with a mask.
    Shapes { side: usize },
    /// Values of users for items.
    Ratings(RatingsConfig),
    /// Coloured ellipses, rectangles and triangles with their boxes.
    Objects { side: usize },
}

impl Generator {
    /// Returns a training set and, unless the number of test samples is zero, a test set of different samples.
    pub(crate) fn split(&self, counts: SplitSizes, seed: u64) -> Result<Split, DataError> {
        match self {
            Self::Images { shape, classes } => {
                synthetic_images::split(counts, shape, *classes, seed)
            }
            Self::Text { context, tokens } => {
                synthetic_text::split(counts, *context, *tokens, seed)
            }
            Self::NumberWords => Ok(number_words::split(counts, seed)),
            Self::Shapes { side } => shapes::split(counts, *side, seed),
            Self::Ratings(matrix) => Ok(ratings::split(counts, matrix, seed)),
            Self::Objects { side } => objects::split(counts, *side, seed),
        }
    }
}

/// The numbers of computed samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SplitSizes {
    train: u64,
    test: u64,
}

impl SplitSizes {
    /// Returns an error for no training samples, and for too many.
    pub(crate) fn new(train: u64, test: u64) -> Result<Self, DataError> {
        if !(1..=SAMPLES_MAX).contains(&train) || test > SAMPLES_MAX {
            return Err(DataError::SampleCount {
                samples: train,
                test_samples: test,
            });
        }
        Ok(Self { train, test })
    }

    /// Calls `set` with the numbers of the training samples, and with those of the test samples, which follow, and true.
    fn split(self, set: impl Fn(Range<u64>, bool) -> MemoryDataset) -> Split {
        let end = self.train + self.test;
        Split {
            train: Arc::new(set(0..self.train, false)),
            test: (self.test > 0).then(|| Arc::new(set(self.train..end, true)) as Arc<dyn Dataset>),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::DataConfig;
    use crate::dataset::DatasetExt;
    use crate::open_context::OpenContext;
    use crate::pipeline::open;

    fn opened(config: &DataConfig) -> Split {
        open(config, &OpenContext::new(Path::new("."), 0)).unwrap()
    }

    /// Returns the sums of the grey levels and of the labels.
    fn sums(set: &dyn Dataset) -> (f32, u32) {
        let mut sums = (0.0, 0);
        for number in 0..set.len() {
            let (pixels, label) = set.sample(number).unwrap();
            assert!(pixels.iter().all(|x| (0.0..=1.0).contains(x)));
            sums.0 += pixels.iter().map(|x| x * 16.0).sum::<f32>();
            sums.1 += label[0];
        }
        sums
    }

    #[test]
    fn the_digits_match_the_published_data_set() {
        let split = opened(&DataConfig::Digits {});
        let test = split.test.unwrap();
        assert_eq!((split.train.len(), test.len()), (1437, 360));
        let description = split.train.description();
        assert_eq!(
            (&*description.shape, description.classes),
            (&[1, 8, 8][..], 10)
        );
        assert_eq!(sums(&*split.train), (449_372.0, 6449));
        assert_eq!(sums(&*test), (561_718.0 - 449_372.0, 8070 - 6449));
        let (first, label) = split.train.sample(0).unwrap();
        let row: Vec<f32> = first[..8].iter().map(|x| x * 16.0).collect();
        assert_eq!(row, [0.0, 0.0, 5.0, 13.0, 9.0, 1.0, 0.0, 0.0]);
        assert_eq!(label, [0]);
        assert_eq!(
            description.identity,
            "blake3:500cc4c642f17fd5e50998f5794ff323db48380f94640b24fac25dbf9d4e3e28"
        );
        assert_ne!(description.identity, test.description().identity);
    }

    #[test]
    fn the_novel_is_complete() {
        let split = opened(&DataConfig::Text {
            file: None,
            context: 64,
            masked: None,
        });
        let description = split.train.description();
        assert_eq!(
            (description.classes, description.targets_per_sample),
            (74, 64)
        );
        assert!(split.train.len() > 1500 && split.test.unwrap().len() > 150);
    }

    #[test]
    fn invalid_numbers_of_samples_are_rejected() {
        for (train, test) in [(0, 0), (u64::MAX, 0), (1, u64::MAX)] {
            let error = SplitSizes::new(train, test).unwrap_err();
            assert!(matches!(error, DataError::SampleCount { .. }));
        }
    }
}
