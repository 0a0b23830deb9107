//! [`PartFolder`]: the finished chunks of an output, from which an interrupted command continues.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use ronde_core::FormatHeader;
use serde::{Deserialize, Serialize};

use crate::chunks::ChunkPlan;
use crate::error::ServeError;
use crate::output::OutputFormat;
use crate::table_file;

/// The format of the folder.
const FORMAT: (&str, u32) = ("ronde.predictions", 2);
/// The file with the identity of the job.
const JOB_FILE: &str = "job.json";
/// The file with the totals and the hash of the joined output.
const JOINED_FILE: &str = "joined.json";
/// The file that the running command locks.
const LOCK_FILE: &str = "lock";
/// The largest file of JSON that is read, in bytes.
const JSON_BYTES_MAX: u64 = 64 << 20;
/// The number of bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Everything that the predictions of a job depend on. Parts of another job are not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScoringIdentity {
    /// The BLAKE3 hash of the model's weights.
    pub model: String,
    /// The identity of the data set.
    pub data: String,
    /// The number of samples.
    pub samples: u64,
    /// The format of the output.
    pub format: OutputFormat,
    /// The other settings, as text.
    pub settings: String,
}

impl ScoringIdentity {
    /// Returns the first difference between this job and an earlier one, as text.
    fn difference(&self, earlier: &Self) -> Option<String> {
        let changed = |name: &str, from: &str, to: &str| {
            (from != to).then(|| format!("{name} changed from `{from}` to `{to}`"))
        };
        changed("the model", &earlier.model, &self.model)
            .or_else(|| changed("the data", &earlier.data, &self.data))
            .or_else(|| {
                let (from, to) = (earlier.samples.to_string(), self.samples.to_string());
                changed("the number of samples", &from, &to)
            })
            .or_else(|| changed("the settings", &earlier.settings, &self.settings))
            .or_else(|| {
                let (from, to) = (
                    format!("{:?}", earlier.format),
                    format!("{:?}", self.format),
                );
                changed("the format", &from, &to)
            })
    }
}

/// The record of a finished chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRecord {
    /// The number of the chunk.
    pub chunk: u64,
    /// The number of predicted samples.
    pub rows: u64,
    /// The bad records that were skipped, as text.
    pub skipped: Vec<String>,
    /// The BLAKE3 hash of the part.
    pub blake3: String,
}

/// The totals of a finished output.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JoinedOutput {
    /// The number of predicted samples.
    pub rows: u64,
    /// The bad records that were skipped, as text.
    pub skipped: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct ScoringFile {
    header: FormatHeader,
    identity: ScoringIdentity,
}

/// The record that the parts were joined. Written before the output appears, removed after all parts.
#[derive(Serialize, Deserialize)]
struct JoinedFile {
    header: FormatHeader,
    identity: ScoringIdentity,
    totals: JoinedOutput,
    /// The BLAKE3 hash of the output.
    blake3: String,
}

/// The folder beside an output that holds the finished chunks: a part with their rows, and its record. The record is
/// published after the part, so a chunk with a record is complete.
#[derive(Debug)]
pub struct PartFolder {
    path: PathBuf,
    plan: ChunkPlan,
    identity: ScoringIdentity,
    /// Locked as long as the command runs.
    _lock: Option<File>,
}

impl PartFolder {
    /// Returns the folder of an output: its name with `.parts`.
    #[must_use]
    pub fn path_of(output: &Path) -> PathBuf {
        let mut name = output.file_name().unwrap_or_default().to_owned();
        name.push(".parts");
        output.with_file_name(name)
    }

