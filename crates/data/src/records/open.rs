//! Opens files of records: finds and indexes them, and selects training and evaluation samples.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::time::Duration;

use ronde_store::{KeySource, MasterKey, Opener, RemoteSettings, StoreError};
use twox_hash::XxHash3_64;

use super::file::RecordsFile;
use super::{Addresses, RecordsConfig};
use crate::cache::{Cache, CacheMode, CacheSettings, FillProgress};
use crate::dataset::FileContent;
use crate::dataset::{Dataset, Split};
use crate::decode::{RecordDecoder, SampleUse, Schema};
use crate::error::DataError;
use crate::format::{Format, FormatConfig};
use crate::index::{DataFile, Index, IndexProgress, IndexSettings, OnBadRecord};
use crate::open_context::{DataEvent, OpenContext};
use crate::read_limit::OpenedPart;
use crate::source::{FolderNames, SourceFile, expand};
use crate::stored::{ReadSettings, Selection, StoredDataset};
use crate::tokenized::{self, Tokenization, tokenize};
use crate::vocabulary::Vocabulary;

/// The number of concurrent reads from another machine; each one mostly waits.
const REMOTE_READS: usize = 8;
/// The subfolder of the cache folder with pages of remote files.
const PAGES_FOLDER: &str = "data";
/// The bytes of a page.
const PAGE_BYTES: u64 = 1 << 20;
/// The maximum number of bad records that are reported one by one.
const BAD_TOLD_MAX: usize = 5;

/// The maximum number of files, or groups of files, whose hashes are compared separately.
const FILE_GROUPS_MAX: usize = 32;
/// The maximum length of a file name in a message.
const NAME_CHARS_MAX: usize = 80;

/// Opens files of records. Cost: reads files that were not indexed before once.
pub(crate) fn open(config: &RecordsConfig, opening: &OpenContext) -> Result<Split, DataError> {
    if let Some((key, problem)) = config.problems().into_iter().next() {
        return Err(DataError::schema(key, problem));
    }
    let retry_limit = Duration::from_secs_f64(config.retry_s);
    let limit = opening.limit.as_ref();
    let opener = opening.opener(RemoteSettings {
        retry_limit: limit.map_or(retry_limit, |limit| {
            retry_limit.min(limit.left_for_opening())
        }),
        ..opening.remote.clone()
    });
    let job = OpenTask {
        config,
        opening,
        opener,
        cache: OnceCell::new(),
    };
    let train = job.load(&config.train, None)?;
    let test = match (&config.test, config.validation) {
        (Some(addresses), _) => {
            let test = job.load(addresses, Some(&train))?;
            let all = Selection::All(test.index.samples());
            Some(job.set(&test, all, SampleUse::Test)?)
        }
        (None, Some(share)) => {
            let validation = train.select(|key| is_validation(key, share));
            let validation = train.some_of_part(validation);
            Some(job.set(&train, validation, SampleUse::Test)?)
        }
        (None, None) => None,
    };
    let used = match (&config.test, config.validation) {
        (None, Some(share)) => train.some_of_part(train.select(|key| !is_validation(key, share))),
        _ => Selection::All(train.index.samples()),
    };
    Ok(Split {
        train: job.set(&train, used, SampleUse::Train)?,
        test,
    })
}

/// The context for opening files.
struct OpenTask<'a> {
    config: &'a RecordsConfig,
    opening: &'a OpenContext,
    opener: Opener,
    /// The cache, created for the first remote file.
    cache: OnceCell<Option<Arc<Cache>>>,
}

/// A format, a schema, and the tokenization of text files.
type RecordLayout = (Arc<dyn Format>, Schema, Option<Arc<Tokenization>>);

/// Indexed files.
struct IndexedFiles {
    sources: Vec<SourceFile>,
    /// Whether any of them is remote.
    is_remote: bool,
    files: Vec<Arc<dyn DataFile>>,
    format: Arc<dyn Format>,
    /// The tokenization, for text files.
    tokenization: Option<Arc<Tokenization>>,
    schema: Schema,
    index: Arc<Index>,
    /// The part of the files that was opened, and by how much all of them are larger, if a limit has ended that.
    part: Option<(OpenedPart, f64)>,
}

