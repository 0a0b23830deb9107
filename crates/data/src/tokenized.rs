//! Text with a tokenizer: text files are encoded once to token files, which are stored and read.
//!
//! ```text
//! documents: a file -> its documents, in pieces       tokenizer: a piece -> token numbers
//! tokenize:  text files -> token files in a folder, divided among threads and processes
//! format::Text: reads token files
//! ```
//!
//! Memory: about 20 MiB per thread, independent of the length of the files, where texts have cuts; without them, a document is
//! encoded at once, which takes up to 600 MiB.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ronde_store::{
    Encrypted, LocalStore, MasterKey, ObjectName, Store, StoreError, StoredObject, Upload,
};

use crate::error::DataError;
use crate::file_tasks::{Cancellation, ClaimOutcome, FileTask, TaskClaim, run_file_tasks};
use crate::format::NumberType;
use crate::index::{DataFile, key_of};
use crate::open_context::OpenContext;
use crate::read_limit::ReadLimit;

#[cfg(feature = "full")]
mod cuts;
#[cfg(not(feature = "full"))]
mod cuts {
    /// Nothing is known without tokenizers.
    pub(crate) type CharacterPairs = ();
}
mod documents;
mod footer;
mod sample;
mod tokenizer;

pub(crate) use documents::{DocumentLayout, UNCUT_BYTES_MAX};
use documents::{DocumentPart, Documents};
pub(crate) use footer::TokenFileFooter;
use sample::SampleBytes;
pub(crate) use tokenizer::Tokenizer;

/// The subfolder of the cache folder with tokens.
const FOLDER: &str = "tokens";
/// The bytes of text per thread that are encoded at once.
const BATCH_BYTES: usize = 1 << 20;
/// These bytes if the time is limited.
const LIMITED_BATCH_BYTES: usize = 64 << 10;
/// The fixed part of the time to wait for another process that encodes a file.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// The minimum encoding speed that the wait allows for.
const BYTES_PER_SECOND_MIN: u64 = 200_000;

/// The store of token files.
pub(crate) struct TokenStore {
    pub(crate) store: Arc<dyn Store>,
    /// The folder of that store, for locks.
    pub(crate) folder: PathBuf,
}

impl TokenStore {
    /// Returns the store in the cache folder, encrypted if a key is given.
    ///
    /// # Errors
    /// No cache folder.
    pub(crate) fn new(opening: &OpenContext, key: Option<MasterKey>) -> Result<Self, DataError> {
        let folder = opening.cache_folder.as_ref();
        let folder = folder.map(|folder| folder.join(FOLDER));
        let folder = folder.ok_or_else(|| {
            DataError::schema(
                "format",
                "tokens of text need a cache folder, but none is known",
            )
        })?;
        let plain: Arc<dyn Store> = Arc::new(LocalStore::new(&folder));
        Ok(Self {
            store: match key {
                Some(key) => Arc::new(Encrypted::new(plain, key)),
                None => plain,
            },
            folder,
        })
    }
}

/// The settings of tokenization.
#[derive(Debug)]
pub(crate) struct Tokenization {
    pub(crate) tokenizer: Tokenizer,
    /// The token added after each document.
    pub(crate) end_of_text: Option<u32>,
    /// The field with the text in a line of JSON.
    pub(crate) field: String,
}

impl Tokenization {
    /// Returns the stored number type: the smallest one that holds all tokens.
    pub(crate) fn dtype(&self) -> NumberType {
        match self.tokenizer.tokens() <= 1 << 16 {
            true => NumberType::U16,
            false => NumberType::U32,
        }
    }

    /// Returns a text that differs for settings that produce different tokens.
    pub(crate) fn identity(&self) -> String {
        format!(
            "tokens of text version 2, tokenizer {}, {:?} after each, field {:?}",
            self.tokenizer.identity(),
            self.end_of_text,
            self.field
        )
    }
}

/// The tokens of a text file.
struct TokenizedFile {
    location: String,
    stamp: String,
    bytes: u64,
    name: ObjectName,
    store: Arc<dyn Store>,
}

