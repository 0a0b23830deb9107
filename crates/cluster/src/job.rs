//! [`JobFolder`]: what a job of several hosts keeps on disk: its description, its authority, its token,
//! and the store that holds its record.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ronde_core::FormatHeader;
use ronde_elastic::{CoordinatorId, JobRecord, Settings};
use ronde_identity::{Authority, JoinToken, Validity};
use ronde_store::{Address, ObjectName, RemoteSettings, Store, StoreExt};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::error::ClusterError;

/// The format of [`JOB_FILE`].
const FORMAT: (&str, u32) = ("ronde.job", 1);
const JOB_FILE: &str = "job.json";
const AUTHORITY_FILE: &str = "authority.pem";
const TOKEN_FILE: &str = "token";
/// Objects of the job's store.
const RECORD: &str = "record.json";
const COORDINATORS: &str = "coordinators";
/// How long the job's authority is good for.
const YEAR: Duration = Duration::from_secs(365 * 86_400);
/// Longest object that is read.
const OBJECT_BYTES_MAX: u64 = 16 << 20;

/// What a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Names the job.
    pub job: String,
    /// Handed to the workers in their assignment, not looked at.
    pub task: String,
    /// How it is kept alive.
    pub settings: Settings,
    /// Program and arguments of a worker; empty: a worker of ronde's own.
    pub command: Vec<String>,
    /// Where the record is kept: a folder, `s3://bucket/prefix` or `az://container/prefix`. `None`: in
    /// the job's folder.
    pub record: Option<String>,
    /// Where the coordinator writes the events; `None`: `events.jsonl` in the job's folder.
    pub events: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct JobFile {
    #[serde(flatten)]
    header: FormatHeader,
    spec: JobSpec,
}

/// A job's folder. Whoever may read it may lead the job.
#[derive(Debug, Clone)]
pub struct JobFolder {
    path: PathBuf,
    spec: JobSpec,
    store: Arc<dyn Store>,
}

