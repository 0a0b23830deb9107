//! [`WebDataset`]: tar files in which consecutive members with the same base name form a record.
//!
//! The path of a member up to the first dot of its last component is the record's key, the rest is the field: `a/7.jpg`
//! and `a/7.cls` are the fields `jpg` and `cls` of one record, whose key is in `__key__`. TarMembers that are not regular
//! files, or whose name has no dot, are ignored. Records are grouped into extents of up to 16 KiB; a `.tar.gz` is one
//! extent, which is unpacked at once (at most 1 GiB). Hard links and sparse files make a record bad. Values in JSON members are fields, too: `json.label`. After a
//! damaged header the rest of a file is unreadable. Archives that were joined into one file are read one after the other, as by
//! `tar --ignore-zeros`; other bytes after an end mark are a bad record.
//!
//! The content hash covers names and bytes of all members that belong to records.
//!
//! Source: the WebDataset convention (github.com/webdataset/webdataset, `tariterators.py`); POSIX.1-2001 `pax`.

mod json;
mod members;
mod scan;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use json::JsonError;
use members::{TarMember, TarMembers, split};
use ronde_store::StoredObject;

use super::object::{is_gzip, unpack};
use super::record_file::changed;
use super::{
    BadRecord, Extent, FieldSelection, Format, RECORD_BYTES_MAX, Record, RecordFile, Records,
    ScanItem, SharedBytes, Value,
};
use crate::error::DataError;

/// The field that contains the key of a record.
const KEY: &str = "__key__";

/// The format of tar files of records.
#[derive(Debug, Clone, Default)]
pub struct WebDataset {
    wanted: Arc<FieldSelection>,
}

impl WebDataset {
    /// Creates the format for the fields in `wanted`.
    #[must_use]
    pub fn new(wanted: FieldSelection) -> Self {
        Self {
            wanted: Arc::new(wanted),
        }
    }
}

impl Format for WebDataset {
    fn identity(&self) -> String {
        "webdataset version 1".to_owned()
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        Ok(Box::new(TarFile {
            file,
            wanted: self.wanted.clone(),
        }))
    }
}

struct TarFile {
    file: Arc<dyn StoredObject>,
    wanted: Arc<FieldSelection>,
}

/// The members of a record by field.
struct TarSample {
    start: u64,
    key: String,
    fields: Vec<(String, Range<u64>)>,
}

impl TarSample {
    fn new(start: u64, key: &str) -> Self {
        Self {
            start,
            key: key.to_owned(),
            fields: Vec::new(),
        }
    }

    /// Adds a member; returns `false` if the record already has that field.
    fn add(&mut self, field: &str, data: Range<u64>) -> bool {
        let field = field.to_ascii_lowercase();
        let is_new = self.fields.iter().all(|(existing, _)| *existing != field);
        if is_new {
            self.fields.push((field, data));
        }
        is_new
    }
}

