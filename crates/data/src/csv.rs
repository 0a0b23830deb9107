//! Reads untrusted files with lines of comma-separated numbers, the label last.
//!
//! Numbers need no quoting, so a line is split at its commas. A first line in which no field is a number is skipped as a
//! heading; blank lines and a byte order mark are skipped, too.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::dataset::check_form;
use crate::{DataError, MemoryDataset};
use ronde_store::open_regular;

/// The maximum bytes of a field.
const FIELD_BYTES_MAX: usize = 64;

/// The maximum number of features of a file: 8 GiB.
const FEATURES_MAX: u64 = 1 << 31;

/// The expected contents of a file.
pub(crate) struct CsvLayout {
    shape: Vec<usize>,
    elements: usize,
    /// `None`: the last column is a value.
    classes: Option<u32>,
    scale: f32,
}

impl CsvLayout {
    /// Returns the layout for lines that end in a label; an error for an invalid shape, number of classes or scale.
    pub(crate) fn new(
        shape: &[usize],
        classes: u32,
        scale: Option<f32>,
    ) -> Result<Self, DataError> {
        let scale = scale.unwrap_or(1.0);
        if !scale.is_normal() {
            return Err(DataError::Scale { scale });
        }
        Ok(Self {
            elements: check_form(shape, classes)?,
            shape: shape.to_vec(),
            classes: Some(classes),
            scale,
        })
    }

    /// Returns the layout for lines that end in a value instead of a label.
    pub(crate) fn values(shape: &[usize]) -> Result<Self, DataError> {
        Ok(Self {
            elements: check_form(shape, 1)?,
            shape: shape.to_vec(),
            classes: None,
            scale: 1.0,
        })
    }
}

/// Reads a whole `.csv` or `.csv.gz` file; compression is detected from its first bytes.
pub(crate) fn read_file(path: &Path, layout: &CsvLayout) -> Result<MemoryDataset, DataError> {
    let io = |cause| DataError::Io {
        path: path.to_owned(),
        cause,
    };
    let mut reader = BufReader::new(open_regular(path).map_err(io)?.0);
    let gzip = reader.fill_buf().map_err(io)?.starts_with(&[0x1f, 0x8b]);
    let (features, labels) = if gzip {
        let decoder = flate2::bufread::MultiGzDecoder::new(reader);
        read_lines(BufReader::new(decoder), path, layout)?
    } else {
        read_lines(reader, path, layout)?
    };
    let set = match layout.classes {
        Some(classes) => MemoryDataset::new(features, labels, layout.shape.clone(), classes),
        None => MemoryDataset::of_values(features, labels, layout.shape.clone()),
    };
    Ok(set?.with_file(path))
}

/// Returns the features, divided by the scale, and the labels of all lines.
pub(crate) fn read_lines(
    mut reader: impl BufRead,
    path: &Path,
    layout: &CsvLayout,
) -> Result<(Vec<f32>, Vec<u32>), DataError> {
    let line_bytes_max = (layout.elements as u64 + 1) * (FIELD_BYTES_MAX as u64 + 1);
    let (mut features, mut labels) = (Vec::new(), Vec::new());
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        let read = (&mut reader)
            .take(line_bytes_max + 1)
            .read_until(b'\n', &mut bytes)
            .map_err(|cause| DataError::Io {
                path: path.to_owned(),
                cause,
            })?;
        if read == 0 {
            break;
        }
        let limit = |limit, what| DataError::Limit {
            path: path.to_owned(),
            line: number,
            limit,
            what,
        };
        if read as u64 > line_bytes_max {
            return Err(limit(line_bytes_max, "bytes in the line"));
        }
        let line = CsvLine {
            path,
            number,
            layout,
            text: text_of(&bytes, number),
        };
        if line.text.trim().is_empty() || (number == 1 && line.is_heading()) {
            continue;
        }
        labels.push(line.parse(&mut features)?);
        if features.len() as u64 > FEATURES_MAX {
            return Err(limit(FEATURES_MAX, "features"));
        }
    }
    if labels.is_empty() {
        return Err(DataError::NoSamples {
            path: path.to_owned(),
        });
    }
    Ok((features, labels))
}

/// Returns the text of a line without its end; invalid UTF-8 becomes a replacement character, which no number contains.
fn text_of(bytes: &[u8], number: u64) -> std::borrow::Cow<'_, str> {
    let bytes = match bytes.strip_prefix(b"\xEF\xBB\xBF") {
        Some(rest) if number == 1 => rest,
        _ => bytes,
    };
    String::from_utf8_lossy(bytes)
}

/// A line and its number.
struct CsvLine<'a> {
    path: &'a Path,
    number: u64,
    layout: &'a CsvLayout,
    text: std::borrow::Cow<'a, str>,
}

impl CsvLine<'_> {
    fn fields(&self) -> impl Iterator<Item = &str> {
        self.text.split(',').map(str::trim)
    }

    fn is_heading(&self) -> bool {
        self.fields()
            .all(|field| !field.is_empty() && field.parse::<f64>().is_err())
    }

    /// Appends the features of the line and returns its label.
    fn parse(&self, features: &mut Vec<f32>) -> Result<u32, DataError> {
        let elements = self.layout.elements;
        let mut fields = self.fields().enumerate();
        for (index, field) in fields.by_ref().take(elements) {
            let value = field
                .parse::<f32>()
                .ok()
                .map(|value| value / self.layout.scale)
                .filter(|value| value.is_finite())
                .ok_or_else(|| self.refuse(index, field, "expected a finite number"))?;
            features.push(value);
        }
        let found = self.text.split(',').count();
        let Some((index, field)) = fields.next().filter(|_| found == elements + 1) else {
            let last = self.fields().last().unwrap_or_default();
            let problem = format!(
                "expected {} columns ({elements} features and the label), but the line has {found}",
                elements + 1
            );
            return Err(self.refuse(found - 1, last, &problem));
        };
        let Some(classes) = self.layout.classes else {
            let value = field.parse::<f32>().ok().filter(|value| value.is_finite());
            let refused = || self.refuse(index, field, "expected a finite number");
            return value.map(f32::to_bits).ok_or_else(refused);
        };
        label(field)
            .filter(|&label| label < classes)
            .ok_or_else(|| {
                let problem = format!("expected a label from 0 to {}", classes - 1);
                self.refuse(index, field, &problem)
            })
    }

    fn refuse(&self, index: usize, value: &str, problem: &str) -> DataError {
        DataError::Cell {
            path: self.path.to_owned(),
            line: self.number,
            column: index + 1,
            value: value.chars().take(FIELD_BYTES_MAX / 2).collect(),
            problem: problem.to_owned(),
        }
    }
}

/// Parses a whole number, also if written as `3.0` or `3e0`.
fn label(field: &str) -> Option<u32> {
    field.parse().ok().or_else(|| {
        let value = field.parse::<f64>().ok()?;
        (value.fract() == 0.0 && (0.0..f64::from(u32::MAX)).contains(&value))
            .then_some(value as u32)
    })
}

#[cfg(test)]
mod tests;
