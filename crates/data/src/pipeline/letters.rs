//! Text as single letters: each sample is a window of letters, and its targets are the next letters, or hidden ones.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::Epoch;
use ronde_core::seed::{Purpose, SeedTree};

use super::OpenedFile;
use crate::dataset::{Dataset, IGNORED, Split};
use crate::dataset::{DatasetDescription, FileContent, check_form};
use crate::error::DataError;
use crate::memory::MemoryDataset;
use crate::memory::SampleSource;
use crate::vocabulary::Vocabulary;

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

/// The letters of a sample that are hidden, to be predicted from all others. Source: Devlin, Chang, Lee, Toutanova, "BERT",
/// NAACL 2019, section 3.1; new in each epoch as in Liu et al., "RoBERTa", 2019, section 4.1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LetterMasks {
    /// The share of the letters that are predicted.
    share: f64,
    seed: u64,
}

/// Windows of letters, some of which are hidden.
struct MaskedWindows {
    windows: LetterWindows,
    masks: LetterMasks,
    /// The number of different letters, which is also the class of a hidden letter.
    letters: u32,
    /// Whether the same letters are hidden in each epoch, as in a test set.
    is_fixed: bool,
}

impl LetterMasks {
    /// Predicts a share of the letters, chosen by a seed.
    pub(super) fn new(share: f64, seed: u64) -> Self {
        Self { share, seed }
    }
}

/// Opens a text with windows of `context` letters. Memory: one byte for each letter.
pub(super) fn open(
    file: &OpenedFile,
    context: usize,
    masks: Option<LetterMasks>,
) -> Result<Split, DataError> {
    let object = &file.object;
    if object.bytes() > TEXT_BYTES_MAX {
        return Err(DataError::format(
            object.location(),
            format_args!(
                "more than {TEXT_BYTES_MAX} bytes of text, which are held in memory: use source = \"records\""
            ),
        ));
    }
    let mut text = vec![0; object.bytes() as usize];
    object.read_at(0, &mut text)?;
    let name = match &file.name {
        Some(name) => name.clone(),
        None => object.location().to_owned(),
    };
    split(text, name, context, masks)
}

fn split(
    mut text: Vec<u8>,
    name: String,
    context: usize,
    masks: Option<LetterMasks>,
) -> Result<Split, DataError> {
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
    let letters = (0..=u8::MAX).filter(|byte| known[usize::from(*byte)]);
    let vocabulary = Arc::new(Vocabulary::letters(letters.collect()));
    let hash = blake3::hash(&text).to_hex();
    text.iter_mut()
        .for_each(|byte| *byte = class_of[usize::from(*byte)]);
    let classes = Arc::new(text);
    let set = |part: Range<usize>, title: &str, is_fixed: bool| -> Option<Arc<dyn Dataset>> {
        // The target of the last letter of a window is the first letter of the next window.
        let samples = part.len().checked_sub(1)? / context;
        let windows = LetterWindows {
            classes: Arc::clone(&classes),
            part,
        };
        let mut identity = format!("text version 1: blake3:{hash}, {title}, context {context}");
        let source: Arc<dyn SampleSource> = match masks {
            None => Arc::new(windows),
            Some(masks) => {
                let LetterMasks { share, seed } = masks;
                identity = format!("{identity}, masked {share}, seed {seed}");
                Arc::new(MaskedWindows {
                    windows,
                    masks,
                    letters: count,
                    is_fixed,
                })
            }
        };
        let classes = count + u32::from(masks.is_some());
        let description = DatasetDescription {
            targets_per_sample: context,
            vocabulary: Some(Arc::clone(&vocabulary)),
            files: vec![FileContent {
                name: name.clone(),
                hash: format!("blake3:{}", &hash[..16]),
            }],
            ..DatasetDescription::new(vec![context], classes, identity)
        };
        let set = MemoryDataset::of(source, samples as u64, description);
        (samples > 0).then(|| Arc::new(set) as _)
    };
    let (bytes, end) = (classes.len(), classes.len() - classes.len() / TEST_PART);
    let train = set(0..end, "first nine tenths", false).ok_or_else(|| DataError::Empty {
        addresses: name.clone(),
    })?;
    Ok(Split {
        train,
        test: set(end..bytes, "last tenth", true),
    })
}