impl JobFolder {
    /// Makes the folder of a new job, readable by its owner only, with a new authority and token.
    ///
    /// # Errors
    /// [`ClusterError::Job`] when there is a job already, or the disk does not take it.
    pub fn create(
        path: &Path,
        spec: &JobSpec,
        remote: &RemoteSettings,
    ) -> Result<Self, ClusterError> {
        let failed = |problem: String| job_error(path, problem);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| failed(error.to_string()))?;
        let file = JobFile {
            header: FormatHeader::of(FORMAT),
            spec: spec.clone(),
        };
        let text = serde_json::to_vec(&file).map_err(|error| failed(error.to_string()))?;
        publish(&path.join(JOB_FILE), &text).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => failed("there is a job already".to_owned()),
            _ => failed(error.to_string()),
        })?;
        let folder = Self::open(path, remote)?;
        folder.credentials()?;
        Ok(folder)
    }

    /// The folder of a job that exists.
    ///
    /// # Errors
    /// [`ClusterError::Job`] when it is none, or its store cannot be opened.
    pub fn open(path: &Path, remote: &RemoteSettings) -> Result<Self, ClusterError> {
        let failed = |problem: String| job_error(path, problem);
        let text = std::fs::read(path.join(JOB_FILE)).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => failed(format!("it has no {JOB_FILE}")),
            _ => failed(error.to_string()),
        })?;
        let file: JobFile = serde_json::from_slice(&text)
            .map_err(|error| failed(format!("{JOB_FILE}: {error}")))?;
        file.header.check(FORMAT).map_err(failed)?;
        let address = match &file.spec.record {
            Some(address) => address.parse().map_err(store_error)?,
            None => Address::Folder(path.to_owned()),
        };
        Ok(Self {
            path: path.to_owned(),
            spec: file.spec,
            store: ronde_store::open(&address, remote).map_err(store_error)?,
        })
    }

    /// What the job is.
    #[must_use]
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the events are.
    #[must_use]
    pub fn events(&self) -> PathBuf {
        let inside = || self.path.join("events.jsonl");
        self.spec.events.clone().unwrap_or_else(inside)
    }

    /// The token by which hosts join and commands speak to the coordinator.
    ///
    /// # Errors
    /// [`ClusterError::Job`] when it cannot be read.
    pub fn token(&self) -> Result<JoinToken, ClusterError> {
        let text = self.read(TOKEN_FILE)?;
        text.parse()
            .map_err(|error| job_error(&self.path.join(TOKEN_FILE), format!("{error}")))
    }

    /// Where coordinators of this job listen, or did: the newest first.
    ///
    /// # Errors
    /// [`ClusterError::Store`].
    pub fn coordinators(&self) -> Result<Vec<SocketAddr>, ClusterError> {
        let folder = name(COORDINATORS)?;
        let mut found = Vec::new();
        for entry in self.store.list(Some(&folder)).map_err(store_error)? {
            let text = self.store.get(&entry.name, OBJECT_BYTES_MAX);
            let text = text.ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let parsed = text.and_then(|text| {
                let (since, address) = text.trim().split_once(' ')?;
                Some((since.parse::<u64>().ok()?, address.parse().ok()?))
            });
            found.extend(parsed);
        }
        found.sort_unstable_by(|a: &(u64, SocketAddr), b| b.cmp(a));
        found.dedup_by_key(|(_, address)| *address);
        Ok(found.into_iter().map(|(_, address)| address).collect())
    }

    /// The record as it stands; `None` before the first coordinator.
    ///
    /// # Errors
    /// [`ClusterError::Store`], or [`ClusterError::Job`] when it is damaged.
    pub fn record(&self) -> Result<Option<JobRecord>, ClusterError> {
        let read = crate::keeper::read(&*self.store, &name(RECORD)?)?;
        Ok(read.map(|(_, record)| record))
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn record_name(&self) -> Result<ObjectName, ClusterError> {
        name(RECORD)
    }

    /// Says where this coordinator listens, and forgets others that listened there.
    pub(crate) fn announce(
        &self,
        me: CoordinatorId,
        address: SocketAddr,
    ) -> Result<(), ClusterError> {
        let folder = name(COORDINATORS)?;
        let since = clock::today()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_millis());
        for entry in self.store.list(Some(&folder)).map_err(store_error)? {
            let text = self.store.get(&entry.name, OBJECT_BYTES_MAX);
            let is_mine = text.is_ok_and(|text| text.ends_with(format!(" {address}").as_bytes()));
            if is_mine {
                self.store.delete(&entry.name).map_err(store_error)?;
            }
        }
        let mine = folder.join(&me.0.to_string()).map_err(store_error)?;
        self.store
            .put(&mine, format!("{since} {address}").as_bytes())
            .map_err(store_error)
    }

    /// This coordinator listens no more.
    pub(crate) fn withdraw(&self, me: CoordinatorId) {
        let mine = name(COORDINATORS).and_then(|folder| {
            let mine = folder.join(&me.0.to_string());
            mine.map_err(store_error)
        });
        if let Ok(mine) = mine {
            // One that is left is tried in vain and harms nobody.
            let _ = self.store.delete(&mine);
        }
    }

    /// The authority and the token; made by whoever comes first.
    pub(crate) fn credentials(&self) -> Result<(Authority, JoinToken), ClusterError> {
        let failed = |error| job_error(&self.path.join(AUTHORITY_FILE), format!("{error}"));
        if !self.path.join(AUTHORITY_FILE).exists() {
            let validity = Validity::from_now(clock::today(), YEAR);
            let made = Authority::new(&self.spec.job, validity).map_err(failed)?;
            self.first(AUTHORITY_FILE, made.to_pem().expose())?;
        }
        let text = self.read(AUTHORITY_FILE)?;
        let authority = Authority::from_pem(&self.spec.job, &text).map_err(failed)?;
        if !self.path.join(TOKEN_FILE).exists() {
            let token = authority.join_token().map_err(failed)?;
            self.first(TOKEN_FILE, token.to_text().expose())?;
        }
        Ok((authority, self.token()?))
    }

    /// Writes a secret, unless somebody else did.
    fn first(&self, file: &str, text: &str) -> Result<(), ClusterError> {
        let path = self.path.join(file);
        match publish(&path, text.as_bytes()) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(job_error(&path, error.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn read(&self, file: &str) -> Result<String, ClusterError> {
        let path = self.path.join(file);
        std::fs::read_to_string(&path).map_err(|error| job_error(&path, error.to_string()))
    }
}

/// A new file that only its owner may read: there whole or not at all, and never in place of another.
fn publish(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::hard_link(&unfinished, path)
    };
    let written = write();
    let _ = std::fs::remove_file(&unfinished);
    written
}

fn name(text: &str) -> Result<ObjectName, ClusterError> {
    ObjectName::new(text).map_err(store_error)
}

pub(crate) fn store_error(source: ronde_store::StoreError) -> ClusterError {
    ClusterError::Store {
        source: Box::new(source),
    }
}

pub(crate) fn job_error(path: &Path, problem: String) -> ClusterError {
    ClusterError::Job {
        path: path.to_owned(),
        problem,
    }
}

#[cfg(test)]
mod tests;
