//! Reading lines of comma-separated numbers, the label last, without trust in the file.
//!
//! Numbers need no quoting, so a line is split at its commas. A first line in which no field is a
//! number is a heading and skipped; so are blank lines and a byte order mark.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::dataset::check_form;
use crate::{DataError, MemoryDataset};

/// Most bytes of one field.
const FIELD_BYTES_MAX: usize = 64;

/// Most features of a whole file: 8 GiB.
const FEATURES_MAX: u64 = 1 << 31;

/// What a file must look like.
pub(crate) struct CsvForm {
    shape: Vec<usize>,
    elements: usize,
    /// `None`: the last column is a value.
    classes: Option<u32>,
    scale: f32,
}

impl CsvForm {
    /// Refuses shapes, class counts and scales that are not possible.
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

    /// Lines that end in a value, not in a label.
    pub(crate) fn values(shape: &[usize]) -> Result<Self, DataError> {
        Ok(Self {
            elements: check_form(shape, 1)?,
            shape: shape.to_vec(),
            classes: None,
            scale: 1.0,
        })
    }
}

/// Reads a `.csv` or `.csv.gz` file whole; which of them it is, its first bytes tell.
pub(crate) fn read_file(path: &Path, form: &CsvForm) -> Result<MemoryDataset, DataError> {
    let io = |cause| DataError::Io {
        path: path.to_owned(),
        cause,
    };
    let mut reader = BufReader::new(File::open(path).map_err(io)?);
    let gzip = reader.fill_buf().map_err(io)?.starts_with(&[0x1f, 0x8b]);
    let (features, labels) = if gzip {
        let decoder = flate2::bufread::MultiGzDecoder::new(reader);
        read_lines(BufReader::new(decoder), path, form)?
    } else {
        read_lines(reader, path, form)?
    };
    match form.classes {
        Some(classes) => MemoryDataset::new(features, labels, form.shape.clone(), classes),
        None => MemoryDataset::of_values(features, labels, form.shape.clone()),
    }
}

/// Features, divided by the scale, and labels of all lines.
pub(crate) fn read_lines(
    mut reader: impl BufRead,
    path: &Path,
    form: &CsvForm,
) -> Result<(Vec<f32>, Vec<u32>), DataError> {
    let line_bytes_max = (form.elements as u64 + 1) * (FIELD_BYTES_MAX as u64 + 1);
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
        let line = Line {
            path,
            number,
            form,
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

/// The text of a line without its end; what is no UTF-8 becomes a sign that no number has.
fn text_of(bytes: &[u8], number: u64) -> std::borrow::Cow<'_, str> {
    let bytes = match bytes.strip_prefix(b"\xEF\xBB\xBF") {
        Some(rest) if number == 1 => rest,
        _ => bytes,
    };
    String::from_utf8_lossy(bytes)
}

/// One line, and where it stands.
struct Line<'a> {
    path: &'a Path,
    number: u64,
    form: &'a CsvForm,
    text: std::borrow::Cow<'a, str>,
}

impl Line<'_> {
    fn fields(&self) -> impl Iterator<Item = &str> {
        self.text.split(',').map(str::trim)
    }

    fn is_heading(&self) -> bool {
        self.fields()
            .all(|field| !field.is_empty() && field.parse::<f64>().is_err())
    }

    /// Appends the features and returns the label.
    fn parse(&self, features: &mut Vec<f32>) -> Result<u32, DataError> {
        let elements = self.form.elements;
        let mut fields = self.fields().enumerate();
        for (index, field) in fields.by_ref().take(elements) {
            let value = field
                .parse::<f32>()
                .ok()
                .map(|value| value / self.form.scale)
                .filter(|value| value.is_finite())
                .ok_or_else(|| self.refuse(index, field, "expected a finite number"))?;
            features.push(value);
        }
        let found = self.text.split(',').count();
        let Some((index, field)) = fields.next().filter(|_| found == elements + 1) else {
            let last = self.fields().last().unwrap_or_default();
            let problem = format!(
                "expected {} columns ({elements} features and the label), the line has {found}",
                elements + 1
            );
            return Err(self.refuse(found - 1, last, &problem));
        };
        let Some(classes) = self.form.classes else {
            let value = field.parse::<f32>().ok().filter(|value| value.is_finite());
            let refused = || self.refuse(index, field, "expected a finite number");
            return value.map(f32::to_bits).ok_or_else(refused);
        };
        label(field)
            .filter(|&label| label < classes)
            .ok_or_else(|| {
                let problem = format!("expected a label, a whole number of 0 to {}", classes - 1);
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

/// A whole number, also when written as `3.0` or `3e0`.
fn label(field: &str) -> Option<u32> {
    field.parse().ok().or_else(|| {
        let value = field.parse::<f64>().ok()?;
        (value.fract() == 0.0 && (0.0..f64::from(u32::MAX)).contains(&value))
            .then_some(value as u32)
    })
}

#[cfg(test)]
mod tests;
