//! [`RecordWriter`]: reads and swaps a job's record in a store, on its own thread.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use ronde_core::FormatHeader;
use ronde_protocol::{JobRecord, StoreReply, StoreRequest};
use ronde_store::{Condition, ObjectName, Store, StoreError, StoreExt, Version};
use serde::{Deserialize, Serialize};

use crate::error::{ClusterError, store_error};

const FORMAT: (&str, u32) = ("ronde.record", 1);
const BYTES_MAX: u64 = 16 << 20;

#[derive(Serialize, Deserialize)]
struct StoredRecord {
    #[serde(flatten)]
    header: FormatHeader,
    record: JobRecord,
}

/// The store's answer. After an error, it is unknown whether a change was executed.
pub(crate) type RecordReply = Result<StoreReply, String>;

/// Sends requests to the store, one at a time.
pub(crate) struct RecordWriter(Sender<StoreRequest>);

impl RecordWriter {
    /// Starts the thread, which ends with the writer. `answer` receives each answer.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        name: ObjectName,
        mut answer: impl FnMut(RecordReply) + Send + 'static,
    ) -> Self {
        let (sender, requests): (_, Receiver<StoreRequest>) = channel();
        thread::spawn(move || {
            for request in requests {
                answer(execute(&*store, &name, request).map_err(|error| error.to_string()));
            }
        });
        Self(sender)
    }

    /// Queues a request.
    pub(crate) fn ask(&self, request: StoreRequest) {
        // The thread ends only with this sender.
        let _ = self.0.send(request);
    }
}

/// Reads the record and its version in the store; `None` if there is none.
pub(crate) fn read(
    store: &dyn Store,
    name: &ObjectName,
) -> Result<Option<(Version, JobRecord)>, ClusterError> {
    let Some(found) = store.get_versioned(name, BYTES_MAX).map_err(store_error)? else {
        return Ok(None);
    };
    let bytes = found.contents.map_err(store_error)?;
    let damaged = |problem: String| {
        store_error(StoreError::Damaged {
            location: name.to_string(),
            problem,
        })
    };
    let file: StoredRecord =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    let checked = file.header.check(FORMAT);
    checked.map_err(|error| damaged(error.to_string()))?;
    Ok(Some((found.version, file.record)))
}

/// Encodes a record as it is stored.
pub(crate) fn encode(record: &JobRecord) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&StoredRecord {
        header: FormatHeader::of(FORMAT),
        record: record.clone(),
    })
}

fn execute(
    store: &dyn Store,
    name: &ObjectName,
    request: StoreRequest,
) -> Result<StoreReply, ClusterError> {
    let id = request.id();
    let (condition, mut stored) = match read(store, name)? {
        None => (Condition::Absent, JobRecord::default()),
        Some((version, record)) => (Condition::Unchanged(version), record),
    };
    let StoreRequest::Swap { record, .. } = &request else {
        return Ok(StoreReply { id, record: stored });
    };
    if record.version == stored.version + 1 {
        let bytes = encode(record).map_err(|error| {
            let problem = error.to_string();
            store_error(StoreError::Damaged {
                location: name.to_string(),
                problem,
            })
        })?;
        match store.put_if(name, &bytes, &condition) {
            Ok(_) => return Ok(stored.execute(request)),
            // Another coordinator was faster.
            Err(StoreError::Conflict { .. }) => {
                stored = read(store, name)?.map_or_else(JobRecord::default, |(_, record)| record);
            }
            Err(error) => return Err(store_error(error)),
        }
    }
    Ok(StoreReply { id, record: stored })
}

#[cfg(test)]
mod tests {
    use ronde_protocol::{CoordinatorId, Term};
    use ronde_store::LocalStore;

    use super::*;

    fn swap(version: u64, holder: u64) -> StoreRequest {
        StoreRequest::Swap {
            id: version,
            record: JobRecord {
                version,
                term: Term(version),
                holder: Some(CoordinatorId(holder)),
                ..JobRecord::default()
            },
        }
    }

    #[test]
    fn only_one_of_several_swaps_of_the_same_version_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(LocalStore::new(dir.path()));
        let name = ObjectName::new("record.json").unwrap();
        for version in 1..=5 {
            let threads: Vec<_> = (0..4)
                .map(|holder| {
                    let (store, name) = (store.clone(), name.clone());
                    thread::spawn(move || execute(&*store, &name, swap(version, holder)).unwrap())
                })
                .collect();
            let replies: Vec<StoreReply> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            let stands = read(&*store, &name).unwrap().unwrap().1;
            let done = |holder: &u64| stands.holder == Some(CoordinatorId(*holder));
            assert_eq!((0..4).filter(done).count(), 1);
            for reply in replies {
                assert_eq!(
                    reply.record, stands,
                    "all replies contain the stored record"
                );
            }
        }
    }

    #[test]
    fn a_damaged_record_is_reported_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::new(dir.path());
        let name = ObjectName::new("record.json").unwrap();
        store.put(&name, b"{\"format\":\"ronde.rec").unwrap();
        for request in [StoreRequest::Read { id: 1 }, swap(1, 1)] {
            let error = execute(&store, &name, request).unwrap_err().to_string();
            assert!(error.contains("record.json"), "{error}");
        }
        assert!(read(&store, &name).is_err());
    }
}