impl DataFile for TokenizedFile {
    /// Returns the location of the text, for messages.
    fn location(&self) -> &str {
        &self.location
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn stamp(&self) -> &str {
        &self.stamp
    }

    fn open(&self) -> Result<Arc<dyn StoredObject>, DataError> {
        Ok(self.store.open(&self.name)?.into())
    }
}

/// Returns the token files of text files, for [`crate::format::Text`] to read. Encodes missing ones on `threads` threads and
/// reports the completed share to `progress`. With a limit, the tokens of the beginning of each text are kept in memory instead
/// of those that are not stored; also returns how many files end early because of it.
///
/// # Errors
/// Text that cannot be read, and tokens that cannot be stored. Invalid documents are recorded in the token files.
pub(crate) fn tokenize(
    files: &[Arc<dyn DataFile>],
    tokenization: &Tokenization,
    token_store: &TokenStore,
    (threads, limit): (usize, Option<&ReadLimit>),
    progress: &(dyn Fn(f64) + Sync),
) -> Result<(Vec<Arc<dyn DataFile>>, usize), DataError> {
    let how = tokenization.identity();
    let name = |file: &Arc<dyn DataFile>| {
        let key = key_of("ronde tokens key, version 1", &**file, &how);
        let name = format!("{}.tokens", &blake3::Hash::from(key).to_hex()[..32]);
        ObjectName::new(name)
    };
    let make = std::fs::create_dir_all(&token_store.folder);
    make.map_err(|cause| crate::file_tasks::failed("create", &token_store.folder, cause))?;
    let encoding = EncodeTask {
        files,
        names: files.iter().map(name).collect::<Result<_, StoreError>>()?,
        tokenization,
        token_store,
        threads: (threads / files.len().max(1)).max(1),
        progress,
        limit,
        cut: AtomicUsize::new(0),
        bytes: AtomicU64::new(0),
        bytes_total: files.iter().map(|file| file.bytes()).sum(),
    };
    let encoded = run_file_tasks(&encoding, files.len(), threads, "tokenize")?;
    Ok((encoded, encoding.cut.into_inner()))
}

/// The task of encoding the files without stored tokens.
struct EncodeTask<'a> {
    files: &'a [Arc<dyn DataFile>],
    names: Vec<ObjectName>,
    tokenization: &'a Tokenization,
    token_store: &'a TokenStore,
    /// The number of threads per file.
    threads: usize,
    progress: &'a (dyn Fn(f64) + Sync),
    limit: Option<&'a ReadLimit>,
    /// The number of files that end early because of the limit.
    cut: AtomicUsize,
    /// The bytes of files read so far.
    bytes: AtomicU64,
    bytes_total: u64,
}

impl FileTask for EncodeTask<'_> {
    type Output = Arc<dyn DataFile>;

    fn stored(&self, number: usize) -> Option<Arc<dyn DataFile>> {
        let name = &self.names[number];
        let object = self.token_store.store.open(name).ok()?;
        // A file with a damaged footer is encoded again.
        TokenFileFooter::read(&*object)?;
        Some(Arc::new(TokenizedFile {
            location: self.files[number].location().to_owned(),
            stamp: name.to_string(),
            bytes: object.bytes(),
            name: name.clone(),
            store: Arc::clone(&self.token_store.store),
        }))
    }

    fn claim(&self, number: usize) -> ClaimOutcome {
        if self.limit.is_some() {
            return ClaimOutcome::Unavailable;
        }
        let lock = self
            .token_store
            .folder
            .join(format!("{}.lock", self.names[number]));
        match TaskClaim::take(lock) {
            Ok(Some(claim)) => ClaimOutcome::Claimed(claim),
            Ok(None) => ClaimOutcome::Busy,
            Err(_) => ClaimOutcome::Unavailable,
        }
    }

    fn wait_limit(&self, number: usize) -> Duration {
        WAIT_LIMIT + Duration::from_secs(self.files[number].bytes() / BYTES_PER_SECOND_MIN)
    }

    fn run(
        &self,
        number: usize,
        _: Option<&TaskClaim>,
        cancellation: &Cancellation<'_>,
    ) -> Result<Arc<dyn DataFile>, DataError> {
        let file = &self.files[number];
        let sample = SampleBytes::default();
        let mut out = TokenWriter {
            upload: match self.limit {
                Some(_) => Box::new(sample.clone()),
                None => self.token_store.store.create(&self.names[number])?,
            },
            footer: TokenFileFooter::new(file.location(), self.tokenization.dtype()),
            hasher: blake3::Hasher::new(),
        };
        let mut documents = Documents::open(&**file, self.tokenization)?;
        let mut read = 0;
        loop {
            if self.limit.is_some_and(ReadLimit::is_opening_over) {
                self.cut.fetch_add(1, Ordering::Relaxed);
                break;
            }
            let parts = documents.next_parts(self.threads * self.batch_bytes())?;
            if parts.is_empty() {
                break;
            }
            cancellation.check(file.location())?;
            let encoded = self.encode(&parts, &mut out);
            encoded.map_err(|error| in_file(file.location(), error))?;
            let now = documents.bytes_read();
            self.add_progress(now - std::mem::replace(&mut read, now));
        }
        self.add_progress(file.bytes().saturating_sub(read));
        out.finish()?;
        if self.limit.is_some() {
            return Ok(Arc::new(sample.sample(file.location())));
        }
        let what = || {
            DataError::format(
                file.location(),
                "its tokens were written, but cannot be read back",
            )
        };
        self.stored(number).ok_or_else(what)
    }

    fn finished(
        &self,
        number: usize,
        _: &Arc<dyn DataFile>,
        is_encoded_here: bool,
    ) -> Result<(), DataError> {
        if !is_encoded_here {
            self.add_progress(self.files[number].bytes());
        }
        Ok(())
    }
}

