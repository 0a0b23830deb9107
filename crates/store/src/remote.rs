//! [`RemoteStore`]: objects in a bucket of S3 or Google, a container of Azure Blob Storage or, for reading, on a web
//! server, behind one I/O thread.

use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};

use crate::{
    Address, Condition, Entry, ObjectName, RemoteSettings, Store, StoreError, StoredObject, Upload,
    Version,
};

mod build;
mod failure;
mod io_thread;
mod object;
mod place;
mod upload;

pub use io_thread::IoThread;

use build::Service;
use object::RemoteObject;
use place::{Place, stamp};
use upload::RemoteUpload;

/// Objects in a bucket or container, or on a web server. Every request is bounded by the limit of its [`RemoteSettings`];
/// reading is repeated as long as their patience lasts.
///
/// Large objects are uploaded in parts of 16 MiB, four at a time; they appear when the last call completes them. What
/// killed uploads leave is invisible and costs storage: a lifecycle rule of the bucket should remove incomplete uploads.
#[derive(Debug)]
pub struct RemoteStore {
    place: Arc<Place>,
}

impl RemoteStore {
    /// Connects to a bucket or container and asks for a listing, so that wrong settings are told here.
    ///
    /// # Errors
    /// [`StoreError::Settings`] for what only other settings can mend: unknown options, credentials, a bucket that is
    /// not there, a certificate that is not trusted. [`StoreError::Passing`] when the service cannot be reached.
    pub fn connect(
        address: &Address,
        settings: &RemoteSettings,
        io: Arc<IoThread>,
    ) -> Result<Self, StoreError> {
        let store = Self::unasked(address, settings, io)?;
        let prefix = store.place.prefix()?;
        store.place.patiently(&mut |_| {
            let (reading, prefix) = (Arc::clone(&store.place.reading), prefix.clone());
            store.place.run("connect to", None, async move {
                reading.list(prefix.as_ref()).try_next().await
            })
        })?;
        Ok(store)
    }

    /// As [`RemoteStore::connect`], but asks for nothing: wrong settings are told by the first request.
    ///
    /// # Errors
    /// [`StoreError::Settings`] when the settings do not fit together.
    pub fn unasked(
        address: &Address,
        settings: &RemoteSettings,
        io: Arc<IoThread>,
    ) -> Result<Self, StoreError> {
        let place = Arc::new(Place::new(address, settings, io)?);
        Ok(Self { place })
    }

    fn object(
        &self,
        name: &ObjectName,
        entry: &Entry,
        meta: Option<ObjectMeta>,
    ) -> Result<Box<dyn StoredObject>, StoreError> {
        Ok(Box::new(RemoteObject {
            location: self.place.location(Some(name)),
            place: Arc::clone(&self.place),
            name: name.clone(),
            path: self.place.path(name)?,
            bytes: entry.bytes,
            stamp: entry.stamp,
            meta,
        }))
    }

    /// Says why not where there is nothing but reading single files.
    fn not_on_the_web(
        &self,
        operation: &'static str,
        name: Option<&ObjectName>,
        why: &str,
    ) -> Result<(), StoreError> {
        if self.place.service != Service::Web {
            return Ok(());
        }
        Err(self.place.failure(operation, name).settings(why.to_owned()))
    }
}

const READ_ONLY: &str = "a web server is for reading only";
const NO_LISTINGS: &str = "a web server has no listings: name the files";

impl Store for RemoteStore {
    fn create(&self, name: &ObjectName) -> Result<Box<dyn Upload>, StoreError> {
        self.not_on_the_web("write", Some(name), READ_ONLY)?;
        let path = self.place.path(name)?;
        let upload = RemoteUpload::new(Arc::clone(&self.place), name.clone(), path);
        Ok(Box::new(upload))
    }

    fn put_if(
        &self,
        name: &ObjectName,
        bytes: &[u8],
        condition: &Condition,
    ) -> Result<Version, StoreError> {
        self.not_on_the_web("write", Some(name), READ_ONLY)?;
        let service = self.place.service;
        let mode = match condition {
            Condition::Absent => PutMode::Create,
            Condition::Unchanged(version) => {
                let is_google = service == Service::Google;
                let text = || Some(version.0.clone());
                PutMode::Update(UpdateVersion {
                    e_tag: text().filter(|_| !is_google),
                    version: text().filter(|_| is_google),
                })
            }
        };
        let (store, path) = (Arc::clone(&self.place.store), self.place.path(name)?);
        let payload = bytes.to_vec().into();
        let put = self.place.run("write", Some(name), async move {
            store.put_opts(&path, payload, PutOptions::from(mode)).await
        });
        let location = self.place.location(Some(name));
        match put {
            // S3 says so when the object that should be unchanged is gone.
            Err(StoreError::NotFound { .. }) => Err(StoreError::Conflict {
                location,
                found: "it is gone",
            }),
            other => {
                let put = other?;
                version_of(service, put.e_tag, put.version, &location)
            }
        }
    }

    fn open(&self, name: &ObjectName) -> Result<Box<dyn StoredObject>, StoreError> {
        let path = self.place.path(name)?;
        let head = self.place.patiently(&mut |_| {
            let (store, path) = (Arc::clone(&self.place.reading), path.clone());
            self.place
                .run("read", Some(name), async move { store.head(&path).await })
        })?;
        let entry = Entry {
            name: name.clone(),
            bytes: head.size,
            stamp: stamp(&head),
        };
        self.object(name, &entry, Some(head))
    }

    fn open_listed(&self, entry: &Entry) -> Result<Box<dyn StoredObject>, StoreError> {
        self.object(&entry.name, entry, None)
    }

    fn list(&self, folder: Option<&ObjectName>) -> Result<Vec<Entry>, StoreError> {
        self.not_on_the_web("list", folder, NO_LISTINGS)?;
        let path = match folder {
            Some(folder) => Some(self.place.path(folder)?),
            None => self.place.prefix()?,
        };
        let found = self.place.patiently(&mut |_| {
            let (store, path) = (Arc::clone(&self.place.reading), path.clone());
            self.place.run("list", folder, async move {
                store.list(path.as_ref()).try_collect::<Vec<_>>().await
            })
        })?;
        let start = self.place.prefix_bytes();
        let mut entries: Vec<Entry> = found
            .into_iter()
            .filter_map(|meta| {
                let name = meta.location.as_ref().get(start..)?;
                Some(Entry {
                    name: ObjectName::new(name).ok()?,
                    bytes: meta.size,
                    stamp: stamp(&meta),
                })
            })
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.not_on_the_web("delete", Some(name), READ_ONLY)?;
        let (store, path) = (Arc::clone(&self.place.store), self.place.path(name)?);
        let deleted = self.place.run(
            "delete",
            Some(name),
            async move { store.delete(&path).await },
        );
        match deleted {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    }

    fn sweep(&self) -> Result<u64, StoreError> {
        Ok(0)
    }
}

fn version_of(
    service: Service,
    e_tag: Option<String>,
    version: Option<String>,
    location: &str,
) -> Result<Version, StoreError> {
    let told = match service {
        Service::Google => version,
        Service::Blobs | Service::Web => e_tag,
    };
    told.map(Version).ok_or_else(|| StoreError::Settings {
        operation: "write",
        location: location.to_owned(),
        cause: "the service tells no version, so nothing can be written on a condition".to_owned(),
    })
}
