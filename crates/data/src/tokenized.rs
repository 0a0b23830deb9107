//! Text with a tokenizer: files of text become files of tokens once, which are kept and read as such.
//!
//! ```text
//! documents: a file -> its documents, in pieces       tokenizer: a piece -> numbers of tokens
//! tokenize:  files of text -> files of tokens in a folder, divided among threads and processes
//! format::Text: reads those
//! ```
//!
//! Memory: some 20 MiB a thread, whatever the length of the files.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ronde_store::{
    Encrypted, LocalStore, MasterKey, ObjectName, Store, StoreError, StoredObject, Upload,
};

use crate::DataError;
use crate::divide::{Chore, Claim, Claimed, Over, divide};
use crate::format::NumberType;
use crate::index::{DataFile, key_of};
use crate::opening::Opening;

mod documents;
mod kept;
mod tokenizer;

pub(crate) use documents::Form;
use documents::{Documents, Part};
pub(crate) use kept::Told;
pub(crate) use tokenizer::Tokenizer;

/// Where tokens are, in the folder for what can be made again.
const FOLDER: &str = "tokens";
/// Bytes of text for each thread that are encoded at once.
const BATCH_BYTES: usize = 1 << 20;
/// How long another process that encodes a file is waited for, and what it gets through in a second at the least.
const PATIENCE: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND_MIN: u64 = 200_000;

/// Where tokens are kept.
pub(crate) struct Place {
    pub(crate) store: Arc<dyn Store>,
    /// The folder of that store, for locks.
    pub(crate) folder: PathBuf,
}

