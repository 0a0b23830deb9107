//! [`inspect`]: reports the format, fields, first samples and bad records of files of records.

use std::sync::Arc;

use crate::error::DataError;
use crate::format::{BadRecord, Format, FormatConfig, Record, Value};
use crate::index::{DataFile, Index, IndexProgress, IndexSettings, OnBadRecord, SampleLocation};
use crate::open_context::{DataEvent, OpenContext};
use crate::picture::Picture;
use crate::records::RecordsFile;
use crate::source::{FolderNames, SourceFile, expand};
use crate::tokenized::{self, tokenize};

/// The maximum number of displayed characters of a text.
const TEXT_MAX: usize = 40;
/// The maximum number of displayed numbers of a list.
const NUMBERS_MAX: usize = 6;
/// The maximum number of displayed bytes of binary data.
const BYTES_MAX: usize = 12;

/// A report about the contents of files.
#[derive(Debug)]
pub struct Inspection {
    /// The identity of the format.
    pub format: String,
    /// The number of files with that format.
    pub files: usize,
    /// The bytes of these files.
    pub bytes: u64,
    /// The number of samples.
    pub samples: u64,
    /// The minimum number of samples that are read together.
    pub block_samples: u64,
    /// The identity of the samples.
    pub identity: String,
    /// The fields of the first samples in their order, each with its first value.
    pub fields: Vec<(String, String)>,
    /// The first samples: one value for each of `fields`, empty if the field is absent.
    pub first: Vec<Vec<String>>,
    /// The first bad records.
    pub bad: Vec<BadRecord>,
    /// The number of bad records.
    pub bad_count: u64,
    /// Further warnings.
    pub warnings: Vec<String>,
}

/// Inspects the files that `addresses` match and their first `count` samples. Cost: reads files that were not indexed before
/// once.
///
/// # Errors
/// Addresses that match no file, and files that cannot be read or have another format. Bad records are not errors.
pub fn inspect(
    addresses: &[String],
    format: Option<&FormatConfig>,
    count: usize,
    opening: &OpenContext,
) -> Result<Inspection, DataError> {
    let opener = opening.opener(opening.remote.clone());
    let names = match format {
        Some(_) => FolderNames::All,
        None => FolderNames::KnownFormats,
    };
    let mut found = expand(addresses, &opening.base, &opener, names)?;
    let locations: Vec<String> = found.files.iter().map(SourceFile::location).collect();
    let names: Vec<&str> = locations.iter().map(String::as_str).collect();
    let (tokenization, format) =
        match FormatConfig::tokenization(format, &names, &opening.base, None)? {
            Some((tokenization, format)) => (Some(tokenization), format),
            None => (None, FormatConfig::format(format, &names, None)?),
        };
    found.retain(addresses, format.file_kind(), |location| {
        format.takes(location)
    })?;
    let mut warnings = found.notices(&addresses.join(", "));
    let mut files: Vec<Arc<dyn DataFile>> = found
        .files
        .iter()
        .map(|file| -> Arc<dyn DataFile> { Arc::new(RecordsFile::new(file, None)) })
        .collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    if let Some(tokenization) = tokenization {
        let token_store = tokenized::TokenStore::new(opening, None)?;
        let run = (threads, None);
        (files, _) = tokenize(&files, &tokenization, &token_store, run, &|_| {})?;
    }
    let settings = IndexSettings {
        folder: opening.index_folder(),
        threads,
        on_bad_record: OnBadRecord::Skip,
        ..IndexSettings::default()
    };
    let what = format!("scanning {} files", files.len());
    let report = |share| {
        let what = what.clone();
        (opening.report)(&DataEvent::Progress { what, share });
    };
    let index = Index::build(&files, &*format, &settings, &|progress: IndexProgress| {
        report(progress.bytes as f64 / progress.bytes_total.max(1) as f64);
    });
    report(1.0);
    let index = index?;
    let samples = first_samples(&files, &*format, &index, count)?;
    let (fields, first) = table(&samples);
    warnings.extend_from_slice(index.warnings());
    Ok(Inspection {
        format: format.identity(),
        files: files.len(),
        bytes: files.iter().map(|file| file.bytes()).sum(),
        samples: index.samples(),
        block_samples: index.block_samples(),
        identity: index.identity().to_owned(),
        fields,
        first,
        bad: index.bad().to_vec(),
        bad_count: index.bad_count(),
        warnings,
    })
}

type FieldTexts = Vec<(String, String)>;

