//! [`JobFolder`]: the files of a job that spans several hosts: its description, its certificate
//! authority, its token, and the store with its record.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ronde_core::FormatHeader;
use ronde_identity::{Authority, JoinToken, Validity};
use ronde_protocol::{CoordinatorId, JobRecord, Settings};
use ronde_store::{Address, ObjectName, RemoteSettings, Store, StoreExt};
use serde::{Deserialize, Serialize};

use crate::error::{ClusterError, store_error};

/// The format of [`JOB_FILE`].
const FORMAT: (&str, u32) = ("ronde.job", 1);
const JOB_FILE: &str = "job.json";
const AUTHORITY_FILE: &str = "authority.pem";
const TOKEN_FILE: &str = "token";
/// The name of the job, in a folder of [`JobCredentials`].
const NAME_FILE: &str = "job";
/// The names of objects in the job's store.
const RECORD: &str = "record.json";
const COORDINATORS: &str = "coordinators";
/// The validity of the job's authority.
const YEAR: Duration = Duration::from_secs(365 * 86_400);
/// The maximum size of an object that is read.
const OBJECT_BYTES_MAX: u64 = 16 << 20;

/// The description of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// The job's name.
    pub job: String,
    /// Opaque text passed to the workers in their assignment.
    pub task: String,
    /// Membership settings.
    pub settings: Settings,
    /// Program and arguments of a worker; empty for ronde's own worker.
    pub command: Vec<String>,
    /// Location of the record: a folder, `s3://bucket/prefix` or `az://container/prefix`. `None`:
    /// the job's folder.
    pub record: Option<String>,
    /// The coordinator's event file; `None`: `events.jsonl` in the job's folder.
    pub events: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct JobFile {
    #[serde(flatten)]
    header: FormatHeader,
    spec: JobSpec,
}

/// An authority and a token that were created before the job, so that hosts can have the token before its launcher starts.
#[derive(Clone)]
pub struct JobCredentials {
    job: String,
    authority: String,
    token: String,
}

impl JobCredentials {
    /// Reads the files `job` (the name), `authority.pem` and `token` of a folder.
    ///
    /// # Errors
    /// Returns [`ClusterError::Job`] if a file cannot be read, or if they do not belong together.
    pub fn read(folder: &Path) -> Result<Self, ClusterError> {
        let failed = |path: &Path, problem: String| job_error(path, problem);
        let read = |file: &str| {
            let path = folder.join(file);
            std::fs::read_to_string(&path).map_err(|error| failed(&path, error.to_string()))
        };
        let found = Self {
            job: read(NAME_FILE)?.trim().to_owned(),
            authority: read(AUTHORITY_FILE)?,
            token: read(TOKEN_FILE)?,
        };
        let invalid = |error: ronde_identity::IdentityError| failed(folder, error.to_string());
        let authority = Authority::from_pem(&found.job, &found.authority).map_err(invalid)?;
        let token: JoinToken = found.token.trim().parse().map_err(invalid)?;
        match token.authority() == authority.fingerprint() {
            true => Ok(found),
            false => Err(failed(
                folder,
                "the token belongs to another authority".to_owned(),
            )),
        }
    }

    /// Returns the name of the job.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.job
    }
}

/// A job's folder. Read access to it is sufficient to lead the job.
#[derive(Debug, Clone)]
pub struct JobFolder {
    path: PathBuf,
    spec: JobSpec,
    store: Arc<dyn Store>,
}

impl JobFolder {
    /// Creates the folder of a new job, readable by its owner only, with a new authority and token.
    ///
    /// # Errors
    /// Returns [`ClusterError::Job`] if the folder has a job already or cannot be written.
    pub fn create(
        path: &Path,
        spec: &JobSpec,
        remote: &RemoteSettings,
    ) -> Result<Self, ClusterError> {
        Self::create_with(path, spec, remote, None)
    }

