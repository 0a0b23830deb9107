//! [`Encrypted`]: a store wrapper that encrypts and authenticates objects.

use std::sync::{Arc, OnceLock};

use crate::error::StoreError;
use crate::key::MasterKey;
use crate::name::ObjectName;
use crate::object_entry::ObjectEntry;
use crate::sealing::{CHUNK_BYTES, HEADER_BYTES, Sealing, TAG_BYTES, lengths};
use crate::stamp::Stamp;
use crate::store::{Condition, Store, StoredObject, Upload, Version};

/// The number of sealed chunks read from the inner store at a time: 8 MiB.
const CHUNKS_A_READ: u64 = 32;
const SEALED_CHUNK: u64 = (CHUNK_BYTES + TAG_BYTES) as u64;

/// A wrapper around a store that seals objects with AES-256-GCM under keys derived from a master
/// key.
///
/// Reading detects any changed, missing, added or exchanged byte, and an object stored under
/// another object's name. Names and lengths are visible. Cost: 52 bytes per object and 16 per 256
/// KiB; reads are rounded up to whole chunks.
#[derive(Debug, Clone)]
pub struct Encrypted {
    below: Arc<dyn Store>,
    key: MasterKey,
}

impl Encrypted {
    /// Encrypts all objects written to `below` with `key`.
    #[must_use]
    pub fn new(below: Arc<dyn Store>, key: MasterKey) -> Self {
        Self { below, key }
    }
}

impl Store for Encrypted {
    fn create(&self, name: &ObjectName) -> Result<Box<dyn Upload>, StoreError> {
        let (sealing, header) = Sealing::new(&self.key, name)?;
        let mut below = self.below.create(name)?;
        below.write(&header)?;
        Ok(Box::new(SealedUpload {
            below,
            sealing,
            index: 0,
            chunk: Vec::with_capacity(CHUNK_BYTES + TAG_BYTES),
        }))
    }

    fn put_if(
        &self,
        name: &ObjectName,
        bytes: &[u8],
        condition: &Condition,
    ) -> Result<Version, StoreError> {
        let sealed = self.key.seal(name, bytes)?;
        self.below.put_if(name, &sealed, condition)
    }

    fn open(&self, name: &ObjectName) -> Result<Box<dyn StoredObject>, StoreError> {
        let below = self.below.open(name)?;
        Ok(Box::new(SealedObject {
            lengths: lengths(below.bytes()),
            below,
            name: name.clone(),
            key: self.key.clone(),
            sealing: OnceLock::new(),
        }))
    }

    fn list(&self, folder: Option<&ObjectName>) -> Result<Vec<ObjectEntry>, StoreError> {
        let mut entries = self.below.list(folder)?;
        for entry in &mut entries {
            // An impossible length is reported when the object is opened; in a listing it only must
            // not equal a valid one.
            entry.bytes = lengths(entry.bytes).map_or(u64::MAX, |(_, bytes)| bytes);
        }
        Ok(entries)
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.below.delete(name)
    }

    fn sweep(&self) -> Result<u64, StoreError> {
        self.below.sweep()
    }
}

impl MasterKey {
    /// Returns the encrypted form of the object `name`, for callers that write to the inner store
    /// directly.
    ///
    /// # Errors
    /// [`StoreError::Key`] when the system has no random numbers.
    pub fn seal(&self, name: &ObjectName, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let (sealing, header) = Sealing::new(self, name)?;
        let mut sealed = header.to_vec();
        let count = bytes.len().div_ceil(CHUNK_BYTES).max(1);
        sealed.reserve(bytes.len() + count * TAG_BYTES);
        for index in 0..count {
            let end = bytes.len().min((index + 1) * CHUNK_BYTES);
            let mut chunk = bytes[index * CHUNK_BYTES..end].to_vec();
            sealing.seal(index as u64, index + 1 == count, &mut chunk)?;
            sealed.append(&mut chunk);
        }
        Ok(sealed)
    }
}

struct SealedUpload {
    below: Box<dyn Upload>,
    sealing: Sealing,
    index: u64,
    chunk: Vec<u8>,
}

