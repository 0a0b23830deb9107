//! [`StoredDataset`]: samples in files of any format, local or remote.
//!
//! ```text
//! source: addresses -> files                   index: files -> location of each sample
//! Dataset::fetch:         samples -> locations -> byte ranges -> few large reads -> bytes in memory
//! FetchedSamples::decode: bytes -> record (format) -> features and targets (decode)
//! ```

use std::sync::Arc;

use crate::cache::Cache;
use crate::dataset::{BadRecordPolicy, FetchedSamples, Locality, Traffic, check_read_all};
use crate::decode::{DecodeScratch, RecordDecoder};
use crate::format::Format;
use crate::index::{DataFile, Index, SampleLocation};
use crate::{DataError, DataEvent, Dataset, Targets};
use ronde_core::Epoch;

mod fetch;
mod files;
mod pool;
mod reads;
mod selection;

use fetch::{RecordRequest, fetch};
use files::OpenFiles;
use pool::BufferPool;
pub(crate) use selection::Selection;

/// The maximum number of bytes of buffers kept for later reads.
const POOL_BYTES: usize = 128 << 20;

/// The sample size above which reading samples one by one costs hardly more than reading neighbours together.
const LARGE_BYTES: u64 = 32 << 10;
/// The preferred bytes of a fetch of such samples; fits in a processor cache.
const FETCH_BYTES: u64 = 2 << 20;

/// The settings for reading a set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ReadSettings {
    /// The bytes of samples that stay together in a shuffled order.
    pub block_bytes: u64,
    /// The bytes of samples that are mixed.
    pub window_bytes: u64,
    /// Whether reads have low latency, as on a local disk.
    pub is_near: bool,
    /// The number of concurrent reads.
    pub threads: usize,
    /// The share of bad records up to which they are skipped; `None` if they are errors.
    pub bad_record_limit: Option<f64>,
}

/// Samples in files.
pub(crate) struct StoredDataset {
    files: OpenFiles,
    index: Arc<Index>,
    selection: Selection,
    decoder: Arc<RecordDecoder>,
    reading: ReadSettings,
    identity: String,
    /// The files with hashes of their contents, for messages about changed data.
    file_hashes: Vec<(String, String)>,
    pool: Arc<BufferPool>,
    cache: Option<ObservedCache>,
}

/// A cache and the receiver of its events.
struct ObservedCache {
    cache: Arc<Cache>,
    report: Arc<dyn Fn(&DataEvent) + Send + Sync>,
}

impl StoredDataset {
    /// Returns the samples that `selection` takes from the records of an index.
    pub(crate) fn new(
        (files, format): (Vec<Arc<dyn DataFile>>, Arc<dyn Format>),
        index: Arc<Index>,
        selection: Selection,
        decoder: RecordDecoder,
        reading: ReadSettings,
    ) -> Self {
        let identity = match &selection {
            Selection::All(_) => index.identity().to_owned(),
            Selection::Chosen(chosen) => format!("{} of {}", chosen.identity(), index.identity()),
        };
        Self {
            files: OpenFiles::new(files, format),
            index,
            selection,
            decoder: Arc::new(decoder),
            reading,
            identity,
            file_hashes: Vec::new(),
            pool: Arc::new(BufferPool::new(POOL_BYTES)),
            cache: None,
        }
    }

    /// Sets the names of the files with hashes of their contents.
    pub(crate) fn with_files(mut self, files: Vec<(String, String)>) -> Self {
        self.file_hashes = files;
        self
    }

    /// Sets the cache through which the set is read, and the receiver of its events.
    pub(crate) fn with_cache(
        mut self,
        cache: Arc<Cache>,
        report: Arc<dyn Fn(&DataEvent) + Send + Sync>,
    ) -> Self {
        self.cache = Some(ObservedCache { cache, report });
        self
    }

    fn place(&self, sample: u64) -> Result<SampleLocation, DataError> {
        let record = self.selection.record(sample);
        let place = record.and_then(|record| self.index.locate(record));
        place.ok_or_else(|| DataError::NoSuchSample {
            sample,
            samples: self.len(),
        })
    }
}

impl Dataset for StoredDataset {
    fn len(&self) -> u64 {
        self.selection.samples()
    }

    fn sample_shape(&self) -> &[usize] {
        self.decoder.sample_shape()
    }

    fn classes(&self) -> u32 {
        self.decoder.classes()
    }

    fn targets(&self) -> Targets {
        self.decoder.targets()
    }

    fn targets_per_sample(&self) -> usize {
        self.decoder.targets_per_sample()
    }

    fn read_all(&self, sample: u64, out: &mut [f32], targets: &mut [u32]) -> Result<(), DataError> {
        check_read_all(self, sample, out, targets)?;
        let requests = [RecordRequest {
            sample,
            place: self.place(sample)?,
        }];
        let fetched = fetch(&self.files, &self.decoder, &self.pool, &requests, 1)?;
        fetched.decode(0, Epoch(0), &mut DecodeScratch::default(), out, targets)
    }

    fn read(&self, sample: u64, out: &mut [f32]) -> Result<u32, DataError> {
        let mut targets = vec![0; self.targets_per_sample()];
        self.read_all(sample, out, &mut targets)?;
        Ok(targets.first().copied().unwrap_or_default())
    }

    fn files(&self) -> Vec<(String, String)> {
        self.file_hashes.clone()
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn locality(&self) -> Option<Locality> {
        let sample_bytes = self.index.sample_bytes();
        let by_bytes = self.reading.block_bytes / sample_bytes;
        let block_samples = by_bytes.max(self.index.block_samples()).max(1);
        let window = self.reading.window_bytes / sample_bytes / block_samples;
        Some(Locality {
            block_samples,
            window_blocks: window.max(1),
            sample_bytes,
            fetch_bytes: (self.reading.is_near && sample_bytes >= LARGE_BYTES)
                .then_some(FETCH_BYTES),
        })
    }

    fn fetch(&self, samples: &[u64]) -> Result<Option<Box<dyn FetchedSamples>>, DataError> {
        let requests = samples
            .iter()
            .map(|&sample| {
                let place = self.place(sample)?;
                Ok(RecordRequest { sample, place })
            })
            .collect::<Result<Vec<_>, DataError>>()?;
        let threads = self.reading.threads;
        let fetched = fetch(&self.files, &self.decoder, &self.pool, &requests, threads);
        if let Some(ObservedCache { cache, report }) = &self.cache {
            for event in cache.take_events() {
                report(&DataEvent::Notice(event.to_string()));
            }
        }
        Ok(Some(Box::new(fetched?)))
    }

    fn traffic(&self) -> Option<Traffic> {
        let counters = self.cache.as_ref()?.cache.counters();
        Some(Traffic {
            remote_bytes: counters.remote_bytes,
            cached_bytes: counters.cached_bytes,
        })
    }

    fn bad_records(&self) -> BadRecordPolicy {
        BadRecordPolicy {
            skip_limit: self.reading.bad_record_limit,
            skipped: self.index.bad_count(),
        }
    }
}
