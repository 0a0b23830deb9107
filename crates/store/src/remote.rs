//! [`RemoteStore`]: objects in a bucket of S3 or a container of Azure Blob Storage, behind one I/O thread.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig,
    UpdateVersion,
};

use crate::{
    Address, Condition, Entry, ObjectName, RemoteSettings, Store, StoreError, StoredObject, Upload,
    Version,
};

mod failure;
mod io_thread;
mod upload;

pub use io_thread::IoThread;

use failure::Failure;
use upload::RemoteUpload;

/// Objects in a bucket or container. Every request is bounded by the limit of its [`RemoteSettings`].
///
/// Large objects are uploaded in parts of 16 MiB, four at a time; they appear when the last call completes them. What
/// killed uploads leave is invisible and costs storage: a lifecycle rule of the bucket should remove incomplete uploads.
#[derive(Debug)]
pub struct RemoteStore {
    place: Arc<Place>,
    prefix: Option<ObjectName>,
}

/// What every operation needs.
#[derive(Debug)]
pub(crate) struct Place {
    store: Arc<dyn ObjectStore>,
    io: Arc<IoThread>,
    limit: Duration,
    address: String,
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
        let place = |retries| -> Result<Arc<Place>, StoreError> {
            Ok(Arc::new(Place {
                store: build(address, settings, retries)?,
                io: Arc::clone(&io),
                limit: settings.limit,
                address: address.to_string(),
            }))
        };
        let prefix = match address {
            Address::S3 { prefix, .. } | Address::Azure { prefix, .. } => prefix.clone(),
            Address::Folder(_) => None,
        };
        // Settings do not mend themselves: the first request is hardly repeated.
        Self {
            place: place(settings.retries.min(1))?,
            prefix: prefix.clone(),
        }
        .probe()?;
        Ok(Self {
            place: place(settings.retries)?,
            prefix,
        })
    }

    fn probe(&self) -> Result<(), StoreError> {
        let store = Arc::clone(&self.place.store);
        let prefix = self.prefix.as_ref().map(|p| Path::from(p.as_str()));
        self.place
            .run("connect to", None, async move {
                store.list(prefix.as_ref()).try_next().await
            })
            .map(|_| ())
    }

    fn path(&self, name: &ObjectName) -> Path {
        match &self.prefix {
            Some(prefix) => Path::from(format!("{prefix}/{name}")),
            None => Path::from(name.as_str()),
        }
    }
}

impl Place {
    fn location(&self, name: Option<&ObjectName>) -> String {
        name.map_or_else(
            || self.address.clone(),
            |name| format!("{}/{name}", self.address),
        )
    }

    /// Runs a request on the I/O thread and waits for its answer.
    fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        name: Option<&ObjectName>,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let failure = Failure {
            operation,
            location: self.location(name),
        };
        match self.io.run(self.limit, request) {
            Ok(answer) => answer.map_err(|error| failure.of(error)),
            Err(problem) => Err(failure.passing(problem)),
        }
    }
}

fn build(
    address: &Address,
    settings: &RemoteSettings,
    retries: usize,
) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let failure = Failure {
        operation: "open",
        location: address.to_string(),
    };
    let retry = RetryConfig {
        max_retries: retries,
        retry_timeout: settings.limit,
        ..RetryConfig::default()
    };
    let unknown = |name: &str| failure.settings(format!("{name} is no option of this service"));
    let options = settings.options.iter();
    match address {
        Address::S3 { bucket, .. } => {
            let mut builder = AmazonS3Builder::new();
            for (name, value) in &settings.ambient {
                if let Ok(key) = name.parse::<AmazonS3ConfigKey>() {
                    builder = builder.with_config(key, value);
                }
            }
            for (name, value) in options {
                let key: AmazonS3ConfigKey = name.parse().map_err(|_| unknown(name))?;
                builder = builder.with_config(key, value);
            }
            let built = builder
                .with_bucket_name(bucket)
                .with_retry(retry)
                .with_conditional_put(S3ConditionalPut::ETagMatch)
                .build();
            Ok(Arc::new(built.map_err(|error| failure.of(error))?))
        }
        Address::Azure { container, .. } => {
            let mut builder = MicrosoftAzureBuilder::new();
            for (name, value) in &settings.ambient {
                if let Ok(key) = name.parse::<AzureConfigKey>() {
                    builder = builder.with_config(key, value);
                }
            }
            for (name, value) in options {
                let key: AzureConfigKey = name.parse().map_err(|_| unknown(name))?;
                builder = builder.with_config(key, value);
            }
            let built = builder
                .with_container_name(container)
                .with_retry(retry)
                .build();
            Ok(Arc::new(built.map_err(|error| failure.of(error))?))
        }
        Address::Folder(_) => Err(failure.settings("a folder is no remote store".to_owned())),
    }
}

