//! Opening files of records: addresses, format, index, and what of them is trained on.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use ronde_store::{Opener, RemoteSettings};
use twox_hash::XxHash3_64;

use super::file::RecordsFile;
use super::{Addresses, RecordsConfig};
use crate::decode::{Decoder, Role, Schema};
use crate::format::{Format, FormatConfig};
use crate::index::{DataFile, Index, IndexProgress, IndexSettings, OnBadRecord};
use crate::opening::{DataNews, Opening};
use crate::source::{SourceFile, expand};
use crate::stored::{Reading, Selection, StoredDataset};
use crate::{DataError, Dataset, Split};

/// Reads at a time from another machine: each of them mostly waits.
const REMOTE_READS: usize = 8;
/// Bad records that are told one by one.
const BAD_TOLD_MAX: usize = 5;

/// Opens files of records. Cost: files that were not indexed before are read once.
pub(crate) fn open(config: &RecordsConfig, opening: &Opening) -> Result<Split, DataError> {
    check(config)?;
    let opener = Opener::new(RemoteSettings {
        patience: Duration::from_secs_f64(config.retry_s),
        ..opening.remote.clone()
    });
    let job = Job {
        config,
        opening,
        opener,
    };
    let train = job.load(&config.train, None)?;
    let test = match (&config.test, config.validation) {
        (Some(addresses), _) => {
            let test = job.load(addresses, Some(&train))?;
            let all = Selection::All(test.index.samples());
            Some(job.set(&test, all, Role::Test)?)
        }
        (None, Some(share)) => {
            let held = train.select(|key| is_held(key, share));
            Some(job.set(&train, held, Role::Test)?)
        }
        (None, None) => None,
    };
    let used = match (&config.test, config.validation) {
        (None, Some(share)) => train.select(|key| !is_held(key, share)),
        _ => Selection::All(train.index.samples()),
    };
    Ok(Split {
        train: job.set(&train, used, Role::Train)?,
        test,
    })
}

/// What all steps of opening need.
struct Job<'a> {
    config: &'a RecordsConfig,
    opening: &'a Opening,
    opener: Opener,
}

/// Files that are indexed.
struct Loaded {
    sources: Vec<SourceFile>,
    files: Vec<Arc<dyn DataFile>>,
    format: Arc<dyn Format>,
    schema: Schema,
    index: Arc<Index>,
}

