//! Text as single letters: each sample is a window of letters, and its targets are the next letters.

use std::ops::Range;
use std::sync::Arc;

use super::OpenedFile;
use crate::dataset::{DatasetDescription, FileContent, check_form};
use crate::memory::SampleSource;
use crate::{DataError, Dataset, MemoryDataset, Split};

/// The maximum bytes of a text.
const TEXT_BYTES_MAX: u64 = 1 << 28;

/// The divisor that gives the share of the text, at its end, that is the test set.
const TEST_PART: usize = 10;

/// The windows of a part of a text. Classes are the different bytes of the whole text, in ascending order.
struct LetterWindows {
    /// The class of each byte of the whole text.
    classes: Arc<Vec<u8>>,
    part: Range<usize>,
}

/// Opens a text with windows of `context` letters. Memory: one byte for each letter.
pub(super) fn open(file: &OpenedFile, context: usize) -> Result<Split, DataError> {
    let object = &file.object;
    if object.bytes() > TEXT_BYTES_MAX {
        return Err(DataError::Format {
            file: object.location().to_owned(),
            problem: format!(
                "more than {TEXT_BYTES_MAX} bytes of text, which are held in memory: use source = \"records\""
            ),
        });
    }
    let mut text = vec![0; object.bytes() as usize];
    object.read_at(0, &mut text)?;
    let name = match &file.name {
        Some(name) => name.clone(),
        None => object.location().to_owned(),
    };
    split(text, name, context)
}

fn split(mut text: Vec<u8>, name: String, context: usize) -> Result<Split, DataError> {
    let mut known = [false; 256];
    text.iter()
        .for_each(|&byte| known[usize::from(byte)] = true);
    let mut class_of = [0_u8; 256];
    let mut count = 0_u32;
    for (byte, _) in known.iter().enumerate().filter(|(_, known)| **known) {
        class_of[byte] = count as u8;
        count += 1;
    }
    check_form(&[context], count.max(1))?;
    let hash = blake3::hash(&text).to_hex();
    text.iter_mut()
        .for_each(|byte| *byte = class_of[usize::from(*byte)]);
    let classes = Arc::new(text);
    let set = |part: Range<usize>, title: &str| -> Option<Arc<dyn Dataset>> {
        // The target of the last letter of a window is the first letter of the next window.
        let samples = part.len().checked_sub(1)? / context;
        let identity = format!("text version 1: blake3:{hash}, {title}, context {context}");
        let windows = LetterWindows {
            classes: Arc::clone(&classes),
            part,
        };
        let description = DatasetDescription {
            targets_per_sample: context,
            files: vec![FileContent {
                name: name.clone(),
                hash: format!("blake3:{}", &hash[..16]),
            }],
            ..DatasetDescription::new(vec![context], count, identity)
        };
        (samples > 0).then(|| {
            Arc::new(MemoryDataset::of(
                Arc::new(windows),
                samples as u64,
                description,
            )) as _
        })
    };
    let (bytes, end) = (classes.len(), classes.len() - classes.len() / TEST_PART);
    let train = set(0..end, "first nine tenths").ok_or_else(|| DataError::Empty {
        addresses: name.clone(),
    })?;
    Ok(Split {
        train,
        test: set(end..bytes, "last tenth"),
    })
}

impl SampleSource for LetterWindows {
    fn write(&self, sample: u64, out: &mut [f32], targets: &mut [u32]) {
        let start = self.part.start + sample as usize * out.len();
        let letters = &self.classes[start..=start + out.len()];
        for (at, pair) in letters.windows(2).enumerate() {
            out[at] = f32::from(pair[0]);
            targets[at] = u32::from(pair[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DatasetExt;

    fn text(bytes: &[u8], context: usize) -> Result<Split, DataError> {
        split(bytes.to_vec(), "text".to_owned(), context)
    }

    #[test]
    fn targets_are_the_next_letters() {
        let split = text(b"abcabcabcdabcabcabcdabcabcabcdabcabcabcdx", 3).unwrap();
        let (train, test) = (split.train, split.test.unwrap());
        let classes = train.description().classes;
        assert_eq!((train.len(), classes, test.len()), (12, 5, 1));
        let expected = (vec![0.0, 1.0, 2.0], vec![1, 2, 3]);
        assert_eq!(train.sample(2).unwrap(), expected);
        let expected = (vec![1.0, 2.0, 3.0], vec![2, 3, 4]);
        assert_eq!(test.sample(0).unwrap(), expected);
        assert!(train.sample(12).is_err());
        assert_ne!(train.description().identity, test.description().identity);
    }

    #[test]
    fn short_texts_are_rejected() {
        for bytes in [&b""[..], b"a", b"abc"] {
            let short = text(bytes, 3).unwrap_err();
            assert!(matches!(short, DataError::Empty { .. }), "{short}");
        }
        assert_eq!(text(b"abcd", 3).unwrap().train.len(), 1);
        assert!(matches!(text(b"abcdef", 0), Err(DataError::Shape { .. })));
    }
}
