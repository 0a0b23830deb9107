//! Text as single letters: each sample is a window of letters, and its targets are the next letters.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::dataset::{check_form, check_read_all};
use crate::{DataError, Dataset, Split};

/// The beginning of a novel; `assets/README.md` states its origin.
const EMBEDDED: &[u8] = include_bytes!("../assets/pride.txt.gz");

/// The maximum bytes of a text.
const TEXT_BYTES_MAX: u64 = 1 << 28;

/// The divisor that gives the share of the text, at its end, that is the test set.
const TEST_PART: usize = 10;

/// The windows of a text. Classes are the different bytes of the whole text, in ascending order.
pub(crate) struct TextWindows {
    /// The class of each byte of this split.
    classes: Vec<u8>,
    count: u32,
    shape: [usize; 1],
    identity: String,
    /// The name and hash of the text file.
    file: (String, String),
}

/// Opens a text, or the embedded one, with windows of `context` letters.
pub(crate) fn open(path: Option<&Path>, context: usize) -> Result<Split, DataError> {
    let (text, name) = match path {
        Some(path) => (read_file(path)?, path),
        None => (
            unpack(EMBEDDED, Path::new("pride.txt.gz"))?,
            Path::new("pride.txt.gz"),
        ),
    };
    split(&text, name, context)
}

fn split(text: &[u8], name: &Path, context: usize) -> Result<Split, DataError> {
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
    let hash = blake3::hash(text).to_hex();
    let shown = name
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let part = |part: &[u8], of: &str| {
        (part.len() > context).then(|| TextWindows {
            classes: part
                .iter()
                .map(|&byte| class_of[usize::from(byte)])
                .collect(),
            count,
            shape: [context],
            file: (shown.clone(), format!("blake3:{}", &hash[..16])),
            identity: format!("text version 1: blake3:{hash}, {of}, context {context}"),
        })
    };
    let (train, test) = text.split_at(text.len() - text.len() / TEST_PART);
    let train = part(train, "first nine tenths").ok_or_else(|| DataError::NoSamples {
        path: name.to_owned(),
    })?;
    Ok(Split {
        train: Arc::new(train),
        test: part(test, "last tenth").map(|test| Arc::new(test) as Arc<dyn Dataset>),
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>, DataError> {
    let io = |cause| DataError::Io {
        path: path.to_owned(),
        cause,
    };
    let text = ronde_store::read_regular(path, TEXT_BYTES_MAX).map_err(io)?;
    if text.starts_with(&[0x1f, 0x8b]) {
        return unpack(&text, path);
    }
    limited(text, path)
}

fn unpack(packed: &[u8], path: &Path) -> Result<Vec<u8>, DataError> {
    let mut text = Vec::new();
    flate2::bufread::MultiGzDecoder::new(packed)
        .take(TEXT_BYTES_MAX + 1)
        .read_to_end(&mut text)
        .map_err(|cause| DataError::Io {
            path: path.to_owned(),
            cause,
        })?;
    limited(text, path)
}

fn limited(text: Vec<u8>, path: &Path) -> Result<Vec<u8>, DataError> {
    if text.len() as u64 <= TEXT_BYTES_MAX {
        return Ok(text);
    }
    Err(DataError::Limit {
        path: path.to_owned(),
        line: text.iter().filter(|&&byte| byte == b'\n').count() as u64 + 1,
        limit: TEXT_BYTES_MAX,
        what: "bytes",
    })
}

impl Dataset for TextWindows {
    fn len(&self) -> u64 {
        // The target of the last letter of a window is the first letter of the next window.
        ((self.classes.len() - 1) / self.shape[0]) as u64
    }

    fn sample_shape(&self) -> &[usize] {
        &self.shape
    }

    fn classes(&self) -> u32 {
        self.count
    }

    fn targets_per_sample(&self) -> usize {
        self.shape[0]
    }

    fn read_all(&self, sample: u64, out: &mut [f32], targets: &mut [u32]) -> Result<(), DataError> {
        check_read_all(self, sample, out, targets)?;
        let start = sample as usize * self.shape[0];
        let letters = &self.classes[start..=start + self.shape[0]];
        for (at, pair) in letters.windows(2).enumerate() {
            out[at] = f32::from(pair[0]);
            targets[at] = u32::from(pair[1]);
        }
        Ok(())
    }

    fn read(&self, sample: u64, out: &mut [f32]) -> Result<u32, DataError> {
        let mut targets = vec![0; self.shape[0]];
        self.read_all(sample, out, &mut targets)?;
        Ok(targets[0])
    }

    fn files(&self) -> Vec<(String, String)> {
        vec![self.file.clone()]
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_next_letters() {
        let text = b"abcabcabcdabcabcabcdabcabcabcdabcabcabcdx";
        let split = split(text, Path::new("text"), 3).unwrap();
        let (train, test) = (split.train, split.test.unwrap());
        assert_eq!((train.len(), train.classes(), test.len()), (12, 5, 1));
        let (mut out, mut targets) = ([0.0; 3], [9; 3]);
        train.read_all(2, &mut out, &mut targets).unwrap();
        assert_eq!((out, targets), ([0.0, 1.0, 2.0], [1, 2, 3]));
        test.read_all(0, &mut out, &mut targets).unwrap();
        assert_eq!((out, targets), ([1.0, 2.0, 3.0], [2, 3, 4]));
        assert!(train.read_all(12, &mut out, &mut targets).is_err());
        assert!(train.read_all(0, &mut out, &mut targets[..2]).is_err());
        assert_ne!(train.identity(), test.identity());
    }

    #[test]
    fn the_embedded_text_is_complete() {
        let split = open(None, 64).unwrap();
        assert_eq!(split.train.classes(), 74);
        assert_eq!(split.train.targets_per_sample(), 64);
        assert!(split.train.len() > 1500 && split.test.unwrap().len() > 150);
        let text = unpack(EMBEDDED, Path::new("x")).unwrap();
        assert!(text.starts_with(b"PRIDE AND PREJUDICE"));
    }

    #[test]
    fn short_and_missing_texts_are_rejected() {
        let short = split(b"abc", Path::new("short"), 3).unwrap_err();
        assert!(matches!(short, DataError::NoSamples { .. }));
        assert!(matches!(
            split(b"abcdef", Path::new("t"), 0),
            Err(DataError::Shape { .. })
        ));
        assert!(open(Some(Path::new("/no/such/text")), 8).is_err());
    }
}