impl SampleSource for LetterWindows {
    fn write(&self, sample: u64, _epoch: Epoch, out: &mut [f32], targets: &mut [u32]) {
        let start = self.part.start + sample as usize * out.len();
        let letters = &self.classes[start..=start + out.len()];
        for (at, pair) in letters.windows(2).enumerate() {
            out[at] = f32::from(pair[0]);
            targets[at] = u32::from(pair[1]);
        }
    }
}

impl SampleSource for MaskedWindows {
    fn write(&self, sample: u64, epoch: Epoch, out: &mut [f32], targets: &mut [u32]) {
        let start = self.windows.part.start + sample as usize * out.len();
        let letters = &self.windows.classes[start..start + out.len()];
        let epoch = if self.is_fixed { 0 } else { epoch.0 };
        let stream = SeedTree::new(self.masks.seed);
        let stream = stream.stream(Purpose::Augmentation, &[epoch, start as u64]);
        // Three random numbers for each letter: whether it is predicted, the shown letter, and the other one.
        let mut numbers = vec![0.0; 3 * letters.len()];
        stream.fill_uniform(&mut numbers);
        let places = out.iter_mut().zip(targets).zip(letters);
        for (((shown, target), letter), numbers) in places.zip(numbers.chunks_exact(3)) {
            *shown = f32::from(*letter);
            *target = IGNORED;
            if f64::from(numbers[0]) < self.masks.share {
                *target = u32::from(*letter);
                if numbers[1] < 0.8 {
                    *shown = self.letters as f32;
                } else if numbers[1] < 0.9 {
                    *shown = (numbers[2] * self.letters as f32).floor();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DatasetExt;

    fn text(bytes: &[u8], context: usize) -> Result<Split, DataError> {
        split(bytes.to_vec(), "text".to_owned(), context, None)
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
    fn hidden_letters_are_the_targets_and_change_with_the_epoch() {
        let text: Vec<u8> = (0..20_000_u32).map(|i| b'a' + (i * i % 7) as u8).collect();
        let masks = Some(LetterMasks::new(0.25, 3));
        let split = super::split(text.clone(), "text".to_owned(), 100, masks).unwrap();
        let plain = super::split(text, "text".to_owned(), 100, None).unwrap();
        let classes = plain.train.description().classes;
        assert_eq!(split.train.description().classes, classes + 1);
        let read = |set: &dyn Dataset, epoch| {
            let fetched = set.fetch(&[3]).unwrap();
            let (mut out, mut targets) = (vec![0.0; 100], vec![0; 100]);
            let scratch = &mut crate::decode::DecodeScratch::default();
            let written = fetched.decode(0, Epoch(epoch), scratch, &mut out, &mut targets);
            written.unwrap();
            (out, targets)
        };
        let (letters, _) = read(&*plain.train, 0);
        let (mut predicted, mut hidden, mut kept) = (0, 0, 0);
        for epoch in 0..40 {
            let (shown, targets) = read(&*split.train, epoch);
            for ((shown, target), letter) in shown.iter().zip(targets).zip(&letters) {
                if target == IGNORED {
                    assert_eq!(shown, letter);
                    continue;
                }
                assert_eq!(target as f32, *letter);
                predicted += 1;
                hidden += u32::from(*shown == classes as f32);
                kept += u32::from(shown == letter);
            }
        }
        assert!((900..1100).contains(&predicted), "{predicted} of 4,000");
        assert!((0.75..0.85).contains(&(f64::from(hidden) / f64::from(predicted))));
        assert!(kept > 0 && hidden + kept < predicted);
        assert_ne!(read(&*split.train, 0), read(&*split.train, 1));
        let test = split.test.unwrap();
        assert_eq!(read(&*test, 0), read(&*test, 1));
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