impl OpenTask<'_> {
    /// Finds and indexes files; uses the format and schema of `like` if given.
    fn load(
        &self,
        addresses: &Addresses,
        like: Option<&IndexedFiles>,
    ) -> Result<IndexedFiles, DataError> {
        let (mut sources, (format, schema, tokenization)) = self.find(addresses, like)?;
        let (files_total, bytes_total) = (sources.len(), bytes_of(&sources));
        if let Some(limit) = &self.opening.limit {
            sources = limit.choose(sources);
        }
        // Text is read once; its tokens are stored on this machine.
        let is_remote = tokenization.is_none() && sources.iter().any(SourceFile::is_remote);
        let cache = match is_remote {
            true => self.cache(&sources)?,
            false => None,
        };
        let file = |file: &SourceFile| -> Arc<dyn DataFile> {
            Arc::new(RecordsFile::new(file, cache.clone()))
        };
        let mut files: Vec<Arc<dyn DataFile>> = sources.iter().map(file).collect();
        let mut cut = 0;
        if let Some(tokenization) = &tokenization {
            (files, cut) = self.tokens(&files, tokenization)?;
        }
        let is_limited = self.opening.limit.is_some() && tokenization.is_some();
        let index = self.index(&files, &*format, !is_limited)?;
        cut += index.unfinished();
        self.check_bad(&index, &files, addresses)?;
        if index.samples() == 0 {
            let addresses = addresses.all().join(", ");
            return Err(match cut {
                0 => DataError::Empty { addresses },
                _ => DataError::Unread { addresses },
            });
        }
        self.report_bad(&index);
        self.report_content(&*format);
        let found = match format.is_file_a_record() {
            true => bytes_of(&sources),
            false => index.sample_bytes().saturating_mul(index.samples()),
        };
        let part = OpenedPart {
            files: sources.len(),
            unfinished: cut,
            files_total,
            samples: index.samples(),
        };
        let is_part = cut > 0 || files_total > sources.len();
        Ok(IndexedFiles {
            part: is_part.then(|| (part, bytes_total as f64 / found.max(1) as f64)),
            sources,
            is_remote,
            files,
            format,
            tokenization,
            schema,
            index: Arc::new(index),
        })
    }

    /// Finds files, and reports those that are left out. Returns them with the format and schema of `like` if given.
    fn find(
        &self,
        addresses: &Addresses,
        like: Option<&IndexedFiles>,
    ) -> Result<(Vec<SourceFile>, RecordLayout), DataError> {
        let names = match self.config.format {
            Some(_) => FolderNames::All,
            None => FolderNames::KnownFormats,
        };
        let addresses = addresses.all();
        let mut found = expand(addresses, &self.opening.base, &self.opener, names)?;
        let (layout, setting): (RecordLayout, _) = match like {
            Some(like) => {
                let format = Arc::clone(&like.format);
                let layout = (format, like.schema.clone(), like.tokenization.clone());
                (layout, "data.test")
            }
            None => (self.format(&found.files)?, "data.train"),
        };
        let format = &layout.0;
        found.retain(addresses, format.file_kind(), |location| {
            format.takes(location)
        })?;
        for notice in found.notices(setting) {
            (self.opening.report)(&DataEvent::Finding(notice));
        }
        Ok((found.files, layout))
    }

    /// Returns the token files of text files, and how many of them end early because of a limit; encodes those that were not
    /// encoded before.
    fn tokens(
        &self,
        files: &[Arc<dyn DataFile>],
        tokenization: &Tokenization,
    ) -> Result<(Vec<Arc<dyn DataFile>>, usize), DataError> {
        let key = self.key()?;
        let token_store = tokenized::TokenStore::new(self.opening, key)?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let what = format!("tokenizing {} files", files.len());
        let report = |share| {
            let what = what.clone();
            (self.opening.report)(&DataEvent::Progress { what, share });
        };
        let limit = self.opening.limit.as_deref();
        let made = tokenize(files, tokenization, &token_store, (threads, limit), &report);
        report(1.0);
        made
    }

    /// Reads the key for encrypting cached data.
    fn key(&self) -> Result<Option<MasterKey>, DataError> {
        let key = self.config.cache_encrypt.as_deref().map(|text| {
            let source = text.parse::<KeySource>();
            let source = source.map_err(|problem| StoreError::Key { problem })?;
            source.read(&self.opening.base, self.opening.variable)
        });
        Ok(key.transpose()?)
    }

    /// Returns the cache for remote files; downloads the files first if configured.
    fn cache(&self, sources: &[SourceFile]) -> Result<Option<Arc<Cache>>, DataError> {
        if self.config.cache == CacheMode::Off {
            return Ok(None);
        }
        let cache = match self.cache.get() {
            Some(cache) => cache,
            None => {
                let cache = self.open_cache()?;
                self.cache.get_or_init(|| cache)
            }
        };
        if let (Some(cache), CacheMode::DownloadFirst, None) =
            (cache, self.config.cache, &self.opening.limit)
        {
            let what = format!("downloading {} files", sources.len());
            let progress = |share| {
                let what = what.clone();
                (self.opening.report)(&DataEvent::Progress { what, share });
            };
            cache.fill(sources, &|filled: FillProgress| {
                progress(filled.done as f64 / filled.bytes.max(1) as f64);
            })?;
            progress(1.0);
        }
        Ok(cache.clone())
    }

    fn open_cache(&self) -> Result<Option<Arc<Cache>>, DataError> {
        let config = self.config;
        let own = config.cache_folder.as_ref();
        let own = own.map(|folder| self.opening.base.join(folder));
        let usual = || Some(self.opening.cache_folder.as_ref()?.join(PAGES_FOLDER));
        let Some(folder) = own.or_else(usual) else {
            return Ok(None);
        };
        let settings = CacheSettings {
            bytes_max: (config.cache_limit_gib * f64::from(1 << 30)) as u64,
            // About a shuffle block, so that the first steps fetch little unused data.
            page_bytes: PAGE_BYTES,
            key: self.key()?,
            ..CacheSettings::default()
        };
        Cache::open(folder, settings).map(Some)
    }

    /// Returns the format and schema of the files.
    fn format(&self, sources: &[SourceFile]) -> Result<RecordLayout, DataError> {
        let mut schema = Schema {
            features: self.config.features.clone(),
            label: self.config.label.clone(),
        };
        let locations: Vec<String> = sources.iter().map(SourceFile::location).collect();
        let locations: Vec<&str> = locations.iter().map(String::as_str).collect();
        let config = self.config.format.as_ref();
        let base = &self.opening.base;
        let tokenization = FormatConfig::tokenization(config, &locations, base, Some(&mut schema))?;
        if let Some((tokenization, format)) = tokenization {
            return Ok((format, schema, Some(Arc::new(tokenization))));
        }
        let format = FormatConfig::format(config, &locations, Some(&mut schema))?;
        Ok((format, schema, None))
    }

    /// Indexes files. Indexes of tokens that are not stored must not be stored either.
    fn index(
        &self,
        files: &[Arc<dyn DataFile>],
        format: &dyn Format,
        is_stored: bool,
    ) -> Result<Index, DataError> {
        let settings = IndexSettings {
            folder: self.opening.index_folder().filter(|_| is_stored),
            limit: self.opening.limit.clone(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            on_bad_record: self.config.on_bad_record,
            ..IndexSettings::default()
        };
        let report = |progress: IndexProgress| {
            let what = format!("indexing {} files", progress.files_total);
            let share = progress.bytes as f64 / progress.bytes_total.max(1) as f64;
            (self.opening.report)(&DataEvent::Progress { what, share });
        };
        let index = Index::build(files, format, &settings, &report);
        let what = format!("indexing {} files", files.len());
        (self.opening.report)(&DataEvent::Progress { what, share: 1.0 });
        index
    }

    /// Returns the share of bad records that may be skipped; `None` if none may.
    fn bad_record_limit(&self) -> Option<f64> {
        let skips = self.config.on_bad_record == OnBadRecord::Skip;
        skips.then_some(self.config.bad_record_limit)
    }

    /// Returns an error if more was skipped than the limit allows: by the number of records, or by bytes, because one damaged
    /// record may make the rest of its file unreadable.
    fn check_bad(
        &self,
        index: &Index,
        files: &[Arc<dyn DataFile>],
        addresses: &Addresses,
    ) -> Result<(), DataError> {
        let (skipped, limit) = (index.skipped(), self.config.bad_record_limit);
        let records = index.samples() + skipped.records;
        let bytes: u64 = files.iter().map(|file| file.bytes()).sum();
        let is_above = |part: u64, whole: u64| part as f64 > limit * whole as f64;
        match index.bad().first() {
            Some(first) if is_above(skipped.records, records) || is_above(skipped.bytes, bytes) => {
                Err(DataError::TooManyBad {
                    addresses: addresses.all().join(", "),
                    bad: skipped.records,
                    records,
                    bad_bytes: skipped.bytes,
                    bytes,
                    limit,
                    first: Box::new(first.clone()),
                })
            }
            _ => Ok(()),
        }
    }

    /// Reports if changed contents of files are not detected.
    fn report_content(&self, format: &dyn Format) {
        if !format.covers_content() {
            (self.opening.report)(&DataEvent::Finding(
                "changed images are not detected: the identity of the data covers the names and lengths of the image \
                 files, not their contents; pack them with `ronde data pack` to cover the contents"
                    .to_owned(),
            ));
        }
    }

    fn report_bad(&self, index: &Index) {
        let report = |message| (self.opening.report)(&DataEvent::Finding(message));
        for warning in index.warnings() {
            report(warning.clone());
        }
        let count = index.bad_count();
        if count == 0 {
            return;
        }
        let s = if count == 1 { "" } else { "s" };
        report(format!(
            "skipping {count} bad record{s} of {}:",
            index.samples() + count
        ));
        for bad in index.bad().iter().take(BAD_TOLD_MAX) {
            report(format!("  {bad}"));
        }
        if count > BAD_TOLD_MAX as u64 {
            report("  ...; `ronde data inspect` lists more".to_owned());
        }
    }

    fn set(
        &self,
        loaded: &IndexedFiles,
        selection: Selection,
        role: SampleUse,
    ) -> Result<Arc<dyn Dataset>, DataError> {
        let is_remote = loaded.is_remote;
        let reading = ReadSettings {
            block_bytes: self.config.shuffle_block_kib << 10,
            window_bytes: self.config.shuffle_window_mib << 20,
            is_near: !is_remote,
            threads: if is_remote { REMOTE_READS } else { 1 },
            bad_record_limit: self.bad_record_limit(),
        };
        let decoder = RecordDecoder::new(&loaded.schema, role, self.opening.seed)?;
        let set = StoredDataset::new(
            (loaded.files.clone(), Arc::clone(&loaded.format)),
            Arc::clone(&loaded.index),
            selection,
            decoder,
            reading,
        )
        .with_files(loaded.file_contents())
        .with_vocabulary(
            loaded
                .tokenization
                .clone()
                .map(|tokenization| Arc::new(Vocabulary::tokenizer(tokenization))),
        );
        let set = match loaded.part {
            Some((part, share)) => set.with_part(part, share),
            None => set,
        };
        let set = match self.cache.get().cloned().flatten() {
            Some(cache) if is_remote => set.with_cache(cache, Arc::clone(&self.opening.report)),
            _ => set,
        };
        if set.is_empty() {
            return Err(DataError::Validation {
                share: self.config.validation.unwrap_or_default(),
                samples: loaded.index.samples(),
            });
        }
        Ok(Arc::new(set))
    }
}

