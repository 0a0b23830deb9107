//! [`StoredDataset`]: samples in files, wherever they lie, of whatever format.
//!
//! ```text
//! source: addresses -> files          index: files -> where each sample lies
//! Dataset::fetch:  samples -> places -> ranges of bytes -> few large reads -> bytes in memory
//! Fetched::decode: bytes -> record (format) -> features and targets (decode)
//! ```

use std::sync::Arc;

use crate::cache::Cache;
use crate::dataset::{Fetched, Locality, Traffic, check_read_all};
use crate::decode::{Decoder, Scratch};
use crate::format::Format;
use crate::index::{DataFile, Index, Place};
use crate::{DataError, DataNews, Dataset, Targets};
use ronde_core::Epoch;

mod fetch;
mod files;
mod pool;
mod reads;
mod selection;

use fetch::{Wish, fetch};
use files::Files;
use pool::Pool;
pub(crate) use selection::Selection;

/// Bytes of buffers that are kept for the next reads.
const POOL_BYTES: usize = 128 << 20;

/// Samples of so many bytes are read one by one at hardly more cost than with their neighbours.
const LARGE_BYTES: u64 = 32 << 10;
/// What is fetched of them at once, a part of a processor's caches.
const FETCH_BYTES: u64 = 2 << 20;

/// How a set is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Bytes of samples that are kept together in a shuffled order.
    pub block_bytes: u64,
    /// Bytes of samples that are mixed.
    pub window_bytes: u64,
    /// Whether a read costs little more than its bytes.
    pub is_near: bool,
    /// Reads at a time.
    pub threads: usize,
    /// Whether records that cannot be used are left out.
    pub skips: bool,
}

/// Samples in files.
pub(crate) struct StoredDataset {
    files: Files,
    index: Arc<Index>,
    selection: Selection,
    decoder: Arc<Decoder>,
    reading: Reading,
    identity: String,
    pool: Arc<Pool>,
    cache: Option<Watched>,
}

/// A cache, and who is told what happens to it.
struct Watched {
    cache: Arc<Cache>,
    tell: Arc<dyn Fn(&DataNews) + Send + Sync>,
}

impl StoredDataset {
    /// The samples that `selection` takes from the records of an index.
    pub(crate) fn new(
        (files, format): (Vec<Arc<dyn DataFile>>, Arc<dyn Format>),
        index: Arc<Index>,
        selection: Selection,
        decoder: Decoder,
        reading: Reading,
    ) -> Self {
        let identity = match &selection {
            Selection::All(_) => index.identity().to_owned(),
            Selection::Chosen(chosen) => format!("{} of {}", chosen.identity(), index.identity()),
        };
        Self {
            files: Files::new(files, format),
            index,
            selection,
            decoder: Arc::new(decoder),
            reading,
            identity,
            pool: Arc::new(Pool::new(POOL_BYTES)),
            cache: None,
        }
    }

    /// Reads through a cache, and tells what happens to it.
    pub(crate) fn with_cache(
        mut self,
        cache: Arc<Cache>,
        tell: Arc<dyn Fn(&DataNews) + Send + Sync>,
    ) -> Self {
        self.cache = Some(Watched { cache, tell });
        self
    }

    fn place(&self, sample: u64) -> Result<Place, DataError> {
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
        let wishes = [Wish {
            sample,
            place: self.place(sample)?,
        }];
        let fetched = fetch(&self.files, &self.decoder, &self.pool, &wishes, 1)?;
        fetched.decode(0, Epoch(0), &mut Scratch::default(), out, targets)
    }

    fn read(&self, sample: u64, out: &mut [f32]) -> Result<u32, DataError> {
        let mut targets = vec![0; self.targets_per_sample()];
        self.read_all(sample, out, &mut targets)?;
        Ok(targets.first().copied().unwrap_or_default())
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

    fn fetch(&self, samples: &[u64]) -> Result<Option<Box<dyn Fetched>>, DataError> {
        let wishes = samples
            .iter()
            .map(|&sample| {
                let place = self.place(sample)?;
                Ok(Wish { sample, place })
            })
            .collect::<Result<Vec<_>, DataError>>()?;
        let threads = self.reading.threads;
        let fetched = fetch(&self.files, &self.decoder, &self.pool, &wishes, threads);
        if let Some(Watched { cache, tell }) = &self.cache {
            for event in cache.take_events() {
                tell(&DataNews::Notice(event.to_string()));
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

    fn skips_bad_records(&self) -> bool {
        self.reading.skips
    }
}
