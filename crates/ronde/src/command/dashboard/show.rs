//! The displays of runs: finds the folder, and serves the page or draws on the terminal.

use std::io::{ErrorKind, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_cluster::StopFlag;
use ronde_dashboard::{AccessToken, DashboardError, RunLibrary, ServerSettings};

use super::{DashboardArguments, TopArguments};
use crate::command::console::{Printable, console, message};
use crate::command::exit;
use crate::command::run_folder::JOB_FOLDER;

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
    let library = match open(arguments.runs.as_deref()) {
        Ok(library) => library,
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
    let library = Arc::new(open(arguments.runs.as_deref())?);
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
            let shown = library.root().display();
            message!("showing {shown}; press Ctrl-C to stop");
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

/// Opens a folder of runs, of one run, or of a job.
fn open(runs: Option<&Path>) -> Result<RunLibrary, String> {
    let folder = runs.map_or_else(|| PathBuf::from(RUNS), Path::to_owned);
    let is_address = !folder.exists()
        && folder
            .to_str()
            .and_then(|text| text.rsplit_once(':'))
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if is_address {
        return Err(format!(
            "error: cannot show `{}`: a coordinator does not send the history of its job\n  help: pass the folder of the run \
             on the host of the coordinator; `ronde status` accepts an address",
            folder.display()
        ));
    }
    // The folder of a job is inside the folder of its run.
    let is_job = folder.join(JOB_FILE).is_file() && folder.ends_with(JOB_FOLDER);
    let folder = match (is_job, folder.parent()) {
        (true, Some(run)) => run.to_owned(),
        _ => folder,
    };
    RunLibrary::open(&folder).map_err(|error| {
        format!("error: {error}\n  help: pass a folder of runs, such as the one that `ronde train` creates")
    })
}
