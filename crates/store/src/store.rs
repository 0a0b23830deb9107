//! [`Store`]: the seam towards whatever keeps objects, and its conveniences in [`StoreExt`].

use std::fmt;
use std::ops::Range;

use crate::{ObjectName, Stamp, StoreError};

/// What identifies the contents of an object for a conditional put; equal contents may have equal versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub(crate) String);

/// When a conditional put may happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Only when there is no such object.
    Absent,
    /// Only when the object is still this one.
    Unchanged(Version),
}

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: ObjectName,
    /// Its length.
    pub bytes: u64,
    /// That of [`StoredObject::stamp`].
    pub stamp: Stamp,
}

/// A small object and what identifies it.
#[derive(Debug)]
pub struct Versioned {
    /// For a conditional put.
    pub version: Version,
    /// What it holds, or why that cannot be read.
    pub contents: Result<Vec<u8>, StoreError>,
}

/// Keeps objects under names. An object is there whole or not at all, for every reader at any time.
///
/// Calls block; how long is bounded by the implementation. May be used from several threads.
pub trait Store: Send + Sync + fmt::Debug {
    /// Starts to write an object. It is there once [`Upload::publish`] returned; dropping it leaves nothing.
    /// An object of this name is replaced.
    ///
    /// # Errors
    /// As the place has them.
    fn create(&self, name: &ObjectName) -> Result<Box<dyn Upload>, StoreError>;

    /// Writes a small object if `condition` holds at that moment, and tells its version.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the condition does not hold; else as the place has them.
    fn put_if(
        &self,
        name: &ObjectName,
        bytes: &[u8],
        condition: &Condition,
    ) -> Result<Version, StoreError>;

    /// Opens an object for reading. Later writers do not change what is read; of a remote store the reader is told
    /// [`StoreError::Conflict`] instead.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; else as the place has them.
    fn open(&self, name: &ObjectName) -> Result<Box<dyn StoredObject>, StoreError>;

    /// Opens an object of a listing. A remote store is not asked for it again: what it has become meanwhile is told
    /// when it is read.
    ///
    /// # Errors
    /// As [`Store::open`]; [`StoreError::Conflict`] when it was replaced.
    fn open_listed(&self, entry: &Entry) -> Result<Box<dyn StoredObject>, StoreError> {
        let object = self.open(&entry.name)?;
        if object.stamp() != entry.stamp || object.bytes() != entry.bytes {
            return Err(StoreError::Conflict {
                location: object.location().to_owned(),
                found: "it was replaced after it was listed",
            });
        }
        Ok(object)
    }

    /// All objects inside `folder` (of the whole store without one), in the order of their names.
    ///
    /// # Errors
    /// As the place has them; an absent folder is an empty one.
    fn list(&self, folder: Option<&ObjectName>) -> Result<Vec<Entry>, StoreError>;

    /// Removes an object; an absent one is no error.
    ///
    /// # Errors
    /// As the place has them.
    fn delete(&self, name: &ObjectName) -> Result<(), StoreError>;

    /// Removes what killed writers left and no listing shows; tells how many.
    ///
    /// # Errors
    /// As the place has them.
    fn sweep(&self) -> Result<u64, StoreError>;
}

/// An object that is being written.
pub trait Upload: Send {
    /// Appends bytes.
    ///
    /// # Errors
    /// As the place has them; the upload is then of no use.
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError>;

    /// Makes the object durable and visible under its name.
    ///
    /// # Errors
    /// As the place has them; nothing is visible then.
    fn publish(self: Box<Self>) -> Result<(), StoreError>;
}

/// An object that is there.
pub trait StoredObject: Send + Sync {
    /// Its length.
    fn bytes(&self) -> u64;

    /// Says that these bytes will be read soon. A hint, which objects that have nothing to prepare do not follow.
    fn prefetch(&self, _ranges: &[Range<u64>]) {}

    /// Fills `into` from byte `start` on.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the object ends before; else as the place has them.
    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<(), StoreError>;

    /// What changes whenever the object is replaced, at no cost: the key of what is remembered about it.
    fn stamp(&self) -> Stamp;

    /// Its version, for a conditional put. Costs a read of the whole object on local disk.
    ///
    /// # Errors
    /// As the place has them.
    fn version(&self) -> Result<Version, StoreError>;

    /// Its full place, for messages.
    fn location(&self) -> &str;
}

/// Conveniences of every [`Store`].
pub trait StoreExt: Store {
    /// Writes an object that is at hand in memory.
    ///
    /// # Errors
    /// As [`Store::create`] and [`Upload::publish`].
    fn put(&self, name: &ObjectName, bytes: &[u8]) -> Result<(), StoreError> {
        let mut upload = self.create(name)?;
        upload.write(bytes)?;
        upload.publish()
    }

    /// Reads an object of at most `bytes_max` bytes whole.
    ///
    /// # Errors
    /// As [`Store::open`]; [`StoreError::Damaged`] when it is longer.
    fn get(&self, name: &ObjectName, bytes_max: u64) -> Result<Vec<u8>, StoreError> {
        read_whole(&*self.open(name)?, bytes_max)
    }

    /// Reads a small object and its version; `None` when it is absent. What cannot be read has a version, too, so that it
    /// can be replaced on the condition that it is still the same.
    ///
    /// # Errors
    /// As [`Store::open`] and [`StoredObject::version`], but for absence.
    fn get_versioned(
        &self,
        name: &ObjectName,
        bytes_max: u64,
    ) -> Result<Option<Versioned>, StoreError> {
        let object = match self.open(name) {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        Ok(Some(Versioned {
            version: object.version()?,
            contents: read_whole(&*object, bytes_max),
        }))
    }

    /// Reads `bytes` bytes from `start` on.
    ///
    /// # Errors
    /// As [`StoreExt::get`].
    fn get_range(
        &self,
        name: &ObjectName,
        start: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, StoreError> {
        let mut into = vec![0; bytes];
        self.open(name)?.read_at(start, &mut into)?;
        Ok(into)
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

fn read_whole(object: &dyn StoredObject, bytes_max: u64) -> Result<Vec<u8>, StoreError> {
    let bytes = object.bytes();
    if bytes > bytes_max {
        return Err(StoreError::Damaged {
            location: object.location().to_owned(),
            problem: format!("it has {bytes} bytes; at most {bytes_max} are expected"),
        });
    }
    let mut into = vec![0; bytes as usize];
    object.read_at(0, &mut into)?;
    Ok(into)
}
