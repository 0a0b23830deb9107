//! The embedded digits: 1,797 grey images of 8 x 8; `assets/README.md` states their origin.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::csv::{CsvLayout, read_lines};
use crate::{DataError, MemoryDataset, Split};

const FILE: &[u8] = include_bytes!("../assets/digits.csv.gz");
const TRAIN_SAMPLES: usize = 1437;
const LEVELS: f32 = 16.0;
const SHAPE: [usize; 3] = [1, 8, 8];
const CLASSES: u32 = 10;
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Decodes the set: the first 1,437 images for training, the last 360 for evaluation.
pub(crate) fn open() -> Result<Split, DataError> {
    let text = flate2::read::GzDecoder::new(FILE).take(TEXT_BYTES_MAX);
    let layout = CsvLayout::new(&SHAPE, CLASSES, Some(LEVELS))?;
    let samples = read_lines(
        std::io::BufReader::new(text),
        Path::new("digits.csv.gz"),
        &layout,
    )?;
    let elements = SHAPE.iter().product::<usize>();
    let (mut train, mut test) = (samples, (Vec::new(), Vec::new()));
    if train.1.len() > TRAIN_SAMPLES {
        test = (
            train.0.split_off(TRAIN_SAMPLES * elements),
            train.1.split_off(TRAIN_SAMPLES),
        );
    }
    let set = |(features, labels)| MemoryDataset::new(features, labels, SHAPE.to_vec(), CLASSES);
    Ok(Split {
        train: Arc::new(set(train)?),
        test: Some(Arc::new(set(test)?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dataset;

    /// Returns the sums of the grey levels and of the labels.
    fn sums(set: &dyn Dataset) -> (f32, u32) {
        let mut pixels = vec![0.0; 64];
        let mut sums = (0.0, 0);
        for sample in 0..set.len() {
            sums.1 += set.read(sample, &mut pixels).unwrap();
            assert!(pixels.iter().all(|x| (0.0..=1.0).contains(x)));
            sums.0 += pixels.iter().map(|x| x * LEVELS).sum::<f32>();
        }
        sums
    }

    #[test]
    fn the_digits_match_the_published_data_set() {
        let split = open().unwrap();
        let test = split.test.unwrap();
        assert_eq!((split.train.len(), test.len()), (1437, 360));
        assert_eq!(split.train.sample_shape(), [1, 8, 8]);
        assert_eq!(split.train.classes(), 10);
        assert_eq!(sums(&*split.train), (449_372.0, 6449));
        assert_eq!(sums(&*test), (561_718.0 - 449_372.0, 8070 - 6449));
        let mut first = vec![0.0; 64];
        assert_eq!(split.train.read(0, &mut first).unwrap(), 0);
        let row: Vec<f32> = first[..8].iter().map(|x| x * 16.0).collect();
        assert_eq!(row, [0.0, 0.0, 5.0, 13.0, 9.0, 1.0, 0.0, 0.0]);
        assert_ne!(split.train.identity(), test.identity());
    }
}
