//! [`StoredDataset`]: samples in files of any format, local or remote.
//!
//! ```text
//! source: addresses -> files                   index: files -> location of each sample
//! Dataset::fetch:         samples -> locations -> byte ranges -> few large reads -> bytes in memory
//! FetchedSamples::decode: bytes -> record (format) -> features and targets (decode)
//! ```

use std::sync::Arc;

use ronde_core::DataSignature;

use crate::cache::Cache;
use crate::dataset::{
    BadRecordPolicy, DatasetDescription, FetchedSamples, FileContent, Locality, Traffic,
};
use crate::dataset::{Dataset, SampleOrigin};
use crate::decode::RecordDecoder;
use crate::error::DataError;
use crate::format::Format;
use crate::index::{DataFile, Index, SampleLocation};
use crate::open_context::DataEvent;
use crate::read_limit::OpenedPart;
use crate::vocabulary::Vocabulary;

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
    description: DatasetDescription,
    pool: Arc<BufferPool>,
    cache: Option<ObservedCache>,
    /// The estimated number of samples, if only a part of the files was opened.
    estimated: Option<u64>,
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
        let signature = signature_of(&decoder, &*format);
        let identity = match &selection {
            Selection::All(_) => index.identity().to_owned(),
            Selection::Chosen(chosen) => format!("{} of {}", chosen.identity(), index.identity()),
        };
        let description = DatasetDescription {
            shape: decoder.sample_shape().to_vec(),
            classes: decoder.classes(),
            targets: decoder.targets(),
            targets_per_sample: decoder.targets_per_sample(),
            identity: decoder.identity(identity),
            files: Vec::new(),
            locality: Some(locality(&index, &reading)),
            bad_records: BadRecordPolicy {
                skip_limit: reading.bad_record_limit,
                skipped: index.bad_count(),
            },
            vocabulary: None,
            images: decoder.images().cloned(),
            signature,
            opened: None,
        };
        Self {
            files: OpenFiles::new(files, format),
            index,
            selection,
            decoder: Arc::new(decoder),
            reading,
            description,
            pool: Arc::new(BufferPool::new(POOL_BYTES)),
            cache: None,
            estimated: None,
        }
    }

    /// Marks the set as a part of one with `share` times its samples.
    pub(crate) fn with_part(mut self, part: OpenedPart, share: f64) -> Self {
        let samples = self.selection.samples();
        self.estimated = Some(((samples as f64 * share) as u64).max(samples));
        self.description.opened = Some(OpenedPart { samples, ..part });
        self
    }

    /// Sets the names of the files with hashes of their contents.
    pub(crate) fn with_files(mut self, files: Vec<FileContent>) -> Self {
        self.description.files = files;
        self
    }

    /// Sets the text of the tokens, if it is known.
    pub(crate) fn with_vocabulary(mut self, vocabulary: Option<Arc<Vocabulary>>) -> Self {
        self.description.vocabulary = vocabulary;
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

/// Returns the names and the units of samples. Fields that are named by their position have no names.
fn signature_of(decoder: &RecordDecoder, format: &dyn Format) -> DataSignature {
    let mut signature = decoder.signature();
    for names in [&mut signature.columns, &mut signature.value_names] {
        if names.iter().any(|name| format.is_position(name)) {
            names.clear();
        }
    }
    if signature.class_names.is_empty() && signature.first_class == 0 {
        let names = format.class_names();
        let is_of_all = names.len() == decoder.classes() as usize;
        signature.class_names = if is_of_all { names } else { Vec::new() };
    }
    signature
}

impl Dataset for StoredDataset {
    fn len(&self) -> u64 {
        self.estimated.unwrap_or_else(|| self.selection.samples())
    }

    fn description(&self) -> &DatasetDescription {
        &self.description
    }

    fn origin(&self, sample: u64) -> Option<SampleOrigin> {
        let record = self.selection.record(sample)?;
        let (file, record) = self.index.record_of(record)?;
        Some(SampleOrigin {
            file: self.files.location(file).to_owned(),
            record,
        })
    }

    fn fetch(&self, samples: &[u64]) -> Result<Box<dyn FetchedSamples>, DataError> {
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
        Ok(Box::new(fetched?))
    }

    fn traffic(&self) -> Option<Traffic> {
        let counters = self.cache.as_ref()?.cache.counters();
        Some(Traffic {
            remote_bytes: counters.remote_bytes,
            cached_bytes: counters.cached_bytes,
        })
    }
}

fn locality(index: &Index, reading: &ReadSettings) -> Locality {
    let sample_bytes = index.sample_bytes();
    let by_bytes = reading.block_bytes / sample_bytes;
    let block_samples = by_bytes.max(index.block_samples()).max(1);
    let window = reading.window_bytes / sample_bytes / block_samples;
    Locality {
        block_samples,
        window_blocks: window.max(1),
        sample_bytes,
        fetch_bytes: (reading.is_near && sample_bytes >= LARGE_BYTES).then_some(FETCH_BYTES),
    }
}
