//! The displays of runs: finds the folder, and serves the page or draws on the terminal.

use std::io::{ErrorKind, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_cluster::StopFlag;
use ronde_dashboard::{DashboardError, RunLibrary, ServerSettings};
use ronde_identity::AccessToken;

use super::job_mirror::JobMirror;
use super::{DashboardArguments, ShownRuns, TopArguments};
use crate::command::console::{Printable, console, message};
use crate::command::exit;
use crate::command::run::run_folder::JOB_FOLDER;

/// Default folder of runs.
const RUNS: &str = "runs";
/// Default port of the page.
const PORT: u16 = 7373;
/// File that only the folder of a job has.
const JOB_FILE: &str = "job.json";

/// Serves the page until the command is asked to stop.
pub(super) fn dashboard(arguments: &DashboardArguments, stop: &StopFlag) -> i32 {
    match serve(arguments, stop) {
        Ok(()) => exit::DONE,
        Err(message) => {
            message!("{message}");
            exit::USER_ERROR
        }
    }
}

/// Draws on the terminal until the user or a signal ends it; prints lines where there is no terminal.
pub(super) fn top(arguments: &TopArguments, stop: &StopFlag) -> i32 {
    let (library, _mirror) = match open(&arguments.shown) {
        Ok(opened) => opened,
        Err(message) => {
            message!("{message}");
            return exit::USER_ERROR;
        }
    };
    let is_stopping = || stop.signal() != 0;
    let draws =
        console().redraws && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let shown = match draws {
        true => ronde_dashboard::show(&library, console().colour, &is_stopping),
        false => {
            let mut output = Printable(std::io::stdout());
            ronde_dashboard::print_lines(&library, &mut output, &is_stopping)
        }
    };
    match shown {
        Ok(()) => exit::DONE,
        Err(error) => {
            message!("error: {error}");
            exit::GAVE_UP
        }
    }
}

fn serve(arguments: &DashboardArguments, stop: &StopFlag) -> Result<(), String> {
    let (library, _mirror) = open(&arguments.shown)?;
    let library = Arc::new(library);
    let default = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    let listen = arguments.listen.unwrap_or(default);
    if !listen.ip().is_loopback() {
        message!(
            "warning: other hosts can reach the page at {listen}, and its connections are not encrypted; \
             `ssh -L {PORT}:127.0.0.1:{PORT} HOST` is a safe alternative"
        );
    }
    let run = |listen| {
        let settings = ServerSettings {
            listen,
            token: token(arguments)?,
        };
        let ready = |_, url: &str| {
            message!("showing {}; press Ctrl-C to stop", library.label());
            // The reader may have closed the pipe.
            let _ = writeln!(std::io::stdout(), "{url}");
        };
        let served =
            ronde_dashboard::serve(Arc::clone(&library), settings, ready, || stop.signal() != 0);
        Ok::<_, String>(served)
    };
    let served = match run(listen)? {
        Err(DashboardError::Listen { cause, .. })
            if cause.kind() == ErrorKind::AddrInUse && arguments.listen.is_none() =>
        {
            run(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?
        }
        served => served,
    };
    served.map_err(|error| {
        format!("error: {error}\n  help: choose another address, such as `--listen 127.0.0.1:0`")
    })
}

fn token(arguments: &DashboardArguments) -> Result<AccessToken, String> {
    let token = match &arguments.token_file {
        None => AccessToken::random(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                format!("error: cannot read token file {}: {error}", path.display())
            })?;
            AccessToken::parse(&text)
        }
    };
    token.map_err(|error| {
        format!("error: {error}\n  help: `openssl rand -hex 16 > FILE` writes a good one")
    })
}

/// Opens a folder of runs, of one run or of a job, or the job at an address. The mirror must outlive the library.
fn open(shown: &ShownRuns) -> Result<(RunLibrary, Option<JobMirror>), String> {
    let folder = shown.runs.clone().unwrap_or_else(|| PathBuf::from(RUNS));
    if let Some(address) = address(&folder) {
        let mirror = JobMirror::start(address, shown.join_token_file.as_deref())?;
        let library = library(mirror.runs())?.labelled(format!("the job at {address}"));
        return Ok((library, Some(mirror)));
    }
    if shown.join_token_file.is_some() {
        return Err(format!(
            "error: `--join-token-file` needs the address of a coordinator, but {} is a folder\n  \
             help: pass `ADDRESS:PORT`, or leave the token out",
            folder.display()
        ));
    }
    // The folder of a job is inside the folder of its run.
    let is_job = folder.join(JOB_FILE).is_file() && folder.ends_with(JOB_FOLDER);
    let folder = match (is_job, folder.parent()) {
        (true, Some(run)) => run.to_owned(),
        _ => folder,
    };
    Ok((library(&folder)?, None))
}

/// Returns the address that stands in place of a folder.
fn address(folder: &Path) -> Option<&str> {
    let text = folder.to_str().filter(|_| !folder.exists())?;
    let (_, port) = text.rsplit_once(':')?;
    port.parse::<u16>().is_ok().then_some(text)
}

fn library(folder: &Path) -> Result<RunLibrary, String> {
    RunLibrary::open(folder).map_err(|error| {
        format!("error: {error}\n  help: pass a folder of runs, such as the one that `ronde train` creates")
    })
}
