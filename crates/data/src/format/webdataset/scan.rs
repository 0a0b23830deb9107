//! The scan of a tar file: a record ends where the key of the member names changes.

use std::fmt;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use ronde_store::StoredObject;

use super::members::{TarError, TarMember, TarMembers, TarProblem, split};
use super::{TarSample, is_gzip};
use crate::error::DataError;
use crate::format::object::{ObjectReader, failed};
use crate::format::{BadRecord, EXTENT_BYTES_MAX, Extent, ItemSink, RECORD_BYTES_MAX, ScanItem};

/// The size up to which small records are grouped into one extent, in bytes.
const EXTENT_BYTES: u64 = 16 << 10;

pub(super) fn scan(
    file: &Arc<dyn StoredObject>,
    found: &mut ItemSink<'_>,
) -> Result<[u8; 32], DataError> {
    let mut head = vec![0; file.bytes().min(3) as usize];
    file.read_at(0, &mut head)?;
    let plain = ObjectReader::new(file.clone(), 0);
    let mut scan = TarScan {
        file: file.location(),
        file_bytes: file.bytes(),
        found,
        hasher: blake3::Hasher::new_derive_key("ronde tar content, version 1"),
        number: 0,
        records: 0,
        open: None,
        is_packed: is_gzip(&head),
    };
    if !scan.is_packed {
        scan.all(TarMembers::new(plain))?;
        scan.close()?;
        return Ok(*scan.hasher.finalize().as_bytes());
    }
    if file.bytes() > EXTENT_BYTES_MAX {
        return Err(scan.too_large());
    }
    let unpacked = MultiGzDecoder::new(std::io::BufReader::with_capacity(1 << 18, plain));
    match scan.all(TarMembers::new(unpacked)) {
        // A file that cannot be unpacked completely is not used at all.
        Err(DataError::Record(bad)) => {
            found(ScanItem::Bad {
                record: bad,
                bytes: file.bytes(),
            })?;
            return Ok([0; 32]);
        }
        other => other?,
    }
    let (hash, records) = (*scan.hasher.finalize().as_bytes(), scan.records);
    if let Ok(records @ 1..) = u32::try_from(records) {
        found(ScanItem::Extent(Extent {
            start: 0,
            bytes: file.bytes(),
            records,
        }))?;
    }
    Ok(hash)
}

struct TarScan<'a, 'b> {
    file: &'a str,
    file_bytes: u64,
    found: &'a mut ItemSink<'b>,
    hasher: blake3::Hasher,
    /// The number of the next record.
    number: u64,
    /// The number of usable records.
    records: u64,
    /// Small records that are grouped into one extent.
    open: Option<Extent>,
    is_packed: bool,
}

impl TarScan<'_, '_> {
    fn too_large(&self) -> DataError {
        DataError::format(
            self.file,
            format_args!(
                "the compressed file is too large to be unpacked at once: the limit is {RECORD_BYTES_MAX} bytes unpacked; \
                 make its shards smaller"
            ),
        )
    }

    fn all<R: std::io::Read>(&mut self, mut members: TarMembers<R>) -> Result<(), DataError> {
        // The record being read, its hash, and the reason why it is bad.
        let mut now: Option<(TarSample, blake3::Hasher, Option<String>)> = None;
        let broken = loop {
            if self.is_packed && members.position() > RECORD_BYTES_MAX {
                return Err(self.too_large());
            }
            let TarMember {
                name,
                start,
                data,
                unsupported,
                after_mark,
            } = match members.next() {
                Ok(Some(member)) => member,
                Ok(None) => break None,
                Err(broken) => break Some(broken),
            };
            let bytes = data.end - data.start;
            let Some((key, field)) = split(&name) else {
                if let Err(broken) = members.skip(bytes, |_| {}) {
                    break Some(broken);
                }
                continue;
            };
            let is_new = |(sample, ..): &(TarSample, _, _)| sample.key != key;
            if after_mark.is_some() || now.as_ref().is_none_or(is_new) {
                if let Some(whole) = now.take() {
                    self.whole(whole, after_mark.unwrap_or(start))?;
                }
                now = Some((TarSample::new(start, key), blake3::Hasher::new(), None));
            }
            let Some((sample, hasher, problem)) = &mut now else {
                continue;
            };
            if !sample.add(field, data) {
                *problem = Some(format!("record {key:?} has the field {field:?} twice"));
            }
            if let Some(reason) = unsupported {
                *problem = Some(format!("member {name:?} {reason}"));
            }
            for part in [key, field] {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part.as_bytes());
            }
            hasher.update(&bytes.to_le_bytes());
            if let Err(broken) = members.skip(bytes, |part| {
                hasher.update(part);
            }) {
                break Some(broken);
            }
        };
        let end = members.mark().unwrap_or(members.position());
        match (now, broken) {
            (Some(whole), None) => self.whole(whole, end),
            (Some((sample, ..)), Some(broken)) if broken.is_inside => {
                self.lost(sample.start, broken)
            }
            (whole, Some(broken)) => {
                whole.map_or(Ok(()), |whole| self.whole(whole, end))?;
                self.lost(end, broken)
            }
            (None, None) => Ok(()),
        }
    }

    /// Completes a record that ends where the next one starts.
    fn whole(
        &mut self,
        (sample, hasher, problem): (TarSample, blake3::Hasher, Option<String>),
        end: u64,
    ) -> Result<(), DataError> {
        if let Some(problem) = problem {
            return self.bad(sample.start, end - sample.start, problem);
        }
        let bytes = end - sample.start;
        if bytes > RECORD_BYTES_MAX {
            return self.bad(
                sample.start,
                bytes,
                format!("the record has {bytes} bytes; the limit is {RECORD_BYTES_MAX}"),
            );
        }
        self.hasher.update(hasher.finalize().as_bytes());
        self.number += 1;
        self.records += 1;
        if self.is_packed {
            return (self.found)(ScanItem::Progress);
        }
        let joins = |open: &Extent| end - open.start <= EXTENT_BYTES;
        if !self.open.as_ref().is_some_and(joins) {
            self.close()?;
        }
        let open = self.open.get_or_insert(Extent {
            start: sample.start,
            bytes: 0,
            records: 0,
        });
        open.bytes = end - open.start;
        open.records += 1;
        Ok(())
    }

    fn lost(&mut self, offset: u64, broken: TarError) -> Result<(), DataError> {
        match broken.problem {
            TarProblem::Stream(cause) => Err(failed(self.file, broken.offset, cause)),
            problem => self.bad(offset, self.rest(offset), problem),
        }
    }

    /// Returns the size of the rest of the file. In a compressed file it is unknown.
    fn rest(&self, offset: u64) -> u64 {
        match self.is_packed {
            true => u64::MAX,
            false => self.file_bytes.saturating_sub(offset),
        }
    }

    fn bad(
        &mut self,
        offset: u64,
        bytes: u64,
        problem: impl fmt::Display,
    ) -> Result<(), DataError> {
        self.close()?;
        let record = BadRecord::new(self.file, offset, Some(self.number), problem);
        self.number += 1;
        (self.found)(ScanItem::Bad { record, bytes })
    }

    fn close(&mut self) -> Result<(), DataError> {
        match self.open.take() {
            Some(extent) => (self.found)(ScanItem::Extent(extent)),
            None => Ok(()),
        }
    }
}