impl Job<'_> {
    /// Finds and indexes files; those to measure on as `like` was.
    fn load(&self, addresses: &Addresses, like: Option<&Loaded>) -> Result<Loaded, DataError> {
        let mut sources = expand(addresses.all(), &self.opening.base, &self.opener)?;
        let (format, schema) = match like {
            Some(like) => (Arc::clone(&like.format), like.schema.clone()),
            None => self.format(&sources)?,
        };
        sources.retain(|file| format.takes(&file.location()));
        let files: Vec<Arc<dyn DataFile>> = sources
            .iter()
            .map(|file| -> Arc<dyn DataFile> { Arc::new(RecordsFile::new(file)) })
            .collect();
        let index = self.index(&files, &*format)?;
        if index.samples() == 0 {
            let addresses = addresses.all().join(", ");
            return Err(DataError::Empty { addresses });
        }
        self.tell_bad(&index);
        Ok(Loaded {
            sources,
            files,
            format,
            schema,
            index: Arc::new(index),
        })
    }

    /// How the files are read, and what of them is wanted.
    fn format(&self, sources: &[SourceFile]) -> Result<(Arc<dyn Format>, Schema), DataError> {
        let mut schema = Schema {
            features: self.config.features.clone(),
            label: self.config.label.clone(),
        };
        let locations: Vec<String> = sources.iter().map(SourceFile::location).collect();
        let locations: Vec<&str> = locations.iter().map(String::as_str).collect();
        let config = self.config.format.as_ref();
        let format = FormatConfig::format(config, &locations, Some(&mut schema))?;
        Ok((format, schema))
    }

    fn index(&self, files: &[Arc<dyn DataFile>], format: &dyn Format) -> Result<Index, DataError> {
        let settings = IndexSettings {
            folder: self.opening.index_folder(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            on_bad_record: self.config.on_bad_record,
            ..IndexSettings::default()
        };
        let tell = |progress: IndexProgress| {
            let what = format!("indexing {} files", progress.files_total);
            let share = progress.bytes as f64 / progress.bytes_total.max(1) as f64;
            (self.opening.tell)(&DataNews::Progress { what, share });
        };
        let index = Index::build(files, format, &settings, &tell);
        let what = format!("indexing {} files", files.len());
        (self.opening.tell)(&DataNews::Progress { what, share: 1.0 });
        index
    }

    fn tell_bad(&self, index: &Index) {
        let tell = |message| (self.opening.tell)(&DataNews::Finding(message));
        for warning in index.warnings() {
            tell(warning.clone());
        }
        let count = index.bad_count();
        if count == 0 {
            return;
        }
        let s = if count == 1 { "" } else { "s" };
        tell(format!(
            "{count} record{s} of {} cannot be used and {} left out:",
            index.samples() + count,
            if count == 1 { "is" } else { "are" }
        ));
        for bad in index.bad().iter().take(BAD_TOLD_MAX) {
            tell(format!("  {bad}"));
        }
        if count > BAD_TOLD_MAX as u64 {
            tell("  and so on: `ronde data inspect` lists them".to_owned());
        }
    }

    fn set(
        &self,
        loaded: &Loaded,
        selection: Selection,
        role: Role,
    ) -> Result<Arc<dyn Dataset>, DataError> {
        let is_remote = loaded.sources.iter().any(SourceFile::is_remote);
        let reading = Reading {
            block_bytes: self.config.shuffle_block_kib << 10,
            window_bytes: self.config.shuffle_window_mib << 20,
            threads: if is_remote { REMOTE_READS } else { 1 },
            skips: self.config.on_bad_record == OnBadRecord::Skip,
        };
        let decoder = Decoder::new(&loaded.schema, role, self.opening.seed)?;
        let set = StoredDataset::new(
            (loaded.files.clone(), Arc::clone(&loaded.format)),
            Arc::clone(&loaded.index),
            selection,
            decoder,
            reading,
        );
        if set.is_empty() {
            return Err(DataError::Validation {
                share: self.config.validation.unwrap_or_default(),
                samples: loaded.index.samples(),
            });
        }
        Ok(Arc::new(set))
    }
}

impl Loaded {
    /// The records whose keys are chosen. A key is made of the name of a file and the number of the record in it, so that
    /// files that come or go change nothing about the records of others.
    fn select(&self, is_chosen: impl Fn(u64) -> bool) -> Selection {
        // Records are asked for in rising order.
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

/// Whether a key is among the share that is kept to measure on.
fn is_held(key: u64, share: f64) -> bool {
    (key as f64) < share * u64::MAX as f64
}

fn check(config: &RecordsConfig) -> Result<(), DataError> {
    let refuse = |key: &str, problem: String| {
        let key = key.to_owned();
        Err(DataError::Schema { key, problem })
    };
    if let Some(share) = config.validation
        && !(share > 0.0 && share < 1.0)
    {
        return refuse("validation", format!("{share} is no share between 0 and 1"));
    }
    if config.validation.is_some() && config.test.is_some() {
        let problem = "it would be of no use beside `test`".to_owned();
        return refuse("validation", problem);
    }
    if !(0.0..=86_400.0).contains(&config.retry_s) {
        let problem = format!("{} is no time of 0 seconds to a day", config.retry_s);
        return refuse("retry_s", problem);
    }
    let sizes = [
        ("shuffle_block_kib", config.shuffle_block_kib, 1 << 30),
        ("shuffle_window_mib", config.shuffle_window_mib, 1 << 30),
    ];
    for (key, size, most) in sizes {
        if !(1..=most).contains(&size) {
            return refuse(key, format!("{size} is not 1 to {most}"));
        }
    }
    Ok(())
}