    /// Creates the folder, or opens that of an earlier command with the same job, and locks it. With `replaces`, the parts
    /// of another job are removed.
    ///
    /// # Errors
    /// The folder has parts of another job, another command uses it, or it cannot be written.
    pub fn claim(
        path: &Path,
        identity: &ScoringIdentity,
        replaces: bool,
    ) -> Result<Self, ServeError> {
        match std::fs::create_dir(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(ServeError::file("create", path, error));
            }
            _ => {}
        }
        let lock = lock(path)?;
        let job = path.join(JOB_FILE);
        let is_same = !job.exists()
            || check(&job, identity).map(|()| true).or_else(|error| {
                let is_other = matches!(error, ServeError::OtherParts { .. });
                if replaces && is_other {
                    Ok(false)
                } else {
                    Err(error)
                }
            })?;
        if !is_same {
            remove_parts(path)?;
        }
        if !job.exists() {
            let contents = ScoringFile {
                header: FormatHeader::of(FORMAT),
                identity: identity.clone(),
            };
            ronde_saved_model::publish(&job, &json(&contents)?)?;
        }
        Ok(Self::of(path, identity, Some(lock)))
    }

    /// Finishes the work of a command with the same job that was interrupted after its output appeared: removes the folder and
    /// returns the totals. Returns `None` if the output is not the joined file of this folder. Cost: reads the output.
    ///
    /// # Errors
    /// Another command uses the folder, or it cannot be removed.
    pub fn finish_joined(
        output: &Path,
        identity: &ScoringIdentity,
    ) -> Result<Option<JoinedOutput>, ServeError> {
        let path = Self::path_of(output);
        let joined = path.join(JOINED_FILE);
        if !joined.exists() {
            // Only an empty folder is removed: the command was interrupted before its last action.
            let _ = std::fs::remove_dir(&path);
            return Ok(None);
        }
        let _lock = lock(&path)?;
        let Some(file) = read_joined(&joined) else {
            return Ok(None);
        };
        if identity.difference(&file.identity).is_some() || !has_hash(output, &file.blake3)? {
            return Ok(None);
        }
        remove_folder(&path)?;
        Ok(Some(file.totals))
    }

    /// Opens the folder in a worker of the command that has claimed it.
    ///
    /// # Errors
    /// The folder belongs to another job.
    pub fn open(path: &Path, identity: &ScoringIdentity) -> Result<Self, ServeError> {
        check(&path.join(JOB_FILE), identity)?;
        Ok(Self::of(path, identity, None))
    }

    fn of(path: &Path, identity: &ScoringIdentity, lock: Option<File>) -> Self {
        Self {
            path: path.to_owned(),
            plan: ChunkPlan::new(identity.samples),
            identity: identity.clone(),
            _lock: lock,
        }
    }

    /// Returns the chunks without a record. A record that cannot be read counts as absent.
    #[must_use]
    pub fn missing(&self) -> Vec<u64> {
        let chunks = 0..self.plan.chunks();
        chunks
            .filter(|&chunk| self.record(chunk).is_none())
            .collect()
    }

    /// Publishes the rows of a finished chunk, and then its record.
    ///
    /// # Errors
    /// A file cannot be written. The chunk is then not finished.
    pub fn publish(
        &self,
        (chunk, rows): (u64, u64),
        skipped: Vec<String>,
        part: &[u8],
    ) -> Result<(), ServeError> {
        ronde_saved_model::publish(&self.part_path(chunk), part)?;
        let record = ChunkRecord {
            chunk,
            rows,
            skipped,
            blake3: blake3::hash(part).to_hex().to_string(),
        };
        ronde_saved_model::publish(&self.record_path(chunk), &json(&record)?)?;
        Ok(())
    }

    /// Joins the parts of all chunks in order into the output, which appears atomically, and removes the folder.
    /// `skip_limit` is the share of the samples that may be skipped.
    ///
    /// # Errors
    /// A part is missing or damaged; a damaged one is removed, so that the next command computes it again. Too many samples
    /// were skipped, or all. The output cannot be written.
    pub fn join(self, output: &Path, skip_limit: f64) -> Result<JoinedOutput, ServeError> {
        let joined = self.publish_joined(output, skip_limit)?;
        remove_folder(&self.path)?;
        Ok(joined)
    }

    /// Joins the parts into the output, and keeps them.
    fn publish_joined(&self, output: &Path, skip_limit: f64) -> Result<JoinedOutput, ServeError> {
        let mut joined = JoinedOutput::default();
        let mut parts = Vec::new();
        for chunk in 0..self.plan.chunks() {
            let record = self.record(chunk).ok_or_else(|| self.damaged(chunk))?;
            let samples = self.plan.samples(chunk);
            if record.rows + record.skipped.len() as u64 != samples.end - samples.start
                || !has_hash(&self.part_path(chunk), &record.blake3)?
            {
                return Err(self.damaged(chunk));
            }
            joined.rows += record.rows;
            joined.skipped.extend(record.skipped);
            if record.rows > 0 {
                parts.push(self.part_path(chunk));
            }
        }
        let samples = joined.rows + joined.skipped.len() as u64;
        if joined.rows == 0 || joined.skipped.len() as f64 > skip_limit * samples as f64 {
            return Err(ServeError::TooManySkipped {
                skipped: joined.skipped.len(),
                samples,
                first: joined.skipped.into_iter().next().unwrap_or_default(),
            });
        }
        ronde_saved_model::check_target(output)
            .map_err(|source| ServeError::file("write", output, source))?;
        let temporary = ronde_saved_model::temporary(output);
        let written = self.write(&parts, &temporary);
        let published = written
            .and_then(|()| self.record_joined(&joined, &temporary))
            .and_then(|()| {
                std::fs::rename(&temporary, output)
                    .map_err(|source| ServeError::file("write", output, source))
            });
        if let Err(error) = published {
            // Report the write error; ignore an error of removing the temporary file.
            let _ = std::fs::remove_file(&temporary);
            return Err(error);
        }
        Ok(joined)
    }

    /// Publishes the totals and the hash of an output that is about to appear.
    fn record_joined(&self, totals: &JoinedOutput, written: &Path) -> Result<(), ServeError> {
        let hash = hash(written).map_err(|source| ServeError::file("read", written, source))?;
        let file = JoinedFile {
            header: FormatHeader::of(FORMAT),
            identity: self.identity.clone(),
            totals: totals.clone(),
            blake3: hash.to_hex().to_string(),
        };
        ronde_saved_model::publish(&self.path.join(JOINED_FILE), &json(&file)?)?;
        Ok(())
    }

    fn write(&self, parts: &[PathBuf], to: &Path) -> Result<(), ServeError> {
        let failed = |source| ServeError::file("write", to, source);
        let mut file = File::create(to).map_err(failed)?;
        if self.identity.format == OutputFormat::Parquet {
            let open = |path: &PathBuf| {
                File::open(path).map_err(|source| ServeError::file("read", path, source))
            };
            let parts = parts.iter().map(open).collect::<Result<Vec<File>, _>>()?;
            table_file::join(parts, &mut file)?;
        } else {
            for (index, path) in parts.iter().enumerate() {
                let has_header = self.identity.format == OutputFormat::Csv && index > 0;
                let bytes = std::fs::read(path);
                let bytes = bytes.map_err(|source| ServeError::file("read", path, source))?;
                let header = bytes
                    .iter()
                    .position(|&byte| byte == b'\n')
                    .map_or(0, |at| at + 1);
                let start = if has_header { header } else { 0 };
                file.write_all(&bytes[start..]).map_err(failed)?;
            }
        }
        file.sync_all().map_err(failed)
    }

    /// Returns the record of a chunk, if it is finished.
    fn record(&self, chunk: u64) -> Option<ChunkRecord> {
        let bytes = read_limited(&self.record_path(chunk)).ok()?;
        let record: ChunkRecord = serde_json::from_slice(&bytes).ok()?;
        (record.chunk == chunk).then_some(record)
    }

    /// Removes the record of a chunk, so that it is computed again, and returns the error.
    fn damaged(&self, chunk: u64) -> ServeError {
        // If it cannot be removed, the next command reports the same error.
        let _ = std::fs::remove_file(self.record_path(chunk));
        ServeError::DamagedPart {
            path: self.part_path(chunk),
        }
    }

    fn part_path(&self, chunk: u64) -> PathBuf {
        self.path.join(format!("{chunk:08}.part"))
    }

    fn record_path(&self, chunk: u64) -> PathBuf {
        self.path.join(format!("{chunk:08}.json"))
    }
}

