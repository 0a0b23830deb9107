//! [`FetchedRecords`]: undecoded records in memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ronde_core::Epoch;

use super::files::{OpenFile, OpenFiles};
use super::pool::BufferPool;
use super::reads::{ByteRequest, CoalescedRead, plan};
use crate::dataset::FetchedSamples;
use crate::decode::{DecodeScratch, RecordDecoder};
use crate::error::DataError;
use crate::format::{BadRecord, Extent, RecordFile, Records, SharedBytes};
use crate::index::SampleLocation;

/// A request to read a record into memory.
pub(super) struct RecordRequest {
    /// The number of the sample.
    pub sample: u64,
    pub place: SampleLocation,
}

/// Records in memory.
pub(super) struct FetchedRecords {
    decoder: Arc<RecordDecoder>,
    samples: Vec<SampleInExtent>,
    extents: Vec<ExtentInMemory>,
    /// The buffers of all reads, returned to the pool when dropped.
    buffers: Vec<Arc<Vec<u8>>>,
    pool: Arc<BufferPool>,
    bytes: u64,
}

struct SampleInExtent {
    number: u64,
    extent: usize,
    record: u32,
}

/// An extent in memory, parsed by the first thread that needs one of its records.
struct ExtentInMemory {
    file: Arc<dyn RecordFile>,
    location: String,
    extent: Extent,
    /// The number of byte ranges of the extent, and the ranges read so far, each with its first byte.
    ranges: usize,
    pieces: Mutex<Vec<(u64, SharedBytes)>>,
    records: OnceLock<Result<Box<dyn Records>, BadRecord>>,
}

/// Reads the extents of records with `threads` concurrent reads; neighbouring ranges are read together.
pub(super) fn fetch(
    files: &OpenFiles,
    decoder: &Arc<RecordDecoder>,
    pool: &Arc<BufferPool>,
    requests: &[RecordRequest],
    threads: usize,
) -> Result<FetchedRecords, DataError> {
    let (samples, extents) = group(requests);
    let mut open = BTreeMap::new();
    for &(file, _) in &extents {
        if let Entry::Vacant(entry) = open.entry(file) {
            entry.insert(files.open(file)?);
        }
    }
    let (mut requests, mut owners) = (Vec::new(), Vec::new());
    let extents = extents.into_iter().enumerate();
    let extents = extents.map(|(number, (file, extent))| {
        let open = &open[&file];
        let ranges = open.records.ranges(&extent);
        owners.extend(ranges.iter().map(|_| number));
        let in_memory = ExtentInMemory {
            file: Arc::clone(&open.records),
            location: files.location(file).to_owned(),
            extent,
            ranges: ranges.len(),
            pieces: Mutex::default(),
            records: OnceLock::new(),
        };
        requests.extend(ranges.into_iter().map(|range| ByteRequest { file, range }));
        in_memory
    });
    let extents: Vec<ExtentInMemory> = extents.collect();
    let reads = plan(&requests);
    let hand_over = |read: &CoalescedRead, buffer: &Arc<Vec<u8>>| {
        for &request in &read.requests {
            let range = &requests[request].range;
            let within = range.start - read.range.start..range.end - read.range.start;
            let within = within.start as usize..within.end as usize;
            let piece = SharedBytes::new(Arc::clone(buffer), within);
            let piece = piece.expect("a read covers the ranges that it was planned for");
            extents[owners[request]].take(range.start, piece);
        }
    };
    let buffers = read_all(&open, &reads, pool, threads, &hand_over)?;
    let bytes = reads.iter().map(|read| read.range.end - read.range.start);
    Ok(FetchedRecords {
        decoder: Arc::clone(decoder),
        samples,
        extents,
        bytes: bytes.sum(),
        buffers,
        pool: Arc::clone(pool),
    })
}

/// Returns the distinct extents of the requested records with their files, and the position of each record in its extent.
fn group(requests: &[RecordRequest]) -> (Vec<SampleInExtent>, Vec<(usize, Extent)>) {
    let mut numbers = BTreeMap::new();
    let mut extents = Vec::new();
    let sample = |request: &RecordRequest| {
        let SampleLocation {
            file,
            extent,
            record,
        } = request.place;
        let number = *numbers.entry((file, extent.start)).or_insert_with(|| {
            extents.push((file, extent));
            extents.len() - 1
        });
        SampleInExtent {
            number: request.sample,
            extent: number,
            record,
        }
    };
    let samples = requests.iter().map(sample).collect();
    (samples, extents)
}

