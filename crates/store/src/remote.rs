//! [`RemoteStore`]: objects in a bucket of S3 or Google, in a container of Azure Blob Storage or,
//! for reading, on a web server, behind one I/O thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};

use crate::address::Address;
use crate::error::StoreError;
use crate::listing::object_name;
use crate::listing::{FolderListing, UnusableCause, UnusableEntry};
use crate::name::ObjectName;
use crate::object_entry::ObjectEntry;
use crate::settings::RemoteSettings;
use crate::store::{Condition, Store, StoredObject, Upload, Version};

mod build;
mod client;
mod failure;
mod http_service;
mod io_thread;
mod object;
mod upload;
mod upload_client;

pub use http_service::{HttpLogin, HttpService};
pub use io_thread::IoThread;

use build::Service;
use client::{RemoteClient, stamp};
use object::RemoteObject;
use upload::RemoteUpload;

/// Objects in a bucket or container, or on a web server. Every request is limited as its
/// [`RemoteSettings`] specify; reads are repeated within their retry limit.
///
/// Large objects are uploaded in parts of 16 MiB, four at a time, and become visible when the
/// upload is completed. Killed uploads leave invisible parts that cost storage: configure a
/// lifecycle rule of the bucket that removes incomplete uploads.
#[derive(Debug)]
pub struct RemoteStore {
    client: Arc<RemoteClient>,
}

impl RemoteStore {
    /// Connects to a bucket or container and requests a listing, so that wrong settings are
    /// reported here.
    ///
    /// # Errors
    /// [`StoreError::Settings`] for errors that only other settings can fix: unknown options,
    /// credentials, a missing bucket, an untrusted certificate. [`StoreError::Unavailable`] when the
    /// service cannot be reached.
    pub fn connect(
        address: &Address,
        settings: &RemoteSettings,
        io: Arc<IoThread>,
    ) -> Result<Self, StoreError> {
        let store = Self::unconnected(address, settings, io)?;
        let prefix = store.client.prefix()?;
        store.client.with_retries(&mut |retries| {
            let (reading, prefix) = (Arc::clone(&store.client.reading), prefix.clone());
            let request = async move { reading.list(prefix.as_ref()).try_next().await };
            store.client.run_read("connect to", None, retries, request)
        })?;
        Ok(store)
    }

    /// Does the same as [`RemoteStore::connect`] without sending a request: wrong settings are
    /// reported by the first request.
    ///
    /// # Errors
    /// [`StoreError::Settings`] when the settings do not fit together.
    pub fn unconnected(
        address: &Address,
        settings: &RemoteSettings,
        io: Arc<IoThread>,
    ) -> Result<Self, StoreError> {
        let client = Arc::new(RemoteClient::new(address, settings, io)?);
        Ok(Self { client })
    }

    fn object(
        &self,
        name: &ObjectName,
        entry: &ObjectEntry,
        meta: Option<ObjectMeta>,
    ) -> Result<Box<dyn StoredObject>, StoreError> {
        Ok(Box::new(RemoteObject {
            location: self.client.location(Some(name)),
            client: Arc::clone(&self.client),
            name: name.clone(),
            path: self.client.path(name)?,
            bytes: entry.bytes,
            stamp: entry.stamp,
            meta,
        }))
    }

    /// Lists the objects in a folder.
    fn found(&self, folder: Option<&ObjectName>) -> Result<Vec<ObjectMeta>, StoreError> {
        self.not_on_the_web("list", folder, NO_LISTINGS)?;
        let path = match folder {
            Some(folder) => Some(self.client.path(folder)?),
            None => self.client.prefix()?,
        };
        self.client.with_retries(&mut |retries| {
            let (store, path) = (Arc::clone(&self.client.reading), path.clone());
            let received = retries.received();
            self.client.run_read("list", folder, retries, async move {
                let entries = store.list(path.as_ref()).inspect_ok(|_| {
                    received.fetch_add(1, Ordering::Relaxed);
                });
                entries.try_collect::<Vec<_>>().await
            })
        })
    }

    /// Returns the error of a web server, which supports only reading single files.
    fn not_on_the_web(
        &self,
        operation: &'static str,
        name: Option<&ObjectName>,
        why: &str,
    ) -> Result<(), StoreError> {
        if self.client.service != Service::Web {
            return Ok(());
        }
        Err(self
            .client
            .failure(operation, name)
            .settings(why.to_owned()))
    }
}