impl EncodeTask<'_> {
    /// Returns the bytes of text per thread that are encoded at once: fewer if the time is limited.
    fn batch_bytes(&self) -> usize {
        match self.limit {
            Some(_) => LIMITED_BATCH_BYTES,
            None => BATCH_BYTES,
        }
    }

    fn add_progress(&self, bytes: u64) {
        let all = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.progress)(all as f64 / self.bytes_total.max(1) as f64);
    }

    /// Encodes parts on several threads and writes their tokens in order.
    fn encode(&self, parts: &[DocumentPart], out: &mut TokenWriter) -> Result<(), DataError> {
        let each = parts.len().div_ceil(self.threads);
        let chunks: Vec<&[DocumentPart]> = parts.chunks(each).collect();
        let encoded: Mutex<Vec<_>> = Mutex::new(chunks.iter().map(|_| None).collect());
        let work = |number: usize, chunk: &[DocumentPart]| {
            let tokens = self.tokens(chunk);
            let mut encoded = encoded.lock().unwrap_or_else(PoisonError::into_inner);
            encoded[number] = Some(tokens);
        };
        std::thread::scope(|scope| {
            let work = &work;
            for (number, chunk) in chunks.iter().enumerate().skip(1) {
                scope.spawn(move || work(number, chunk));
            }
            work(0, chunks[0]);
        });
        let encoded = encoded.into_inner().unwrap_or_else(PoisonError::into_inner);
        for tokens in encoded.into_iter().flatten() {
            out.write(&tokens?)?;
        }
        for part in parts {
            if let DocumentPart::Bad(bad) = part {
                out.footer.refuse(bad);
            }
        }
        Ok(())
    }

    /// Returns the bytes of the tokens of parts.
    fn tokens(&self, parts: &[DocumentPart]) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        let mut put = |token: u32| match self.tokenization.dtype() {
            NumberType::U16 => bytes.extend_from_slice(&(token as u16).to_le_bytes()),
            _ => bytes.extend_from_slice(&token.to_le_bytes()),
        };
        for part in parts {
            match part {
                DocumentPart::Text(text) => self
                    .tokenization
                    .tokenizer
                    .encode(text)?
                    .into_iter()
                    .for_each(&mut put),
                DocumentPart::End => self.tokenization.end_of_text.into_iter().for_each(&mut put),
                DocumentPart::Bad(_) => {}
            }
        }
        Ok(bytes)
    }
}

/// Adds the file to an error of the tokenizer.
fn in_file(file: &str, error: DataError) -> DataError {
    match error {
        DataError::Schema { problem, .. } => DataError::format(file, problem),
        other => other,
    }
}

/// A token file that is being written.
struct TokenWriter {
    upload: Box<dyn Upload>,
    footer: TokenFileFooter,
    hasher: blake3::Hasher,
}

impl TokenWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.footer.bytes += bytes.len() as u64;
        self.hasher.update(bytes);
        Ok(self.upload.write(bytes)?)
    }

    fn finish(mut self) -> Result<(), DataError> {
        self.footer.hash = *self.hasher.finalize().as_bytes();
        self.upload.write(&self.footer.encode())?;
        Ok(self.upload.publish()?)
    }
}

#[cfg(test)]
mod tests;
