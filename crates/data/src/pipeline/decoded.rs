//! Decodes all records of a file into memory.

use std::error::Error;
use std::sync::Arc;

use super::{DecodedRecords, OpenedFile, TestOrigin};
use crate::dataset::Split;
use crate::decode::{DecodeScratch, RecordDecoder, SampleUse};
use crate::error::DataError;
use crate::format::{
    BadRecord, CsvLines, Extent, Format, RecordFile, Records, ScanItem, SharedBytes,
};
use crate::memory::MemoryDataset;
use crate::open_context::OpenContext;
use crate::read_limit::ReadLimit;

/// The maximum number of features of a file: 8 GiB.
const FEATURES_MAX: usize = 1 << 31;

/// Opens files of records. Cost: a pass to find the records, and a pass to decode them.
pub(super) fn open(
    records: &DecodedRecords<'_>,
    opening: &OpenContext,
) -> Result<Split, DataError> {
    let decoder = RecordDecoder::new(&records.schema, SampleUse::Test, opening.seed)?;
    let decoder = decoder.without_keys();
    let limit = opening.limit.as_deref();
    let read = |file: OpenedFile, format: &CsvLines| {
        let mut table = DecodedTable::new(&decoder);
        let larger = table.read(&file, format, limit)?;
        Ok::<_, DataError>((table, file.name, larger))
    };
    let train = records.train.open(opening)?;
    let heading = records.format.heading(&train.object)?;
    let set = |(table, name, larger): (DecodedTable<'_>, Option<String>, f64)| {
        let set = MemoryDataset::of_decoded(table.features, table.targets, &decoder);
        let set = set.with_heading(&heading);
        let set = match larger > 1.0 {
            true => set.with_part(larger),
            false => set,
        };
        Arc::new(match name {
            Some(name) => set.with_file(name),
            None => set,
        })
    };
    let mut train = read(train, &records.format)?;
    let test = match records.test {
        TestOrigin::None => None,
        TestOrigin::File(origin) => {
            // The columns are those of the training file, in any order.
            let format = records.format.in_order_of(&heading);
            Some(read(origin.open(opening)?, &format)?)
        }
        TestOrigin::From(sample) => Some((train.0.split_off(sample), train.1.clone(), train.2)),
    };
    Ok(Split {
        train: set(train),
        test: test.map(|test| set(test) as _),
    })
}

/// Decodes the training records of an open file.
#[cfg(test)]
pub(super) fn set(
    records: &DecodedRecords<'_>,
    file: &OpenedFile,
) -> Result<MemoryDataset, DataError> {
    let decoder = RecordDecoder::new(&records.schema, SampleUse::Test, 0)?;
    let mut table = DecodedTable::new(&decoder);
    table.read(file, &records.format, None)?;
    Ok(MemoryDataset::of_decoded(
        table.features,
        table.targets,
        &decoder,
    ))
}

/// The samples of a file, row-major.
struct DecodedTable<'a> {
    decoder: &'a RecordDecoder,
    elements: usize,
    features: Vec<f32>,
    targets: Vec<u32>,
}

impl<'a> DecodedTable<'a> {
    fn new(decoder: &'a RecordDecoder) -> Self {
        Self {
            decoder,
            elements: decoder.sample_shape().iter().product(),
            features: Vec::new(),
            targets: Vec::new(),
        }
    }

    fn samples(&self) -> usize {
        self.features.len() / self.elements
    }

