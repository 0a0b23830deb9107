//! [`pack`]: packs a folder of images or texts into shards that can be read quickly.
//!
//! Files are shuffled into an order that depends only on their names, so that neighbours in a shard belong to different
//! classes, and divided into shards of about equal length. One thread writes each shard atomically. Equal files give equal
//! bytes.

mod image;
#[cfg(feature = "full")]
mod parquet;
mod shard;
mod tar;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ronde_store::{Address, ObjectName, Store};

use crate::error::DataError;
use crate::format::FormatKind;
use crate::format::folder::{IMAGE, is_image};
use crate::open_context::{DataEvent, OpenContext};
use crate::source::{FolderNames, SourceFile, expand};

/// The maximum bytes of a packed file.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The settings of packing.
#[derive(Debug, Clone)]
pub struct PackSettings {
    /// The folder with the images (a folder for each class) or texts.
    pub from: String,
    /// The destination of the shards: a folder, or a bucket.
    pub to: String,
    /// `tfrecord`, `webdataset` or `parquet`.
    pub format: FormatKind,
    /// The prefix of the names of shards: `train` gives `train-00000-of-00016`.
    pub prefix: String,
    /// The approximate bytes of a shard.
    pub shard_bytes: u64,
    /// The number of threads; at least one.
    pub threads: usize,
    /// The number of the first class.
    pub first_label: i64,
    /// Whether files stay in the order of their names.
    pub keeps_order: bool,
    /// Whether existing shards are replaced.
    pub force: bool,
}

/// A report about the packed shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackReport {
    /// The number of shards.
    pub shards: usize,
    /// The number of samples.
    pub samples: usize,
    /// The bytes of all shards.
    pub bytes: u64,
    /// The names of the classes in the order of their numbers; empty for texts without class folders.
    pub classes: Vec<String>,
    /// The `[data]` section of a run file that reads the shards.
    pub run_file: String,
}

/// A file to pack.
struct PackItem {
    file: SourceFile,
    /// The number and name of its class.
    class: Option<(i64, String)>,
}

/// The plan shared by all threads.
struct PackTask<'a> {
    settings: &'a PackSettings,
    store: Arc<dyn Store>,
    items: Vec<PackItem>,
    /// The first item of each shard, and the end.
    cuts: Vec<usize>,
    /// The field of images in a WebDataset.
    field: String,
    is_text: bool,
}

fn invalid(key: &str, problem: impl std::fmt::Display) -> DataError {
    DataError::Pack {
        what: key.to_owned(),
        problem: problem.to_string(),
    }
}

/// Packs a folder.
///
/// # Errors
/// No files to pack, existing shards, files that cannot be read or written, and files that are not images.
pub fn pack(settings: &PackSettings, opening: &OpenContext) -> Result<PackReport, DataError> {
    let packs = matches!(
        settings.format,
        FormatKind::TfRecord | FormatKind::WebDataset | FormatKind::Parquet
    );
    if !packs {
        let problem = format!(
            "cannot write {}: expected tfrecord, webdataset or parquet",
            settings.format
        );
        return Err(invalid("format", problem));
    }
    #[cfg(not(feature = "full"))]
    if settings.format == FormatKind::Parquet {
        let what = "writing Parquet files".to_owned();
        return Err(DataError::NotBuilt { what });
    }
    if settings.shard_bytes == 0 {
        return Err(invalid("shard size", "0 bytes"));
    }
    let prefix_is_plain =
        |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    if settings.prefix.is_empty() || !settings.prefix.chars().all(prefix_is_plain) {
        return Err(invalid(
            "prefix",
            format!(
                "invalid prefix `{}`: expected letters, digits, `-`, `_` and `.`",
                settings.prefix
            ),
        ));
    }
    let (items, is_text) = items(settings, opening)?;
    let address: Address = settings.to.parse()?;
    let address = match address {
        Address::Folder(folder) => Address::Folder(opening.base.join(folder)),
        other => other,
    };
    let store = ronde_store::open(&address, &opening.remote)?;
    let old = old_shards(&*store, settings)?;
    let job = PackTask {
        settings,
        store,
        cuts: cuts(&items, settings.shard_bytes),
        field: image::field(&items),
        items,
        is_text,
    };
    let bytes = write_all(&job, opening)?;
    // Removes the shards of an earlier set with another number of shards.
    let names: BTreeSet<_> = (0..job.shards()).map(|shard| job.name(shard)).collect();
    for name in old.iter().filter(|name| !names.contains(name.as_str())) {
        job.store.delete(name)?;
    }
    Ok(job.packed(bytes))
}