impl IndexedFiles {
    /// Returns a hash of the contents of each file, or of each of [`FILE_GROUPS_MAX`] groups of files, with its name.
    fn file_contents(&self) -> Vec<FileContent> {
        let hashes = self.index.file_hashes();
        let each = self.sources.len().div_ceil(FILE_GROUPS_MAX).max(1);
        let groups = self.sources.chunks(each).enumerate();
        groups
            .map(|(number, files)| {
                let mut hasher = blake3::Hasher::new_derive_key("ronde data files, version 1");
                for (at, file) in files.iter().enumerate() {
                    match hashes.get(number * each + at) {
                        Some(hash) => hasher.update(hash),
                        // The contents of image files are not part of the identity.
                        None => hasher.update(&file.bytes().to_le_bytes()),
                    };
                }
                let name = match files {
                    [one] => shortened(one.name()),
                    _ => {
                        let last = files.last().map_or("", SourceFile::name);
                        format!("{} to {}", shortened(files[0].name()), shortened(last))
                    }
                };
                let hash = hasher.finalize().to_hex();
                FileContent {
                    name,
                    hash: format!("blake3:{}", &hash[..16]),
                }
            })
            .collect()
    }

    /// Returns a selection, or all records if it has none and only a part of the files was opened.
    fn some_of_part(&self, selection: Selection) -> Selection {
        match self.part {
            Some(_) if selection.samples() == 0 => Selection::All(self.index.samples()),
            _ => selection,
        }
    }

