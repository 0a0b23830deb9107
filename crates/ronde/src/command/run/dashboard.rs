//! `ronde dashboard` and `ronde top`: show the runs of a folder in a browser or in the terminal.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use ronde_cluster::StopFlag;

#[cfg(feature = "full")]
mod job_mirror;
#[cfg(feature = "full")]
mod show;

/// Selects the runs that are shown.
#[derive(Args)]
pub(crate) struct ShownRuns {
    /// Folder of runs or of one run, or `ADDRESS:PORT` of a job's coordinator [default: runs].
    #[arg(value_name = "RUNS")]
    runs: Option<PathBuf>,
    /// File with the join token of the job: the file `token` of its folder.
    #[arg(long, value_name = "FILE")]
    join_token_file: Option<PathBuf>,
}

/// Arguments of `ronde dashboard`.
#[derive(Args)]
pub(crate) struct DashboardArguments {
    #[command(flatten)]
    shown: ShownRuns,
    /// Address of the page; without it, only this host can open it [default: 127.0.0.1:7373].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// File with the token that a browser must send, at least 16 characters [default: a random token].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Arguments of `ronde top`.
#[derive(Args)]
pub(crate) struct TopArguments {
    #[command(flatten)]
    shown: ShownRuns,
}

/// Runs `ronde dashboard`.
#[cfg(feature = "full")]
pub(crate) fn dashboard(arguments: &DashboardArguments, stop: &StopFlag) -> i32 {
    show::dashboard(arguments, stop)
}

/// Runs `ronde top`.
#[cfg(feature = "full")]
pub(crate) fn top(arguments: &TopArguments, stop: &StopFlag) -> i32 {
    show::top(arguments, stop)
}

/// Reports that this build has no dashboard.
#[cfg(not(feature = "full"))]
pub(crate) fn dashboard(_arguments: &DashboardArguments, _stop: &StopFlag) -> i32 {
    missing("dashboard")
}

/// Reports that this build has no `ronde top`.
#[cfg(not(feature = "full"))]
pub(crate) fn top(_arguments: &TopArguments, _stop: &StopFlag) -> i32 {
    missing("top")
}

#[cfg(not(feature = "full"))]
fn missing(command: &str) -> i32 {
    crate::command::console::message!(
        "error: cannot run `ronde {command}`: this program was built without it\n  \
         help: build it with `--features full`"
    );
    crate::command::exit::USER_ERROR
}