/// Returns the files in packing order, and whether they are texts.
fn items(
    settings: &PackSettings,
    opening: &OpenContext,
) -> Result<(Vec<PackItem>, bool), DataError> {
    let opener = opening.opener(opening.remote.clone());
    let from = std::slice::from_ref(&settings.from);
    let nothing = || {
        let problem = "no images (.jpg, .jpeg, .png, .webp) and no texts (.txt) found";
        invalid(&settings.from, problem)
    };
    let mut found = match expand(from, &opening.base, &opener, FolderNames::KnownFormats) {
        Err(DataError::LeftOut { .. }) => return Err(nothing()),
        found => found?,
    };
    let is_packed_text = |location: &str| location.ends_with(".txt");
    let is_text = !found.files.iter().any(|file| is_image(file.name()));
    if is_text && !found.files.iter().any(|file| is_packed_text(file.name())) {
        return Err(nothing());
    }
    match is_text {
        false => found.retain(from, IMAGE, is_image)?,
        true => found.retain(from, "a text (.txt)", is_packed_text)?,
    }
    for notice in found.notices(&settings.from) {
        (opening.report)(&DataEvent::Finding(notice));
    }
    let mut files = found.files;
    if let Some(file) = files.iter().find(|file| file.bytes() > FILE_BYTES_MAX) {
        let problem = format!(
            "the file has {} bytes, but the limit is {FILE_BYTES_MAX} bytes",
            file.bytes()
        );
        return Err(invalid(&file.location(), problem));
    }
    if !settings.keeps_order {
        files.sort_by_cached_key(|file| *blake3::hash(file.name().as_bytes()).as_bytes());
    }
    let folder = |file: &SourceFile| {
        let (folder, _) = file.name().rsplit_once('/')?;
        Some(folder.rsplit('/').next().unwrap_or(folder).to_owned())
    };
    let names: BTreeSet<String> = files.iter().filter_map(folder).collect();
    let numbers: BTreeMap<String, i64> = names.into_iter().zip(settings.first_label..).collect();
    let mut items = Vec::with_capacity(files.len());
    for file in files {
        let class = folder(&file).map(|name| (numbers[&name], name));
        if class.is_none() && !(is_text && numbers.is_empty()) {
            let problem = "the file is not in a class folder, but others are";
            return Err(invalid(&file.location(), problem));
        }
        items.push(PackItem { file, class });
    }
    Ok((items, is_text))
}