/// The result of a read.
type ReadResult = Result<Arc<Vec<u8>>, DataError>;

/// Performs all reads and calls `hand_over` after each one.
fn read_all(
    files: &BTreeMap<usize, OpenFile>,
    reads: &[CoalescedRead],
    pool: &BufferPool,
    threads: usize,
    hand_over: &(dyn Fn(&CoalescedRead, &Arc<Vec<u8>>) + Sync),
) -> Result<Vec<Arc<Vec<u8>>>, DataError> {
    let read = |read: &CoalescedRead| -> ReadResult {
        let bytes = (read.range.end - read.range.start) as usize;
        let mut buffer = pool.take(bytes);
        let object = &files[&read.file].object;
        object.read_at(read.range.start, &mut buffer[..bytes])?;
        let buffer = Arc::new(buffer);
        hand_over(read, &buffer);
        Ok(buffer)
    };
    let threads = threads.min(reads.len());
    if threads <= 1 {
        return reads.iter().map(read).collect();
    }
    let next = AtomicUsize::new(0);
    let done: Mutex<BTreeMap<usize, ReadResult>> = Mutex::default();
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(todo) = reads.get(number) else {
                return;
            };
            let result = read(todo);
            if result.is_err() {
                next.store(reads.len(), Ordering::Relaxed);
            }
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.insert(number, result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    // The first error stops the threads, so later reads may be missing.
    done.into_values().collect()
}

impl ExtentInMemory {
    /// Adds a range that begins at byte `start` of the file.
    fn take(&self, start: u64, piece: SharedBytes) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.push((start, piece));
        let is_whole = pieces.len() == self.ranges;
        drop(pieces);
        if is_whole && self.file.is_checked_at_once(&self.extent) {
            // An error is kept and returned with the first record.
            let _ = self.records();
        }
    }

    fn records(&self) -> Result<&dyn Records, BadRecord> {
        let records = self.records.get_or_init(|| {
            let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
            let mut pieces = std::mem::take(&mut *pieces);
            // In the order of `ranges`, which is ascending.
            pieces.sort_by_key(|(start, _)| *start);
            let pieces = pieces.into_iter().map(|(_, piece)| piece).collect();
            let parsed = self.file.parse(&self.extent, pieces);
            parsed.map_err(|error| self.bad(error, None))
        });
        records.as_deref().map_err(Clone::clone)
    }

    /// Converts an error of the format to a bad record at this extent.
    fn bad(&self, error: DataError, record: Option<u64>) -> BadRecord {
        match error {
            DataError::Record(bad) => bad,
            other => BadRecord::new(self.location.clone(), self.extent.start, record, other),
        }
    }
}

impl FetchedSamples for FetchedRecords {
    fn decode(
        &self,
        index: usize,
        epoch: Epoch,
        scratch: &mut DecodeScratch,
        out: &mut [f32],
        targets: &mut [u32],
    ) -> Result<(), DataError> {
        let sample = self.samples.get(index).ok_or(DataError::NoSuchSample {
            sample: index as u64,
            samples: self.samples.len() as u64,
        })?;
        let extent = &self.extents[sample.extent];
        let records = extent.records().map_err(DataError::Record)?;
        let record = records.record(sample.record)?;
        self.decoder
            .decode(&record, epoch.0, sample.number, scratch, out, targets)
            .map_err(|problem| {
                DataError::Record(BadRecord::new(
                    extent.location.clone(),
                    extent.extent.start,
                    (extent.extent.records > 1).then(|| u64::from(sample.record)),
                    problem,
                ))
            })
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for FetchedRecords {
    fn drop(&mut self) {
        // The extents share the buffers, so they are dropped first.
        self.extents.clear();
        for buffer in self.buffers.drain(..) {
            if let Ok(buffer) = Arc::try_unwrap(buffer) {
                self.pool.give(buffer);
            }
        }
    }
}
