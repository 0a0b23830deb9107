//! [`RemoteObject`]: an object in a bucket or on a web server, read in ranges.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::client::{RemoteClient, stamp};
use super::version_of;
use crate::error::StoreError;
use crate::name::ObjectName;
use crate::stamp::Stamp;
use crate::store::{StoredObject, Version};
use crate::waits::RetryLimit;

pub(super) struct RemoteObject {
    pub(super) location: String,
    pub(super) client: Arc<RemoteClient>,
    pub(super) name: ObjectName,
    pub(super) path: Path,
    pub(super) bytes: u64,
    pub(super) stamp: Stamp,
    /// The metadata that the service returned, if it was requested.
    pub(super) meta: Option<ObjectMeta>,
}

/// One response: the received bytes, and the error that ended it early.
struct FetchedRange<B> {
    meta: ObjectMeta,
    chunks: Vec<B>,
    end: Option<object_store::Error>,
}

/// The bytes that one request reads at most.
const REQUEST_BYTES_MAX: usize = 8 << 20;

/// Reads at most a little more than `bytes`, which the caller reports: a service could send without end.
async fn fetch(
    store: Arc<dyn ObjectStore>,
    path: Path,
    options: GetOptions,
    bytes: usize,
    received: Arc<AtomicU64>,
) -> object_store::Result<FetchedRange<impl AsRef<[u8]>>> {
    let got = store.get_opts(&path, options).await?;
    let mut answer = FetchedRange {
        meta: got.meta.clone(),
        chunks: Vec::new(),
        end: None,
    };
    let mut stream = got.into_stream();
    let mut sum = 0;
    while sum <= bytes
        && let Some(chunk) = stream.next().await
    {
        match chunk {
            Ok(chunk) => {
                received.fetch_add(1, Ordering::Relaxed);
                sum += chunk.len();
                answer.chunks.push(chunk);
            }
            Err(error) => {
                answer.end = Some(error);
                break;
            }
        }
    }
    Ok(answer)
}

impl RemoteObject {
    fn damaged(&self, problem: String) -> StoreError {
        StoreError::Damaged {
            location: self.location.clone(),
            problem,
        }
    }

    /// Sends one request for the remaining bytes of `into`; returns the number of bytes received,
    /// and the error if it is incomplete.
    fn read_some(
        &self,
        start: u64,
        into: &mut [u8],
        retries: &mut RetryLimit,
    ) -> (usize, Result<(), StoreError>) {
        let e_tag = self.meta.as_ref().and_then(|meta| meta.e_tag.clone());
        let options = GetOptions {
            // Weak ETags never match.
            if_match: e_tag.filter(|e_tag| !e_tag.starts_with("W/")),
            range: Some(GetRange::Bounded(start..start + into.len() as u64)),
            ..GetOptions::default()
        };
        let reading = Arc::clone(&self.client.reading);
        let received = retries.received();
        let request = fetch(reading, self.path.clone(), options, into.len(), received);
        let name = Some(&self.name);
        let answer = match self.client.run_read("read", name, retries, request) {
            Ok(answer) => answer,
            Err(error) => return (0, Err(error)),
        };
        if stamp(&answer.meta) != self.stamp || answer.meta.size != self.bytes {
            let location = self.location.clone();
            let found = "it was replaced after it was opened";
            return (0, Err(StoreError::Conflict { location, found }));
        }
        let mut filled = 0;
        for chunk in &answer.chunks {
            let chunk = chunk.as_ref();
            let Some(target) = into.get_mut(filled..filled + chunk.len()) else {
                return (
                    0,
                    Err(self.damaged("the service sent more bytes than requested".to_owned())),
                );
            };
            target.copy_from_slice(chunk);
            filled += chunk.len();
        }
        let failure = self.client.failure("read", Some(&self.name));
        let end = match answer.end {
            Some(error) => Err(failure.of(error)),
            None if filled < into.len() => {
                Err(failure.unavailable("the response ended early".to_owned()))
            }
            None => Ok(()),
        };
        (filled, end)
    }
}

impl StoredObject for RemoteObject {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let end = start.saturating_add(into.len() as u64);
        if end > self.bytes {
            return Err(self.damaged(format!(
                "it ends before byte {end}; it has {} bytes",
                self.bytes
            )));
        }
        if into.is_empty() {
            return Ok(());
        }
        let mut filled = 0;
        // In requests that a slow connection finishes within their time limit: a request that does not finish keeps
        // nothing.
        while filled < into.len() {
            let end = into.len().min(filled + REQUEST_BYTES_MAX);
            self.client.with_retries(&mut |retries| {
                let missing = &mut into[filled..end];
                let (received, result) = self.read_some(start + filled as u64, missing, retries);
                filled += received;
                result
            })?;
        }
        Ok(())
    }

    fn stamp(&self) -> Stamp {
        self.stamp
    }

    fn version(&self) -> Result<Version, StoreError> {
        let client = &self.client;
        let meta = match &self.meta {
            Some(meta) => meta.clone(),
            None => client.with_retries(&mut |retries| {
                let (store, path) = (Arc::clone(&client.reading), self.path.clone());
                let request = async move { store.head(&path).await };
                client.run_read("read", Some(&self.name), retries, request)
            })?,
        };
        version_of(client.service, meta.e_tag, meta.version, &self.location)
    }

    fn location(&self) -> &str {
        &self.location
    }
}