impl Store for RemoteStore {
    fn create(&self, name: &ObjectName) -> Result<Box<dyn Upload>, StoreError> {
        let upload = RemoteUpload::new(Arc::clone(&self.place), name.clone(), self.path(name));
        Ok(Box::new(upload))
    }

    fn put_if(
        &self,
        name: &ObjectName,
        bytes: &[u8],
        condition: &Condition,
    ) -> Result<Version, StoreError> {
        let mode = match condition {
            Condition::Absent => PutMode::Create,
            Condition::Unchanged(version) => PutMode::Update(UpdateVersion {
                e_tag: Some(version.0.clone()),
                version: None,
            }),
        };
        let (store, path) = (Arc::clone(&self.place.store), self.path(name));
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
            other => version(other?.e_tag, &location),
        }
    }

    fn open(&self, name: &ObjectName) -> Result<Box<dyn StoredObject>, StoreError> {
        let (store, path) = (Arc::clone(&self.place.store), self.path(name));
        let asked = path.clone();
        let head = self
            .place
            .run("read", Some(name), async move { store.head(&asked).await })?;
        Ok(Box::new(RemoteObject {
            location: self.place.location(Some(name)),
            place: Arc::clone(&self.place),
            name: name.clone(),
            path,
            bytes: head.size,
            e_tag: head.e_tag,
        }))
    }

    fn list(&self, folder: Option<&ObjectName>) -> Result<Vec<Entry>, StoreError> {
        let store = Arc::clone(&self.place.store);
        let path = folder
            .map(|folder| self.path(folder))
            .or_else(|| self.prefix.as_ref().map(|p| Path::from(p.as_str())));
        let found = self.place.run("list", folder, async move {
            store.list(path.as_ref()).try_collect::<Vec<_>>().await
        })?;
        let start = self.prefix.as_ref().map_or(0, |p| p.as_str().len() + 1);
        let mut entries: Vec<Entry> = found
            .into_iter()
            .filter_map(|meta| {
                let name = meta.location.as_ref().get(start..)?;
                Some(Entry {
                    name: ObjectName::new(name).ok()?,
                    bytes: meta.size,
                })
            })
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        let (store, path) = (Arc::clone(&self.place.store), self.path(name));
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

fn version(e_tag: Option<String>, location: &str) -> Result<Version, StoreError> {
    e_tag.map(Version).ok_or_else(|| StoreError::Settings {
        operation: "write",
        location: location.to_owned(),
        cause: "the service tells no ETag, so nothing can be written on a condition".to_owned(),
    })
}

struct RemoteObject {
    location: String,
    place: Arc<Place>,
    name: ObjectName,
    path: Path,
    bytes: u64,
    e_tag: Option<String>,
}

impl StoredObject for RemoteObject {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let end = start.saturating_add(into.len() as u64);
        let damaged = |problem| StoreError::Damaged {
            location: self.location.clone(),
            problem,
        };
        if end > self.bytes {
            return Err(damaged(format!(
                "it ends before byte {end}; it has {} bytes",
                self.bytes
            )));
        }
        if into.is_empty() {
            return Ok(());
        }
        let (store, path) = (Arc::clone(&self.place.store), self.path.clone());
        let options = GetOptions {
            if_match: self.e_tag.clone(),
            range: Some(GetRange::Bounded(start..end)),
            ..GetOptions::default()
        };
        let read = self.place.run("read", Some(&self.name), async move {
            store.get_opts(&path, options).await?.bytes().await
        })?;
        if read.len() != into.len() {
            return Err(damaged(format!(
                "{} bytes came where {} were asked for",
                read.len(),
                into.len()
            )));
        }
        into.copy_from_slice(&read);
        Ok(())
    }

    fn version(&self) -> Result<Version, StoreError> {
        version(self.e_tag.clone(), &self.location)
    }

    fn location(&self) -> &str {
        &self.location
    }
}