    /// Selects the records whose keys are chosen. A key is derived from the name of a file and the number of the record in it,
    /// so that adding or removing files does not affect the records of other files.
    fn select(&self, is_chosen: impl Fn(u64) -> bool) -> Selection {
        // Records are visited in ascending order.
        let at = Cell::new((usize::MAX, 0));
        Selection::of(self.index.samples(), |record| {
            let Some(place) = self.index.locate(record) else {
                return false;
            };
            if at.get().0 != place.file {
                at.set((place.file, record));
            }
            let name = XxHash3_64::oneshot(self.sources[place.file].name().as_bytes());
            let number = record - at.get().1;
            is_chosen(XxHash3_64::oneshot_with_seed(name, &number.to_le_bytes()))
        })
    }
}

fn bytes_of(files: &[SourceFile]) -> u64 {
    files.iter().map(SourceFile::bytes).sum()
}

/// Returns whether a record with this key belongs to the evaluation share.
fn is_validation(key: u64, share: f64) -> bool {
    (key as f64) < share * u64::MAX as f64
}

/// Returns the end of a long name.
fn shortened(name: &str) -> String {
    let count = name.chars().count();
    let skipped = count.saturating_sub(NAME_CHARS_MAX);
    let end: String = name.chars().skip(skipped).collect();
    if skipped > 0 { format!("..{end}") } else { end }
}
