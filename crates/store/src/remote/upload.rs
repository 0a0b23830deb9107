//! [`RemoteUpload`]: an upload to a bucket, in one request or in parts.

use std::collections::VecDeque;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt};

use super::client::RemoteClient;
use super::io_thread::PendingResponse;
use crate::error::StoreError;
use crate::name::ObjectName;
use crate::store::Upload;

/// The size of a part in bytes. S3 allows 10,000 parts, so an object may have up to 160 GB.
const PART_BYTES: usize = 16 << 20;
/// The number of parts uploaded at a time.
const PARTS_MAX: usize = 4;

pub(crate) struct RemoteUpload {
    client: Arc<RemoteClient>,
    name: ObjectName,
    path: Path,
    buffer: Vec<u8>,
    parts: Option<Box<dyn MultipartUpload>>,
    under_way: VecDeque<PendingResponse<object_store::Result<()>>>,
}

impl RemoteUpload {
    pub(crate) fn new(client: Arc<RemoteClient>, name: ObjectName, path: Path) -> Self {
        Self {
            client,
            name,
            path,
            buffer: Vec::new(),
            parts: None,
            under_way: VecDeque::new(),
        }
    }

    /// Sends the buffer as a part; waits while the maximum number of parts is being uploaded.
    fn send_part(&mut self) -> Result<(), StoreError> {
        if self.parts.is_none() {
            let (store, path) = (Arc::clone(&self.client.store), self.path.clone());
            let started = self.client.run("write", Some(&self.name), async move {
                store.put_multipart(&path).await
            })?;
            self.parts = Some(started);
        }
        while self.under_way.len() >= PARTS_MAX {
            self.wait_for_one()?;
        }
        let part = std::mem::take(&mut self.buffer);
        if let Some(parts) = &mut self.parts {
            let request = parts.put_part(part.into());
            self.under_way.push_back(self.client.start(request));
        }
        Ok(())
    }

    fn wait_for_one(&mut self) -> Result<(), StoreError> {
        match self.under_way.pop_front() {
            Some(pending) => self.client.wait("write", Some(&self.name), pending),
            None => Ok(()),
        }
    }
}

impl Upload for RemoteUpload {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            if self.buffer.len() == PART_BYTES {
                self.send_part()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(PART_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn publish(mut self: Box<Self>) -> Result<(), StoreError> {
        if self.parts.is_none() {
            let (store, path) = (Arc::clone(&self.client.store), self.path.clone());
            let payload = std::mem::take(&mut self.buffer).into();
            return self
                .client
                .run("write", Some(&self.name), async move {
                    store.put(&path, payload).await
                })
                .map(|_| ());
        }
        self.send_part()?;
        while !self.under_way.is_empty() {
            self.wait_for_one()?;
        }
        let Some(mut parts) = self.parts.take() else {
            return Ok(());
        };
        self.client
            .run(
                "write",
                Some(&self.name),
                async move { parts.complete().await },
            )
            .map(|_| ())
    }
}

impl Drop for RemoteUpload {
    fn drop(&mut self) {
        if let Some(mut parts) = self.parts.take() {
            // Best effort: an incomplete upload is invisible, but costs storage.
            self.client.abandon(async move {
                let _ = parts.abort().await;
            });
        }
    }
}