/// Locks the folder for a command.
fn lock(path: &Path) -> Result<File, ServeError> {
    let lock_path = path.join(LOCK_FILE);
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock_path)
        .map_err(|source| ServeError::file("create", &lock_path, source))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(ServeError::PartsInUse {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(ServeError::file("lock", &lock_path, source)),
    }
}

/// Returns the BLAKE3 hash of a file.
fn hash(path: &Path) -> std::io::Result<blake3::Hash> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize()),
            count => hasher.update(&buffer[..count]),
        };
    }
}

/// Returns whether a file has a hash; an absent one has none.
fn has_hash(path: &Path, expected: &str) -> Result<bool, ServeError> {
    match hash(path) {
        Ok(hash) => Ok(hash.to_hex().as_str() == expected),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(ServeError::file("read", path, source)),
    }
}

/// Returns the record that the parts were joined; `None` if it cannot be read.
fn read_joined(path: &Path) -> Option<JoinedFile> {
    let file: JoinedFile = serde_json::from_slice(&read_limited(path).ok()?).ok()?;
    file.header.check(FORMAT).is_ok().then_some(file)
}

/// Removes the folder of a finished output: each chunk's record before its part, and the record of the joined output last, so
/// that a later command can finish an interrupted removal.
fn remove_folder(path: &Path) -> Result<(), ServeError> {
    let failed = |source| ServeError::file("remove", path, source);
    remove_parts(path)?;
    for name in [LOCK_FILE, JOINED_FILE] {
        std::fs::remove_file(path.join(name)).map_err(failed)?;
    }
    std::fs::remove_dir(path).map_err(failed)
}

