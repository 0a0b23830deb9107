//! [`FetchedRecords`]: records in memory, as their files hold them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ronde_core::Epoch;

use super::files::{Files, OpenFile};
use super::pool::Pool;
use super::reads::{Ask, Read, plan};
use crate::DataError;
use crate::dataset::Fetched;
use crate::decode::{Decoder, Scratch};
use crate::format::{BadRecord, Extent, Piece, RecordFile, Records};
use crate::index::Place;

/// A record that is to be brought into memory.
pub(super) struct Wish {
    /// Number of the sample.
    pub sample: u64,
    pub place: Place,
}

/// Records in memory.
pub(super) struct FetchedRecords {
    decoder: Arc<Decoder>,
    samples: Vec<Sample>,
    extents: Vec<ExtentInMemory>,
    /// All that was read; goes back to the pool in the end.
    buffers: Vec<Arc<Vec<u8>>>,
    pool: Arc<Pool>,
    bytes: u64,
}

struct Sample {
    number: u64,
    extent: usize,
    record: u32,
}

/// An extent, taken apart by the first thread that needs one of its records.
struct ExtentInMemory {
    file: Arc<dyn RecordFile>,
    location: String,
    extent: Extent,
    /// Ranges of the file that it is made of, and those that are there, each with where it begins.
    ranges: usize,
    pieces: Mutex<Vec<(u64, Piece)>>,
    records: OnceLock<Result<Box<dyn Records>, BadRecord>>,
}

/// Reads the extents of records, neighbours at once; `threads` reads at a time.
pub(super) fn fetch(
    files: &Files,
    decoder: &Arc<Decoder>,
    pool: &Arc<Pool>,
    wishes: &[Wish],
    threads: usize,
) -> Result<FetchedRecords, DataError> {
    let (samples, extents) = group(wishes);
    let mut open = BTreeMap::new();
    for &(file, _) in &extents {
        if let Entry::Vacant(entry) = open.entry(file) {
            entry.insert(files.open(file)?);
        }
    }
    let (mut asks, mut owners) = (Vec::new(), Vec::new());
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
        asks.extend(ranges.into_iter().map(|range| Ask { file, range }));
        in_memory
    });
    let extents: Vec<ExtentInMemory> = extents.collect();
    let reads = plan(&asks);
    let hand_over = |read: &Read, buffer: &Arc<Vec<u8>>| {
        for &ask in &read.asks {
            let range = &asks[ask].range;
            let within = range.start - read.range.start..range.end - read.range.start;
            let within = within.start as usize..within.end as usize;
            let piece = Piece::new(Arc::clone(buffer), within);
            let piece = piece.expect("a read covers what it answers");
            extents[owners[ask]].take(range.start, piece);
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

/// The extents that hold records, each once, with its file; and where in them the records are.
fn group(wishes: &[Wish]) -> (Vec<Sample>, Vec<(usize, Extent)>) {
    let mut numbers = BTreeMap::new();
    let mut extents = Vec::new();
    let sample = |wish: &Wish| {
        let Place {
            file,
            extent,
            record,
        } = wish.place;
        let number = *numbers.entry((file, extent.start)).or_insert_with(|| {
            extents.push((file, extent));
            extents.len() - 1
        });
        Sample {
            number: wish.sample,
            extent: number,
            record,
        }
    };
    let samples = wishes.iter().map(sample).collect();
    (samples, extents)
}

/// What became of a read.
type Done = Result<Arc<Vec<u8>>, DataError>;

/// The bytes of all reads; each is handed over when it is there.
fn read_all(
    files: &BTreeMap<usize, OpenFile>,
    reads: &[Read],
    pool: &Pool,
    threads: usize,
    hand_over: &(dyn Fn(&Read, &Arc<Vec<u8>>) + Sync),
) -> Result<Vec<Arc<Vec<u8>>>, DataError> {
    let read = |read: &Read| -> Done {
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
    let done: Mutex<BTreeMap<usize, Done>> = Mutex::default();
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
    // The first error ends it; the reads behind it may be missing then.
    done.into_values().collect()
}

impl ExtentInMemory {
    /// Takes a piece of it that begins at byte `start` of the file.
    fn take(&self, start: u64, piece: Piece) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.push((start, piece));
        let is_whole = pieces.len() == self.ranges;
        drop(pieces);
        if is_whole && self.file.is_checked_at_once(&self.extent) {
            // What is wrong is told to who asks for a record.
            let _ = self.records();
        }
    }

    fn records(&self) -> Result<&dyn Records, BadRecord> {
        let records = self.records.get_or_init(|| {
            let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
            let mut pieces = std::mem::take(&mut *pieces);
            // As `ranges` told them: in rising order.
            pieces.sort_by_key(|(start, _)| *start);
            let pieces = pieces.into_iter().map(|(_, piece)| piece).collect();
            let parsed = self.file.parse(&self.extent, pieces);
            parsed.map_err(|error| self.bad(error, None))
        });
        records.as_deref().map_err(Clone::clone)
    }

    /// An error of the format, with the place that is known here.
    fn bad(&self, error: DataError, record: Option<u64>) -> BadRecord {
        match error {
            DataError::Record(bad) => bad,
            other => BadRecord {
                file: self.location.clone(),
                offset: self.extent.start,
                record,
                problem: other.to_string(),
            },
        }
    }
}

impl Fetched for FetchedRecords {
    fn decode(
        &self,
        place: usize,
        epoch: Epoch,
        scratch: &mut Scratch,
        out: &mut [f32],
        targets: &mut [u32],
    ) -> Result<(), DataError> {
        let sample = self.samples.get(place).ok_or(DataError::NoSuchSample {
            sample: place as u64,
            samples: self.samples.len() as u64,
        })?;
        let extent = &self.extents[sample.extent];
        let records = extent.records().map_err(DataError::Record)?;
        let record = records.record(sample.record)?;
        self.decoder
            .decode(&record, epoch.0, sample.number, scratch, out, targets)
            .map_err(|problem| {
                DataError::Record(BadRecord {
                    file: extent.location.clone(),
                    offset: extent.extent.start,
                    record: (extent.extent.records > 1).then(|| u64::from(sample.record)),
                    problem,
                })
            })
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for FetchedRecords {
    fn drop(&mut self) {
        // Their pieces hold the buffers, too.
        self.extents.clear();
        for buffer in self.buffers.drain(..) {
            if let Ok(buffer) = Arc::try_unwrap(buffer) {
                self.pool.give(buffer);
            }
        }
    }
}