    /// Does the same with an authority and a token that exist already.
    ///
    /// # Errors
    /// As [`JobFolder::create`], or if the credentials are those of another job.
    pub fn create_with(
        path: &Path,
        spec: &JobSpec,
        remote: &RemoteSettings,
        credentials: Option<&JobCredentials>,
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
            std::io::ErrorKind::AlreadyExists => failed("it contains a job already".to_owned()),
            _ => failed(error.to_string()),
        })?;
        let folder = Self::open(path, remote)?;
        if let Some(credentials) = credentials {
            folder.first(AUTHORITY_FILE, &credentials.authority)?;
            folder.first(TOKEN_FILE, credentials.token.trim())?;
        }
        folder.credentials()?;
        Ok(folder)
    }

    /// Opens the folder of an existing job.
    ///
    /// # Errors
    /// Returns [`ClusterError::Job`] if the folder has no job or its store cannot be opened.
    pub fn open(path: &Path, remote: &RemoteSettings) -> Result<Self, ClusterError> {
        let failed = |problem: String| job_error(path, problem);
        let text = std::fs::read(path.join(JOB_FILE)).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => failed(format!("it has no {JOB_FILE}")),
            _ => failed(error.to_string()),
        })?;
        let file: JobFile = serde_json::from_slice(&text)
            .map_err(|error| failed(format!("{JOB_FILE}: {error}")))?;
        let checked = file.header.check(FORMAT);
        checked.map_err(|error| failed(error.to_string()))?;
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

    /// Returns the job's description.
    #[must_use]
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the event file.
    #[must_use]
    pub fn events(&self) -> PathBuf {
        let inside = || self.path.join("events.jsonl");
        self.spec.events.clone().unwrap_or_else(inside)
    }

    /// Returns the token with which hosts join and commands authenticate to the coordinator.
    ///
    /// # Errors
    /// Returns [`ClusterError::Job`] if the token cannot be read.
    pub fn token(&self) -> Result<JoinToken, ClusterError> {
        let text = self.read(TOKEN_FILE)?;
        text.parse()
            .map_err(|error| job_error(&self.path.join(TOKEN_FILE), format!("{error}")))
    }

    /// Returns the addresses at which coordinators of this job listen or listened, the newest
    /// first.
    ///
    /// # Errors
    /// Returns [`ClusterError::Store`].
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

    /// Returns the current record; `None` before the first coordinator.
    ///
    /// # Errors
    /// Returns [`ClusterError::Store`], or [`ClusterError::Job`] if the record is damaged.
    pub fn record(&self) -> Result<Option<JobRecord>, ClusterError> {
        let read = crate::record_writer::read(&*self.store, &name(RECORD)?)?;
        Ok(read.map(|(_, record)| record))
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn record_name(&self) -> Result<ObjectName, ClusterError> {
        name(RECORD)
    }

    /// Publishes this coordinator's address, and removes entries of others with the same address.
    pub(crate) fn announce(
        &self,
        me: CoordinatorId,
        address: SocketAddr,
    ) -> Result<(), ClusterError> {
        let folder = name(COORDINATORS)?;
        let since = ronde_clock::date()
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

    /// Removes this coordinator's address.
    pub(crate) fn withdraw(&self, me: CoordinatorId) {
        let mine = name(COORDINATORS).and_then(|folder| {
            let mine = folder.join(&me.0.to_string());
            mine.map_err(store_error)
        });
        if let Ok(mine) = mine {
            // A leftover entry only costs clients a failed attempt.
            let _ = self.store.delete(&mine);
        }
    }

    /// Returns the authority and the token, which the first caller creates.
    pub(crate) fn credentials(&self) -> Result<(Authority, JoinToken), ClusterError> {
        let failed = |error| job_error(&self.path.join(AUTHORITY_FILE), format!("{error}"));
        if !self.path.join(AUTHORITY_FILE).exists() {
            let validity = Validity::from_now(ronde_clock::date(), YEAR);
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

    /// Writes a secret unless it already exists.
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

/// Atomically creates a file that only its owner may read, without replacing an existing one.
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

pub(crate) fn job_error(path: &Path, problem: String) -> ClusterError {
    ClusterError::Job {
        path: path.to_owned(),
        problem,
    }
}

#[cfg(test)]
mod tests;