const READ_ONLY: &str = "a web server can only be read";
const NO_LISTINGS: &str = "a web server cannot be listed: name the files";

impl Store for RemoteStore {
    fn create(&self, name: &ObjectName) -> Result<Box<dyn Upload>, StoreError> {
        self.not_on_the_web("write", Some(name), READ_ONLY)?;
        let path = self.client.path(name)?;
        let upload = RemoteUpload::new(Arc::clone(&self.client), name.clone(), path);
        Ok(Box::new(upload))
    }

    fn put_if(
        &self,
        name: &ObjectName,
        bytes: &[u8],
        condition: &Condition,
    ) -> Result<Version, StoreError> {
        self.not_on_the_web("write", Some(name), READ_ONLY)?;
        let service = self.client.service;
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
        let (store, path) = (Arc::clone(&self.client.store), self.client.path(name)?);
        let payload = bytes.to_vec().into();
        let put = self.client.run("write", Some(name), async move {
            store.put_opts(&path, payload, PutOptions::from(mode)).await
        });
        let location = self.client.location(Some(name));
        match put {
            // S3 answers so when the object that should be unchanged no longer exists.
            Err(StoreError::NotFound { .. }) => Err(StoreError::Conflict {
                location,
                found: "it no longer exists",
            }),
            other => {
                let put = other?;
                version_of(service, put.e_tag, put.version, &location)
            }
        }
    }

    fn open(&self, name: &ObjectName) -> Result<Box<dyn StoredObject>, StoreError> {
        let path = self.client.path(name)?;
        let head = self.client.with_retries(&mut |retries| {
            let (store, path) = (Arc::clone(&self.client.reading), path.clone());
            let request = async move { store.head(&path).await };
            self.client.run_read("read", Some(name), retries, request)
        })?;
        let entry = ObjectEntry {
            name: name.clone(),
            bytes: head.size,
            stamp: stamp(&head),
        };
        self.object(name, &entry, Some(head))
    }

    fn open_listed(&self, entry: &ObjectEntry) -> Result<Box<dyn StoredObject>, StoreError> {
        self.object(&entry.name, entry, None)
    }

    fn list(&self, folder: Option<&ObjectName>) -> Result<Vec<ObjectEntry>, StoreError> {
        let found = self.found(folder)?;
        let start = self.client.prefix_bytes();
        let mut entries: Vec<ObjectEntry> = found
            .into_iter()
            .filter_map(|meta| {
                let name = meta.location.as_ref().get(start..)?;
                Some(ObjectEntry {
                    name: ObjectName::new(name).ok()?,
                    bytes: meta.size,
                    stamp: stamp(&meta),
                })
            })
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn list_files(
        &self,
        folder: Option<&ObjectName>,
        _enters: &mut dyn FnMut(&str) -> bool,
    ) -> Result<FolderListing, StoreError> {
        let start = self.client.prefix_bytes();
        let listed = folder.map_or(0, |folder| folder.as_str().len() + 1);
        let mut listing = FolderListing::default();
        for meta in self.found(folder)? {
            // An object with the name of the prefix itself is a mark for the folder.
            let Some(name) = meta.location.as_ref().get(start..) else {
                continue;
            };
            if listing.add_hidden(name, listed) {
                continue;
            }
            let location = || format!("{}/{name}", self.client.location(None));
            match object_name(name, &location()) {
                Ok(name) => listing.entries.push(ObjectEntry {
                    name,
                    bytes: meta.size,
                    stamp: stamp(&meta),
                }),
                Err(error) => listing.unusable.push(UnusableEntry {
                    name: name.to_owned(),
                    cause: UnusableCause::File(error),
                }),
            }
        }
        listing.sort();
        Ok(listing)
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.not_on_the_web("delete", Some(name), READ_ONLY)?;
        let (store, path) = (Arc::clone(&self.client.store), self.client.path(name)?);
        let deleted = self.client.run(
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
    let version = match service {
        Service::Google => version,
        Service::Blobs | Service::Web => e_tag,
    };
    version.map(Version).ok_or_else(|| StoreError::Settings {
        operation: "write",
        location: location.to_owned(),
        cause: "the service returns no object version, which conditional writes need".to_owned(),
    })
}
