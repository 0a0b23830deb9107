//! [`RemoteObject`]: an object in a bucket or on a web server, read in ranges.

use std::sync::Arc;

use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::place::{Place, stamp};
use super::version_of;
use crate::{ObjectName, Stamp, StoreError, StoredObject, Version};

pub(super) struct RemoteObject {
    pub(super) location: String,
    pub(super) place: Arc<Place>,
    pub(super) name: ObjectName,
    pub(super) path: Path,
    pub(super) bytes: u64,
    pub(super) stamp: Stamp,
    /// What the service said, if it was asked.
    pub(super) meta: Option<ObjectMeta>,
}

/// One answer: what came of it, and what ended it early.
struct Answer<B> {
    meta: ObjectMeta,
    pieces: Vec<B>,
    end: Option<object_store::Error>,
}

async fn ask(
    store: Arc<dyn ObjectStore>,
    path: Path,
    options: GetOptions,
) -> object_store::Result<Answer<impl AsRef<[u8]>>> {
    let got = store.get_opts(&path, options).await?;
    let mut answer = Answer {
        meta: got.meta.clone(),
        pieces: Vec::new(),
        end: None,
    };
    let mut stream = got.into_stream();
    while let Some(piece) = stream.next().await {
        match piece {
            Ok(piece) => answer.pieces.push(piece),
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

    /// Asks once for the rest of `into`, and tells how many bytes came, and whether that was all.
    fn read_some(&self, start: u64, into: &mut [u8]) -> (usize, Result<(), StoreError>) {
        let e_tag = self.meta.as_ref().and_then(|meta| meta.e_tag.clone());
        let options = GetOptions {
            // Weak ones never match.
            if_match: e_tag.filter(|e_tag| !e_tag.starts_with("W/")),
            range: Some(GetRange::Bounded(start..start + into.len() as u64)),
            ..GetOptions::default()
        };
        let request = ask(Arc::clone(&self.place.reading), self.path.clone(), options);
        let answer = match self.place.run("read", Some(&self.name), request) {
            Ok(answer) => answer,
            Err(error) => return (0, Err(error)),
        };
        if stamp(&answer.meta) != self.stamp || answer.meta.size != self.bytes {
            let location = self.location.clone();
            let found = "it was replaced after it was opened";
            return (0, Err(StoreError::Conflict { location, found }));
        }
        let mut filled = 0;
        for piece in &answer.pieces {
            let piece = piece.as_ref();
            let Some(place) = into.get_mut(filled..filled + piece.len()) else {
                return (
                    0,
                    Err(self.damaged("more bytes came than were asked for".to_owned())),
                );
            };
            place.copy_from_slice(piece);
            filled += piece.len();
        }
        let failure = self.place.failure("read", Some(&self.name));
        let end = match answer.end {
            Some(error) => Err(failure.of(error)),
            None if filled < into.len() => {
                Err(failure.passing("the answer ended early".to_owned()))
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
        self.place.patiently(&mut |patience| {
            let (came, end) = self.read_some(start + filled as u64, &mut into[filled..]);
            if came > 0 {
                filled += came;
                patience.renew();
            }
            end
        })
    }

    fn stamp(&self) -> Stamp {
        self.stamp
    }

    fn version(&self) -> Result<Version, StoreError> {
        let place = &self.place;
        let asked = match &self.meta {
            Some(meta) => meta.clone(),
            None => place.patiently(&mut |_| {
                let (store, path) = (Arc::clone(&place.reading), self.path.clone());
                place.run(
                    "read",
                    Some(&self.name),
                    async move { store.head(&path).await },
                )
            })?,
        };
        version_of(place.service, asked.e_tag, asked.version, &self.location)
    }

    fn location(&self) -> &str {
        &self.location
    }
}
