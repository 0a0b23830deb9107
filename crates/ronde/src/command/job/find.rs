//! Finds the job of a command: by folder, or by a coordinator's address and a token.

use std::path::{Path, PathBuf};

use clap::Args;
use ronde::environment;
use ronde_cluster::{ClusterError, Invitation, JobFolder, PeerAddress};
use ronde_identity::JoinToken;

use crate::command::job::submitted::SubmittedJobs;
use crate::command::run::run_folder::{EVENT_FILE, JOB_FOLDER, RUNS};

/// File that only the folder of a job has.
const JOB_FILE: &str = "job.json";
/// The name of standard input in place of a file.
const STANDARD_INPUT: &str = "-";

/// Selects a job.
#[derive(Args)]
pub(crate) struct JobArguments {
    /// Folder of a run or job, name of a submitted job, or `ADDRESS:PORT` of a job's coordinator [default: the newest run
    /// in `runs`].
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
    #[command(flatten)]
    token: TokenArguments,
}

/// The join token of a job.
#[derive(Args)]
pub(crate) struct TokenArguments {
    /// File with the join token of the job, such as the file `token` in its folder; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenArguments {
    /// Reads the token.
    ///
    /// # Errors
    /// A message: the token is missing or invalid.
    pub(crate) fn read(&self) -> Result<JoinToken, String> {
        match &self.token_file {
            Some(path) if path == Path::new(STANDARD_INPUT) => {
                let text = std::io::read_to_string(std::io::stdin().lock());
                parse_token(text, STANDARD_INPUT)
            }
            Some(path) => read_token(path),
            None => Err("error: a coordinator's address requires the job's token\n  \
                 help: pass `--token-file FILE`; the token is in the file `token` of the job's folder"
                .to_owned()),
        }
    }
}

/// Reads a join token from a file.
///
/// # Errors
/// A message: the file cannot be read, or is not a token.
pub(crate) fn read_token(path: &Path) -> Result<JoinToken, String> {
    parse_token(std::fs::read_to_string(path), &path.display().to_string())
}

fn parse_token(text: std::io::Result<String>, name: &str) -> Result<JoinToken, String> {
    let text = text.map_err(|error| format!("error: cannot read token file {name}: {error}"))?;
    text.parse().map_err(|error| format!("error: {error}"))
}

/// Returns the folder of the newest run.
pub(crate) fn newest_run() -> Option<PathBuf> {
    newest(Path::new(RUNS), Path::new(EVENT_FILE))
}

/// A job that was found by folder or address.
pub(crate) struct ResolvedJob {
    pub(crate) invitation: Invitation,
    pub(crate) folder: Option<JobFolder>,
}

impl JobArguments {
    /// Returns the folder of the run that the argument refers to, unless it is an open job.
    pub(crate) fn plain_run(&self) -> Option<PathBuf> {
        let folder = match &self.job {
            Some(job) => PathBuf::from(job),
            None => newest_run()?,
        };
        let is_plain = folder.join(EVENT_FILE).is_file()
            && !folder.join(JOB_FOLDER).is_dir()
            && !folder.join(JOB_FILE).is_file();
        is_plain.then_some(folder)
    }

    /// Finds the job.
    ///
    /// # Errors
    /// A message with a help line.
    pub(crate) fn find(&self) -> Result<ResolvedJob, String> {
        find(self.job.as_deref(), &self.token)
    }
}

/// Finds a job by its folder or address, or the newest job without either.
///
/// # Errors
/// A message with a help line.
pub(crate) fn find(job: Option<&str>, token: &TokenArguments) -> Result<ResolvedJob, String> {
    let Some(job) = job else {
        let newest = newest(Path::new(RUNS), &Path::new(JOB_FOLDER).join(JOB_FILE)).ok_or_else(|| {
                format!("error: no run or open job in {RUNS}\n  help: pass the folder of a job, or the address of its coordinator")
            })?;
        return in_folder(&newest);
    };
    let path = Path::new(job);
    if path.exists() {
        return in_folder(path);
    }
    if !job.contains(':') {
        return Err(not_found(job));
    }
    let invitation = Invitation {
        addresses: vec![address(job)?],
        token: token.read()?,
        folder: None,
    };
    Ok(ResolvedJob {
        invitation,
        folder: None,
    })
}

/// Returns the message for a text that is neither the name of a job, nor a folder, nor an address.
fn not_found(job: &str) -> String {
    let port = "a coordinator's address includes its port, such as 10.0.0.1:4711";
    match SubmittedJobs::open() {
        Ok(jobs) if !job.contains('/') => format!(
            "error: there is no job and no folder `{}`\n  help: {}; {port}",
            job.escape_debug(),
            jobs.registry.suggestion(job)
        ),
        _ => format!("error: no such folder: {job}\n  help: {port}"),
    }
}

/// Parses `HOST:PORT`.
///
/// # Errors
/// A message: the text is not a valid address.
pub(crate) fn address(text: &str) -> Result<PeerAddress, String> {
    text.parse()
        .map_err(|error: ClusterError| format!("error: {error}"))
}

/// Opens the folder of a job, or the job folder inside a run's output folder.
pub(crate) fn folder(path: &Path) -> Result<JobFolder, String> {
    let inside = path.join(JOB_FOLDER);
    let path = match inside.is_dir() {
        true => &inside,
        false => path,
    };
    JobFolder::open(path, &environment::store_settings()).map_err(|error| {
        format!("error: {error}\n  help: only jobs started with --listen have a job folder")
    })
}

fn in_folder(path: &Path) -> Result<ResolvedJob, String> {
    let folder = folder(path)?;
    let invitation = Invitation::of(&folder).map_err(|error| format!("error: {error}"))?;
    Ok(ResolvedJob {
        invitation,
        folder: Some(folder),
    })
}

/// Returns the folder in `runs` whose `file` was modified last.
fn newest(runs: &Path, file: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(runs).ok()?.flatten();
    let dated = entries.filter_map(|entry| {
        let modified = entry.path().join(file).metadata().ok()?.modified().ok()?;
        Some((modified, entry.path()))
    });
    dated.max().map(|(_, folder)| folder)
}