/// Returns the existing shards with this prefix; an error without `force`.
fn old_shards(store: &dyn Store, settings: &PackSettings) -> Result<Vec<ObjectName>, DataError> {
    let begins = format!("{}-", settings.prefix);
    let is_shard = |name: &str| {
        let number = name
            .strip_prefix(&begins)
            .and_then(|rest| rest.split_once("-of-"));
        number.is_some_and(|(number, _)| {
            number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let entries = store.list(None)?.into_iter();
    let old: Vec<_> = entries
        .map(|entry| entry.name)
        .filter(|name| is_shard(name.as_str()))
        .collect();
    match old.first() {
        Some(first) if !settings.force => {
            let problem = format!("{first} already exists; --force replaces existing shards");
            Err(invalid(&settings.to, problem))
        }
        _ => Ok(old),
    }
}

/// Returns the boundaries of shards of about equal length, at most about `shard_bytes` each.
fn cuts(items: &[PackItem], shard_bytes: u64) -> Vec<usize> {
    let total: u64 = items.iter().map(|item| item.file.bytes()).sum();
    let shards = total.div_ceil(shard_bytes).clamp(1, 99_999);
    let (mut cuts, mut sum) = (vec![0], 0);
    for (number, item) in items.iter().enumerate() {
        let is_due = u128::from(sum) * u128::from(shards) >= u128::from(total) * cuts.len() as u128;
        if number > 0 && is_due && (cuts.len() as u64) < shards {
            cuts.push(number);
        }
        sum += item.file.bytes();
    }
    cuts.push(items.len());
    cuts
}

/// Writes all shards with several threads and returns their bytes.
fn write_all(job: &PackTask<'_>, opening: &OpenContext) -> Result<u64, DataError> {
    let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done = Mutex::new((0_u64, 0_usize, None::<DataError>));
    let what = format!(
        "packing {} files into {} shards",
        job.items.len(),
        job.shards()
    );
    let report = |share| {
        let what = what.clone();
        (opening.report)(&DataEvent::Progress { what, share });
    };
    let run = || {
        loop {
            let shard = next.fetch_add(1, Ordering::Relaxed);
            if shard >= job.shards() || has_failed.load(Ordering::Relaxed) {
                return;
            }
            let written = shard::write(job, shard, &|| {
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                done.1 += 1;
                let share = done.1 as f64 / job.items.len() as f64;
                drop(done);
                report(share.min(0.999));
                !has_failed.load(Ordering::Relaxed)
            });
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            match written {
                Ok(bytes) => done.0 += bytes,
                Err(error) => {
                    has_failed.store(true, Ordering::Relaxed);
                    done.2.get_or_insert(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for number in 1..job.settings.threads.clamp(1, job.shards()) {
            let thread = std::thread::Builder::new().name(format!("ronde-pack-{number}"));
            // A thread that cannot be started only makes packing slower.
            let _ = thread.spawn_scoped(scope, run);
        }
        run();
    });
    report(1.0);
    let (bytes, _, error) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    error.map_or(Ok(bytes), Err)
}

impl PackTask<'_> {
    fn shards(&self) -> usize {
        self.cuts.len() - 1
    }

    /// Returns the name of a shard in the style of TensorFlow's tools.
    fn name(&self, shard: usize) -> String {
        let ending = match self.settings.format {
            FormatKind::WebDataset => ".tar",
            FormatKind::Parquet => ".parquet",
            _ => "",
        };
        format!(
            "{}-{shard:05}-of-{:05}{ending}",
            self.settings.prefix,
            self.shards()
        )
    }

    fn packed(&self, bytes: u64) -> PackReport {
        let classes: BTreeMap<i64, String> = self
            .items
            .iter()
            .filter_map(|item| item.class.clone())
            .collect();
        let classes: Vec<String> = classes.into_values().collect();
        PackReport {
            shards: self.shards(),
            samples: self.items.len(),
            bytes,
            run_file: self.run_file(classes.len()),
            classes,
        }
    }

    fn run_file(&self, classes: usize) -> String {
        let (image, text, label) = match self.settings.format {
            FormatKind::WebDataset => (self.field.as_str(), "txt", "cls"),
            FormatKind::Parquet => ("image.bytes", "text", "label"),
            _ => ("image/encoded", "text", image::LABEL),
        };
        let destination = PathBuf::from(&self.settings.to);
        let mut lines = format!(
            "[data]\nsource = \"records\"\ntrain = \"{}/{}-*\"\n",
            destination.display(),
            self.settings.prefix
        );
        match self.is_text {
            true => lines.push_str(&format!("# the texts are in the field {text:?}\n")),
            false => lines.push_str(&format!(
                "features = {{ decode = \"image\", field = \"{image}\", shape = [3, 224, 224], resize = 256, \
                 crop = \"random_resized\", flip = true }}\n"
            )),
        }
        if classes > 0 {
            let first = match self.settings.first_label {
                0 => String::new(),
                first => format!(", first = {first}"),
            };
            lines.push_str(&format!(
                "label = {{ field = \"{label}\", classes = {classes}{first} }}\n"
            ));
        }
        lines
    }
}

/// Returns the contents of a file.
fn read(item: &PackItem) -> Result<Vec<u8>, DataError> {
    let object = item.file.open()?;
    let bytes = object.bytes();
    if bytes > FILE_BYTES_MAX {
        return Err(invalid(
            &item.file.location(),
            format!("the file has grown to {bytes} bytes"),
        ));
    }
    let mut contents = vec![0; bytes as usize];
    object.read_at(0, &mut contents)?;
    Ok(contents)
}

#[cfg(test)]
mod tests;
