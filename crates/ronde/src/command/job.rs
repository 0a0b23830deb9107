//! Which job a command means: a folder, or the address of a coordinator with a token.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use clap::Args;
use ronde::environment;
use ronde_cluster::{Invitation, JobFolder};
use ronde_identity::JoinToken;

/// Name of a job's folder in the folder of its results.
pub(crate) const JOB_FOLDER: &str = "job";
/// Where runs write their results unless they are told otherwise.
const RUNS: &str = "runs";

/// Which job.
#[derive(Args)]
pub(crate) struct JobArguments {
    /// The folder of the job or of its results, or `ADDRESS:PORT` of its coordinator; without one the
    /// newest job below `runs`.
    #[arg(value_name = "JOB")]
    job: Option<String>,
    #[command(flatten)]
    token: TokenArguments,
}

/// How to show that one belongs to a job.
#[derive(Args)]
pub(crate) struct TokenArguments {
    /// The job's token, for an address: what the file `token` in its folder holds.
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// A file that holds the token, so that it does not show in the list of processes.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenArguments {
    /// The token.
    ///
    /// # Errors
    /// A message: there is none, or the text is none.
    pub(crate) fn read(&self) -> Result<JoinToken, String> {
        let text = match (&self.token, &self.token_file) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) => std::fs::read_to_string(path)
                .map_err(|error| format!("error: {}: {error}", path.display()))?,
            (None, None) => {
                return Err("error: an address needs the job's token\n  \
                     hint: --token-file FILE; the file `token` in the job's folder holds it"
                    .to_owned());
            }
        };
        text.parse().map_err(|error| format!("error: {error}"))
    }
}

/// A job that was found.
pub(crate) struct Found {
    pub(crate) invitation: Invitation,
    pub(crate) folder: Option<JobFolder>,
}

impl JobArguments {
    /// Finds the job.
    ///
    /// # Errors
    /// A message with a hint.
    pub(crate) fn find(&self) -> Result<Found, String> {
        find(self.job.as_deref(), &self.token)
    }
}

/// Finds a job by its folder or address; the newest one without either.
///
/// # Errors
/// A message with a hint.
pub(crate) fn find(job: Option<&str>, token: &TokenArguments) -> Result<Found, String> {
    let Some(job) = job else {
        let newest = newest(Path::new(RUNS)).ok_or_else(|| {
                format!("error: there is no job below {RUNS}\n  hint: name its folder, or the address of its coordinator")
            })?;
        return in_folder(&newest);
    };
    let path = Path::new(job);
    if path.exists() {
        return in_folder(path);
    }
    if !job.contains(':') {
        return Err(format!(
            "error: {job} is no folder and no address\n  hint: an address has a port, as in 10.0.0.1:4711"
        ));
    }
    let invitation = Invitation {
        addresses: addresses(job)?,
        token: token.read()?,
        folder: None,
    };
    Ok(Found {
        invitation,
        folder: None,
    })
}

/// The addresses behind `HOST:PORT`.
///
/// # Errors
/// A message: it is no address, or the name is not known.
pub(crate) fn addresses(text: &str) -> Result<Vec<SocketAddr>, String> {
    let found = text.to_socket_addrs().map(Vec::from_iter);
    found.map_err(|error| format!("error: {text} is not an address like 10.0.0.1:4711: {error}"))
}

/// The folder of a job, which may lie in the one that is named.
pub(crate) fn folder(path: &Path) -> Result<JobFolder, String> {
    let inside = path.join(JOB_FOLDER);
    let path = match inside.is_dir() {
        true => &inside,
        false => path,
    };
    JobFolder::open(path, &environment::store_settings()).map_err(|error| {
        format!("error: {error}\n  hint: a job has a folder when it was started with --listen")
    })
}

fn in_folder(path: &Path) -> Result<Found, String> {
    let folder = folder(path)?;
    let invitation = Invitation::of(&folder).map_err(|error| format!("error: {error}"))?;
    Ok(Found {
        invitation,
        folder: Some(folder),
    })
}

/// The job that was begun last.
fn newest(runs: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(runs).ok()?.flatten();
    let jobs = entries.map(|entry| entry.path().join(JOB_FOLDER));
    let dated = jobs.filter_map(|job| {
        let begun = job.join("job.json").metadata().ok()?.modified().ok()?;
        Some((begun, job))
    });
    dated.max().map(|(_, job)| job)
}
