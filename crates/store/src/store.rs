//! [`Store`]: the interface to object storage, and its convenience methods in [`StoreExt`].

use std::fmt;
use std::ops::Range;

use crate::error::StoreError;
use crate::listing::FolderListing;
use crate::name::ObjectName;
use crate::object_entry::ObjectEntry;
use crate::stamp::Stamp;

/// The identifier of an object's contents for a conditional put; equal contents may have equal
/// versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub(crate) String);

/// The condition of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The object does not exist.
    Absent,
    /// The object still has this version.
    Unchanged(Version),
}

/// A small object and its version.
#[derive(Debug)]
pub struct VersionedObject {
    /// The version, for a conditional put.
    pub version: Version,
    /// The contents, or the error of reading them.
    pub contents: Result<Vec<u8>, StoreError>,
}

/// Storage of objects by name. An object is visible completely or not at all, to every reader at
/// any time.
///
/// Calls block; the implementation limits for how long. May be used from several threads.
pub trait Store: Send + Sync + fmt::Debug {
    /// Starts to write an object. It becomes visible when [`Upload::publish`] returns; dropping the
    /// upload leaves nothing. An existing object of this name is replaced.
    ///
    /// # Errors
    /// Errors of the storage.
    fn create(&self, name: &ObjectName) -> Result<Box<dyn Upload>, StoreError>;

    /// Writes a small object if `condition` holds at that moment, and returns its version.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the condition does not hold; otherwise errors of the storage.
    fn put_if(
        &self,
        name: &ObjectName,
        bytes: &[u8],
        condition: &Condition,
    ) -> Result<Version, StoreError>;

    /// Opens an object for reading. Later writes do not change the bytes read; a reader of a remote
    /// store gets [`StoreError::Conflict`] instead.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; otherwise errors of the storage.
    fn open(&self, name: &ObjectName) -> Result<Box<dyn StoredObject>, StoreError>;

    /// Opens an object of a listing. No request is sent to a remote store: a change since the
    /// listing is reported when the object is read.
    ///
    /// # Errors
    /// As [`Store::open`]; [`StoreError::Conflict`] when it was replaced.
    fn open_listed(&self, entry: &ObjectEntry) -> Result<Box<dyn StoredObject>, StoreError> {
        let object = self.open(&entry.name)?;
        if object.stamp() != entry.stamp || object.bytes() != entry.bytes {
            return Err(StoreError::Conflict {
                location: object.location().to_owned(),
                found: "it was replaced after it was listed",
            });
        }
        Ok(object)
    }

    /// Lists all objects inside `folder` (of the whole store for `None`), sorted by name.
    ///
    /// # Errors
    /// Errors of the storage; a missing folder counts as empty.
    fn list(&self, folder: Option<&ObjectName>) -> Result<Vec<ObjectEntry>, StoreError>;

    /// Lists a user's folder: all files inside `folder`, and also entries that are not a readable file or
    /// have no object name. On a disk, enters only the folders for which `enters` returns true; it
    /// gets their names within the store.
    ///
    /// # Errors
    /// As [`Store::list`].
    fn list_files(
        &self,
        folder: Option<&ObjectName>,
        enters: &mut dyn FnMut(&str) -> bool,
    ) -> Result<FolderListing, StoreError> {
        let _ = enters;
        Ok(FolderListing {
            entries: self.list(folder)?,
            ..FolderListing::default()
        })
    }

    /// Removes an object; a missing object is not an error.
    ///
    /// # Errors
    /// Errors of the storage.
    fn delete(&self, name: &ObjectName) -> Result<(), StoreError>;

    /// Removes leftovers of killed writers, which listings do not show; returns their number.
    ///
    /// # Errors
    /// Errors of the storage.
    fn sweep(&self) -> Result<u64, StoreError>;
}

/// An object that is being written.
pub trait Upload: Send {
    /// Appends bytes.
    ///
    /// # Errors
    /// Errors of the storage; the upload cannot be used afterwards.
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError>;

    /// Makes the object durable and visible under its name.
    ///
    /// # Errors
    /// Errors of the storage; the object is not visible then.
    fn publish(self: Box<Self>) -> Result<(), StoreError>;
}

/// An object that is open for reading.
pub trait StoredObject: Send + Sync {
    /// Returns its length in bytes.
    fn bytes(&self) -> u64;

    /// Announces that these byte ranges will be read soon. This is a hint, which implementations
    /// may ignore.
    fn prefetch(&self, _ranges: &[Range<u64>]) {}

    /// Fills `into` with the bytes from `start` on.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the object is too short; otherwise errors of the storage.
    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<(), StoreError>;

    /// Returns an identifier that changes whenever the object is replaced, at no cost: the cache
    /// key of data derived from it.
    fn stamp(&self) -> Stamp;

    /// Returns its version, for a conditional put. Reads the whole object on local disk.
    ///
    /// # Errors
    /// Errors of the storage.
    fn version(&self) -> Result<Version, StoreError>;

    /// Returns its full location, for messages.
    fn location(&self) -> &str;
}

/// Convenience methods of every [`Store`].
pub trait StoreExt: Store {
    /// Writes an object from memory.
    ///
    /// # Errors
    /// As [`Store::create`] and [`Upload::publish`].
    fn put(&self, name: &ObjectName, bytes: &[u8]) -> Result<(), StoreError> {
        let mut upload = self.create(name)?;
        upload.write(bytes)?;
        upload.publish()
    }

    /// Reads a whole object of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// As [`Store::open`]; [`StoreError::Damaged`] when it is longer.
    fn get(&self, name: &ObjectName, bytes_max: u64) -> Result<Vec<u8>, StoreError> {
        read_whole(&*self.open(name)?, bytes_max)
    }

    /// Reads a small object and its version; `None` when it does not exist. An object that cannot
    /// be read has a version too, so that it can be replaced if it is unchanged.
    ///
    /// # Errors
    /// As [`Store::open`] and [`StoredObject::version`], except for a missing object.
    fn get_versioned(
        &self,
        name: &ObjectName,
        bytes_max: u64,
    ) -> Result<Option<VersionedObject>, StoreError> {
        let object = match self.open(name) {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        Ok(Some(VersionedObject {
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
            problem: format!("it has {bytes} bytes; expected at most {bytes_max}"),
        });
    }
    let mut into = vec![0; bytes as usize];
    object.read_at(0, &mut into)?;
    Ok(into)
}