impl RecordFile for TarFile {
    fn scan(
        &self,
        found: &mut dyn FnMut(ScanItem) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError> {
        scan::scan(&self.file, found)
    }

    fn parse(
        &self,
        extent: &Extent,
        pieces: Vec<SharedBytes>,
    ) -> Result<Box<dyn Records>, DataError> {
        let file = self.file.location();
        let Some(piece) = pieces.into_iter().next() else {
            return Err(changed(file, extent, "no bytes were passed"));
        };
        let is_packed = extent.start == 0 && is_gzip(piece.as_ref());
        let piece = match is_packed {
            true => SharedBytes::from(unpack(file, piece.as_ref(), RECORD_BYTES_MAX)?),
            false => piece,
        };
        let samples = samples(piece.as_ref());
        if samples.len() as u64 != u64::from(extent.records) {
            let problem = format!("{} records instead of {}", samples.len(), extent.records);
            return Err(changed(file, extent, problem));
        }
        Ok(Box::new(TarRecords {
            file: file.to_owned(),
            start: extent.start,
            wanted: self.wanted.clone(),
            piece,
            samples,
        }))
    }
}

/// Returns the records in `bytes`, without those that the scan reported as bad.
fn samples(bytes: &[u8]) -> Vec<TarSample> {
    let mut members = TarMembers::new(bytes);
    let mut samples: Vec<TarSample> = Vec::new();
    let mut is_bad = false;
    // The scan stops at an error, too; the record before it may be incomplete.
    loop {
        match members.next() {
            Ok(Some(TarMember {
                name,
                start,
                data,
                unsupported,
                after_mark,
            })) => {
                let Some((key, field)) = split(&name) else {
                    if members.skip(data.end - data.start, |_| {}).is_err() {
                        break;
                    }
                    continue;
                };
                let is_new = |sample: &TarSample| sample.key != key;
                if after_mark.is_some() || samples.last().is_none_or(is_new) {
                    if is_bad {
                        samples.pop();
                    }
                    is_bad = false;
                    samples.push(TarSample::new(start, key));
                }
                let added = samples.last_mut().map(|s| s.add(field, data.clone()));
                is_bad |= added == Some(false) || unsupported.is_some();
                if members.skip(data.end - data.start, |_| {}).is_err() {
                    is_bad = true;
                    break;
                }
            }
            Ok(None) => break,
            Err(problem) => {
                is_bad |= problem.is_inside;
                break;
            }
        }
    }
    if is_bad {
        samples.pop();
    }
    samples
}

type NamedValues<'a> = Vec<(Cow<'a, str>, Value<'a>)>;

struct TarRecords {
    file: String,
    start: u64,
    wanted: Arc<FieldSelection>,
    piece: SharedBytes,
    samples: Vec<TarSample>,
}

impl Records for TarRecords {
    fn record(&self, number: u32) -> Result<Record<'_>, DataError> {
        let bad = |offset, problem: &dyn fmt::Display| {
            DataError::from(BadRecord::new(
                self.file.clone(),
                self.start + offset,
                None,
                problem,
            ))
        };
        let Some(sample) = self.samples.get(number as usize) else {
            return Err(bad(0, &format_args!("the extent has no record {number}")));
        };
        let mut fields = Vec::with_capacity(sample.fields.len() + 1);
        if self.wanted.has(KEY) {
            fields.push((KEY.into(), Value::Bytes(sample.key.as_bytes().into())));
        }
        for (field, data) in &sample.fields {
            if self.wanted.has(field) {
                let bytes = self
                    .piece
                    .as_ref()
                    .get(data.start as usize..data.end as usize);
                let bytes = bytes.ok_or_else(|| bad(sample.start, &"the record is cut off"))?;
                fields.push((field.as_str().into(), Value::Bytes(bytes.into())));
            }
        }
        self.add_json(sample, &mut fields)
            .map_err(|problem| bad(sample.start, &problem))?;
        Ok(Record { fields })
    }
}

impl TarRecords {
    /// Adds the requested fields that are in JSON members.
    fn add_json<'a>(
        &'a self,
        sample: &TarSample,
        fields: &mut NamedValues<'a>,
    ) -> Result<(), JsonError> {
        let FieldSelection::Fields(wanted) = &*self.wanted else {
            return Ok(());
        };
        let mut read: Option<(&str, serde_json::Value)> = None;
        for name in wanted.names() {
            let Some((member, path)) = json::split(name) else {
                continue;
            };
            if read
                .as_ref()
                .is_none_or(|(existing, _)| *existing != member)
            {
                let found = sample.fields.iter().find(|(field, _)| field == member);
                let Some((_, data)) = found else { continue };
                let bytes = self
                    .piece
                    .as_ref()
                    .get(data.start as usize..data.end as usize);
                let document =
                    serde_json::from_slice(bytes.unwrap_or_default()).map_err(|cause| {
                        JsonError::Syntax {
                            member: member.to_owned(),
                            cause,
                        }
                    })?;
                read = Some((member, document));
            }
            if let Some((_, document)) = &read {
                let value = json::value(document, path)?;
                fields.extend(value.map(|value| (name.as_str().into(), value)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