impl SealedUpload {
    fn seal(&mut self, is_last: bool) -> Result<(), StoreError> {
        self.sealing.seal(self.index, is_last, &mut self.chunk)?;
        self.index += 1;
        self.below.write(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }
}

impl Upload for SealedUpload {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            // A full chunk is held back until more bytes arrive, because it may be the last one.
            if self.chunk.len() == CHUNK_BYTES {
                self.seal(false)?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn publish(mut self: Box<Self>) -> Result<(), StoreError> {
        self.seal(true)?;
        self.below.publish()
    }
}

/// An encrypted object that is open for reading. A damaged object can be opened, so that it can be
/// replaced; reading it reports the damage.
struct SealedObject {
    below: Box<dyn StoredObject>,
    /// The numbers of chunks and plain bytes; `None` when no valid object has this length.
    lengths: Option<(u64, u64)>,
    name: ObjectName,
    key: MasterKey,
    sealing: OnceLock<Sealing>,
}

impl SealedObject {
    fn damaged(&self, problem: String) -> StoreError {
        StoreError::Damaged {
            location: self.location().to_owned(),
            problem,
        }
    }

    /// Returns the object's key, derived from its header.
    fn sealing(&self) -> Result<&Sealing, StoreError> {
        if let Some(sealing) = self.sealing.get() {
            return Ok(sealing);
        }
        let mut header = [0; HEADER_BYTES];
        self.below.read_at(0, &mut header)?;
        let sealing = Sealing::open(&self.key, &self.name, &header, self.location())?;
        Ok(self.sealing.get_or_init(|| sealing))
    }

    /// Reads and opens the chunks `first..end` of `all` and passes each plain chunk to `take`.
    fn chunks(
        &self,
        (first, end, all): (u64, u64, u64),
        take: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), StoreError> {
        let sealing = self.sealing()?;
        let from = HEADER_BYTES as u64 + first * SEALED_CHUNK;
        let to = (HEADER_BYTES as u64 + end * SEALED_CHUNK).min(self.below.bytes());
        let mut sealed = vec![0; (to - from) as usize];
        self.below.read_at(from, &mut sealed)?;
        for (index, chunk) in (first..end).zip(sealed.chunks_mut(SEALED_CHUNK as usize)) {
            let is_last = index + 1 == all;
            let plain = sealing.open_chunk(index, is_last, chunk).ok_or_else(|| {
                self.damaged(format!(
                    "authentication of chunk {index} of {all} failed: it was changed, or belongs to another object"
                ))
            })?;
            take(index, plain);
        }
        Ok(())
    }
}

impl StoredObject for SealedObject {
    fn bytes(&self) -> u64 {
        self.lengths.map_or(0, |(_, bytes)| bytes)
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let Some((chunks, bytes)) = self.lengths else {
            return Err(self.damaged(format!(
                "{} bytes is not a valid length of an encrypted object",
                self.below.bytes()
            )));
        };
        let end = start.saturating_add(into.len() as u64);
        if end > bytes {
            return Err(self.damaged(format!(
                "it has {bytes} bytes; cannot read up to byte {end}"
            )));
        }
        let chunk_bytes = CHUNK_BYTES as u64;
        // An empty read of an empty object still authenticates its only chunk.
        let mut first = (start / chunk_bytes).min(chunks - 1);
        let end_chunk = end.div_ceil(chunk_bytes).max(first + 1);
        while first < end_chunk {
            let next = end_chunk.min(first + CHUNKS_A_READ);
            self.chunks((first, next, chunks), &mut |index, plain| {
                let chunk_start = index * chunk_bytes;
                let from = start.max(chunk_start);
                let to = end.min(chunk_start + plain.len() as u64);
                if from < to {
                    into[(from - start) as usize..(to - start) as usize].copy_from_slice(
                        &plain[(from - chunk_start) as usize..(to - chunk_start) as usize],
                    );
                }
            })?;
            first = next;
        }
        Ok(())
    }

    fn stamp(&self) -> Stamp {
        self.below.stamp()
    }

    fn version(&self) -> Result<Version, StoreError> {
        self.below.version()
    }

    fn location(&self) -> &str {
        self.below.location()
    }
}