/// Returns the fields and values of the first samples as text.
fn first_samples(
    files: &[Arc<dyn DataFile>],
    format: &dyn Format,
    index: &Index,
    count: usize,
) -> Result<Vec<FieldTexts>, DataError> {
    let mut texts = Vec::new();
    let mut sample = 0;
    while texts.len() < count {
        let Some(SampleLocation { file, extent, .. }) = index.locate(sample) else {
            break;
        };
        let object = files[file].open()?;
        let open = format.open(object.clone())?;
        let mut pieces = Vec::new();
        for range in open.ranges(&extent) {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            object.read_at(range.start, &mut bytes)?;
            pieces.push(bytes.into());
        }
        let records = open.parse(&extent, pieces)?;
        for number in 0..extent.records.min((count - texts.len()) as u32) {
            texts.push(match records.record(number) {
                Ok(record) => field_texts(&record),
                Err(error) => vec![("error".to_owned(), error.to_string())],
            });
        }
        sample += u64::from(extent.records);
    }
    Ok(texts)
}

fn field_texts(record: &Record<'_>) -> FieldTexts {
    let fields = record.fields.iter();
    fields
        .map(|(name, value)| (name.to_string(), shown(value)))
        .collect()
}

/// Returns all fields that occur, and a row for each sample.
fn table(samples: &[FieldTexts]) -> (FieldTexts, Vec<Vec<String>>) {
    let mut fields: FieldTexts = Vec::new();
    for (name, value) in samples.iter().flatten() {
        if fields.iter().all(|(known, _)| known != name) {
            fields.push((name.clone(), value.clone()));
        }
    }
    let row = |sample: &FieldTexts| {
        let cell = |(name, _): &(String, String)| {
            let found = sample.iter().find(|(field, _)| field == name);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        fields.iter().map(cell).collect()
    };
    let rows = samples.iter().map(row).collect();
    (fields, rows)
}

/// Formats a value briefly: an image as format and size, a text as its beginning, numbers with their type.
#[must_use]
pub fn shown(value: &Value<'_>) -> String {
    match value {
        Value::Bytes(bytes) => one(bytes),
        Value::List(list) => {
            let first: Vec<_> = list.iter().take(3).map(|bytes| one(bytes)).collect();
            let more = if list.len() > 3 { ", .." } else { "" };
            format!("{} x [{}{more}]", list.len(), first.join(", "))
        }
        Value::Numbers { dtype, bytes } => {
            let count = bytes.len() / dtype.bytes();
            let number = |at| match dtype.is_float() {
                true => dtype.float(bytes, at).map(|n| format!("{n}")),
                false => dtype.integer(bytes, at).map(|n| n.to_string()),
            };
            let first: Vec<_> = (0..count.min(NUMBERS_MAX)).filter_map(number).collect();
            let more = if count > NUMBERS_MAX { ", .." } else { "" };
            match count {
                1 => format!("{} ({})", first.concat(), dtype.name()),
                _ => format!("{count} {} [{}{more}]", dtype.name(), first.join(", ")),
            }
        }
    }
}

fn one(bytes: &[u8]) -> String {
    if let Some(picture) = Picture::of(bytes) {
        let Picture {
            kind,
            width,
            height,
        } = picture;
        return format!("{kind} {width} x {height}, {} bytes", bytes.len());
    }
    let is_plain = |text: &&str| {
        !text
            .chars()
            .any(|character| character.is_control() && !"\n\t\r".contains(character))
    };
    match std::str::from_utf8(bytes).ok().filter(is_plain) {
        Some(text) if text.chars().count() <= TEXT_MAX => format!("{text:?}"),
        Some(text) => {
            let first: String = text.chars().take(TEXT_MAX).collect();
            format!("{first:?}.., {} bytes", bytes.len())
        }
        None => {
            let first = bytes
                .iter()
                .take(BYTES_MAX)
                .map(|byte| format!("{byte:02x}"));
            let more = if bytes.len() > BYTES_MAX { ".." } else { "" };
            format!(
                "{} bytes {}{more}",
                bytes.len(),
                first.collect::<Vec<_>>().concat()
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_formatted_briefly() {
        let image = include_bytes!("../tests/vectors/pattern.jpg");
        assert_eq!(
            shown(&Value::Bytes(image[..].into())),
            "JPEG 64 x 48, 1040 bytes"
        );
        assert_eq!(shown(&Value::Bytes(b"dog"[..].into())), "\"dog\"");
        assert_eq!(
            shown(&Value::Bytes(vec![b'a'; 100].into())),
            format!("\"{}\".., 100 bytes", "a".repeat(40))
        );
        assert_eq!(
            shown(&Value::Bytes([0, 1, 0xff][..].into())),
            "3 bytes 0001ff"
        );
        assert_eq!(shown(&Value::integers(&[7])), "7 (i64)");
        assert_eq!(
            shown(&Value::floats(&[0.5; 9])),
            "9 f32 [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, ..]"
        );
        assert_eq!(shown(&Value::integers(&[])), "0 i64 []");
        let list = Value::List(vec![b"a"[..].into(); 4]);
        assert_eq!(shown(&list), "4 x [\"a\", \"a\", \"a\", ..]");
    }
}