    /// Decodes all records of a file, or those for which there is time; returns by how much the file is larger than these, 1 if these
    /// are all. A bad record is an error, with its line if the format has lines.
    fn read(
        &mut self,
        file: &OpenedFile,
        format: &dyn Format,
        limit: Option<&ReadLimit>,
    ) -> Result<f64, DataError> {
        let object = &file.object;
        let records = format.open(Arc::clone(object))?;
        let (extents, mut is_whole) = extents(&*records, limit)?;
        let mut end = 0;
        for extent in extents {
            if self.samples() > 0 && limit.is_some_and(ReadLimit::is_opening_over) {
                is_whole = false;
                break;
            }
            end = extent.start + extent.bytes;
            let mut pieces = Vec::new();
            for range in records.ranges(&extent) {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                object.read_at(range.start, &mut bytes)?;
                pieces.push(SharedBytes::from(bytes));
            }
            let parsed = records.parse(&extent, pieces)?;
            let added = self.add(&*parsed, extent.records);
            added.map_err(|problem| {
                let number = self.samples() as u64;
                let bad = BadRecord::new(object.location(), extent.start, Some(number), problem);
                with_line(&*records, bad)
            })?;
            if self.features.len() > FEATURES_MAX {
                let problem = format_args!(
                    "more than {FEATURES_MAX} features, which are held in memory: use source = \"records\", which reads \
                     samples when they are needed"
                );
                return Err(DataError::format(object.location(), problem));
            }
        }
        match self.samples() {
            0 => Err(DataError::Empty {
                addresses: object.location().to_owned(),
            }),
            _ if is_whole => Ok(1.0),
            _ => Ok(object.bytes() as f64 / end.max(1) as f64),
        }
    }

    /// Decodes `count` records.
    fn add(&mut self, records: &dyn Records, count: u32) -> Result<(), Box<dyn Error>> {
        let mut scratch = DecodeScratch::new();
        for number in 0..count {
            let record = records.record(number)?;
            let (features, targets) = (self.features.len(), self.targets.len());
            self.features.resize(features + self.elements, 0.0);
            self.targets
                .resize(targets + self.decoder.targets_per_sample(), 0);
            let sample = (features / self.elements) as u64;
            let out = (&mut self.features[features..], &mut self.targets[targets..]);
            let decoded = self
                .decoder
                .decode(&record, 0, sample, &mut scratch, out.0, out.1);
            if decoded.is_err() {
                self.features.truncate(features);
                return Ok(decoded?);
            }
        }
        Ok(())
    }

    /// Removes the samples from number `sample` on, and returns them.
    fn split_off(&mut self, sample: usize) -> Self {
        let sample = sample.min(self.samples());
        let targets = sample * self.decoder.targets_per_sample();
        Self {
            features: self.features.split_off(sample * self.elements),
            targets: self.targets.split_off(targets),
            ..*self
        }
    }
}

/// Finds the extents of a file, or those for which there is time; returns whether these are all. A bad record is an error.
fn extents(
    records: &dyn RecordFile,
    limit: Option<&ReadLimit>,
) -> Result<(Vec<Extent>, bool), DataError> {
    let mut extents = Vec::new();
    let mut is_stopped = false;
    let found = records.scan(&mut |found| {
        if !extents.is_empty() && limit.is_some_and(ReadLimit::is_finding_over) {
            is_stopped = true;
            return Err(DataError::Unread {
                addresses: String::new(),
            });
        }
        match found {
            ScanItem::Extent(extent) => extents.push(extent),
            ScanItem::Even(even) => {
                let mut record = 0;
                while let Some((extent, 0)) = even.locate(record) {
                    extents.push(extent);
                    record += u64::from(extent.records);
                }
            }
            ScanItem::Bad { record, .. } => return Err(DataError::Record(record)),
            ScanItem::Progress => {}
        }
        Ok(())
    });
    match found {
        _ if is_stopped => Ok((extents, false)),
        Ok(_) => Ok((extents, true)),
        Err(DataError::Record(bad)) => Err(with_line(records, bad)),
        Err(other) => Err(other),
    }
}

/// Returns the error of a bad record, with its line instead of its offset for formats of lines.
fn with_line(records: &dyn RecordFile, bad: BadRecord) -> DataError {
    let line = bad.record.map(|number| records.line_of(number));
    match line.transpose().map(Option::flatten) {
        Err(error) => error,
        Ok(None) => DataError::Record(bad),
        Ok(Some(line)) => DataError::format(bad.file, format_args!("line {line}: {}", bad.problem)),
    }
}