impl Place {
    /// In the folder for what can be made again; encrypted with a key.
    ///
    /// # Errors
    /// No such folder.
    pub(crate) fn new(opening: &Opening, key: Option<MasterKey>) -> Result<Self, DataError> {
        let folder = opening.cache_folder.as_ref();
        let folder = folder.map(|folder| folder.join(FOLDER));
        let folder = folder.ok_or_else(|| DataError::Schema {
            key: "format".to_owned(),
            problem: "there is no folder where the tokens of text can be kept".to_owned(),
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

/// How text becomes tokens.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) tokenizer: Tokenizer,
    /// Put behind each document.
    pub(crate) end_of_text: Option<u32>,
    /// The field of a line of JSON that holds the text.
    pub(crate) field: String,
}

impl Recipe {
    /// What numbers are kept as: the smallest that hold all tokens.
    pub(crate) fn dtype(&self) -> NumberType {
        match self.tokenizer.tokens() <= 1 << 16 {
            true => NumberType::U16,
            false => NumberType::U32,
        }
    }

    /// Tells recipes apart that make different tokens.
    pub(crate) fn identity(&self) -> String {
        format!(
            "tokens of text version 1, tokenizer {}, {:?} after each, field {:?}",
            self.tokenizer.identity(),
            self.end_of_text,
            self.field
        )
    }
}

/// Tokens of a file of text.
struct TokenizedFile {
    location: String,
    stamp: String,
    bytes: u64,
    name: ObjectName,
    store: Arc<dyn Store>,
}

impl DataFile for TokenizedFile {
    /// That of the text, which messages are about.
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

/// The tokens of files of text, for [`crate::format::Text`] to read. Those that are not kept yet are made, on `threads`
/// threads; `progress` is told the share that is done.
///
/// # Errors
/// Text that cannot be read, and tokens that cannot be kept. Documents that are none are told to who reads the tokens.
pub(crate) fn tokenize(
    files: &[Arc<dyn DataFile>],
    recipe: &Recipe,
    place: &Place,
    threads: usize,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Vec<Arc<dyn DataFile>>, DataError> {
    let how = recipe.identity();
    let name = |file: &Arc<dyn DataFile>| {
        let key = key_of("ronde tokens key, version 1", &**file, &how);
        let name = format!("{}.tokens", &blake3::Hash::from(key).to_hex()[..32]);
        ObjectName::new(name)
    };
    let make = std::fs::create_dir_all(&place.folder);
    make.map_err(|cause| crate::divide::failed("make", &place.folder, cause))?;
    let encoding = Encoding {
        files,
        names: files.iter().map(name).collect::<Result<_, StoreError>>()?,
        recipe,
        place,
        threads: (threads / files.len().max(1)).max(1),
        progress,
        bytes: AtomicU64::new(0),
        bytes_total: files.iter().map(|file| file.bytes()).sum(),
    };
    divide(&encoding, files.len(), threads, "tokenize")
}

/// Encoding files, those of which no tokens are kept.
struct Encoding<'a> {
    files: &'a [Arc<dyn DataFile>],
    names: Vec<ObjectName>,
    recipe: &'a Recipe,
    place: &'a Place,
    /// For each file.
    threads: usize,
    progress: &'a (dyn Fn(f64) + Sync),
    /// Bytes of files that are read.
    bytes: AtomicU64,
    bytes_total: u64,
}

impl Chore for Encoding<'_> {
    type Made = Arc<dyn DataFile>;

    fn known(&self, number: usize) -> Option<Arc<dyn DataFile>> {
        let name = &self.names[number];
        let object = self.place.store.open(name).ok()?;
        // What cannot be read is made again.
        Told::read(&*object)?;
        Some(Arc::new(TokenizedFile {
            location: self.files[number].location().to_owned(),
            stamp: name.to_string(),
            bytes: object.bytes(),
            name: name.clone(),
            store: Arc::clone(&self.place.store),
        }))
    }

    fn claim(&self, number: usize) -> Claimed {
        let lock = self
            .place
            .folder
            .join(format!("{}.lock", self.names[number]));
        match Claim::take(lock) {
            Ok(Some(claim)) => Claimed::Here(claim),
            Ok(None) => Claimed::Elsewhere,
            Err(_) => Claimed::Nowhere,
        }
    }

    fn patience(&self, number: usize) -> Duration {
        PATIENCE + Duration::from_secs(self.files[number].bytes() / BYTES_PER_SECOND_MIN)
    }

    fn make(
        &self,
        number: usize,
        _: Option<&Claim>,
        over: &Over<'_>,
    ) -> Result<Arc<dyn DataFile>, DataError> {
        let file = &self.files[number];
        let upload = self.place.store.create(&self.names[number])?;
        let mut out = Out {
            upload,
            told: Told::new(file.location(), self.recipe.dtype()),
            hasher: blake3::Hasher::new(),
        };
        let mut documents = Documents::open(&**file, &self.recipe.field)?;
        let mut read = 0;
        loop {
            let parts = documents.next_parts(self.threads * BATCH_BYTES)?;
            if parts.is_empty() {
                break;
            }
            over.check(file.location())?;
            self.encode(&parts, &mut out)?;
            let now = documents.bytes_read();
            self.tell(now - std::mem::replace(&mut read, now));
        }
        self.tell(file.bytes().saturating_sub(read));
        out.finish()?;
        let what = || DataError::Format {
            file: file.location().to_owned(),
            problem: "its tokens were written, but cannot be read".to_owned(),
        };
        self.known(number).ok_or_else(what)
    }

    fn done(&self, number: usize, _: &Arc<dyn DataFile>, is_made: bool) -> Result<(), DataError> {
        if !is_made {
            self.tell(self.files[number].bytes());
        }
        Ok(())
    }
}

impl Encoding<'_> {
    fn tell(&self, bytes: u64) {
        let all = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.progress)(all as f64 / self.bytes_total.max(1) as f64);
    }

    /// Encodes parts on several threads; their tokens are written in order.
    fn encode(&self, parts: &[Part], out: &mut Out) -> Result<(), DataError> {
        let each = parts.len().div_ceil(self.threads);
        let chunks: Vec<&[Part]> = parts.chunks(each).collect();
        let encoded: Mutex<Vec<_>> = Mutex::new(chunks.iter().map(|_| None).collect());
        let work = |number: usize, chunk: &[Part]| {
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
            if let Part::Bad(bad) = part {
                out.told.refuse(bad);
            }
        }
        Ok(())
    }

    /// The bytes of the tokens of parts.
    fn tokens(&self, parts: &[Part]) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        let mut put = |token: u32| match self.recipe.dtype() {
            NumberType::U16 => bytes.extend_from_slice(&(token as u16).to_le_bytes()),
            _ => bytes.extend_from_slice(&token.to_le_bytes()),
        };
        for part in parts {
            match part {
                Part::Text(text) => self
                    .recipe
                    .tokenizer
                    .encode(text)?
                    .into_iter()
                    .for_each(&mut put),
                Part::End => self.recipe.end_of_text.into_iter().for_each(&mut put),
                Part::Bad(_) => {}
            }
        }
        Ok(bytes)
    }
}

/// Tokens that are being written.
struct Out {
    upload: Box<dyn Upload>,
    told: Told,
    hasher: blake3::Hasher,
}

impl Out {
    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.told.bytes += bytes.len() as u64;
        self.hasher.update(bytes);
        Ok(self.upload.write(bytes)?)
    }

    fn finish(mut self) -> Result<(), DataError> {
        self.told.hash = *self.hasher.finalize().as_bytes();
        self.upload.write(&self.told.encode())?;
        Ok(self.upload.publish()?)
    }
}

#[cfg(test)]
mod tests;