/// Removes the job, its records and its parts; the lock and the record of the joined output stay. The job is removed last, so that an interrupted removal
/// leaves nothing that a later command takes for its own.
fn remove_parts(path: &Path) -> Result<(), ServeError> {
    let failed = |source| ServeError::file("remove", path, source);
    let mut chunks = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if ![LOCK_FILE, JOB_FILE, JOINED_FILE]
            .iter()
            .any(|kept| name == *kept)
        {
            chunks.push(path.join(name));
        }
    }
    let is_record = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    chunks.sort_by_key(|path| !is_record(path));
    for file in chunks {
        std::fs::remove_file(file).map_err(failed)?;
    }
    match std::fs::remove_file(path.join(JOB_FILE)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Checks that the folder of a job file has the parts of a job.
fn check(job: &Path, identity: &ScoringIdentity) -> Result<(), ServeError> {
    let other = |difference: String| ServeError::OtherParts {
        path: job.parent().unwrap_or(job).to_owned(),
        difference,
    };
    let bytes = read_limited(job).map_err(|source| ServeError::file("read", job, source))?;
    let earlier: ScoringFile = serde_json::from_slice(&bytes)
        .map_err(|error| other(format!("its {JOB_FILE} cannot be read: {error}")))?;
    let checked = earlier.header.check(FORMAT);
    checked.map_err(|error| other(error.to_string()))?;
    match identity.difference(&earlier.identity) {
        None => Ok(()),
        Some(difference) => Err(other(difference)),
    }
}

/// Reads a file of limited size.
fn read_limited(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(JSON_BYTES_MAX)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, ServeError> {
    serde_json::to_vec(value).map_err(|error| ServeError::Encode {
        cause: error.into(),
    })
}

#[cfg(test)]
mod tests;
