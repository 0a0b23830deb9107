//! `ronde scale`: another count of workers for a job that runs.

use std::time::Duration;

use clap::Args;

use super::exit;
use super::job::{TokenArguments, find};

/// How long a coordinator may take to answer; one that was just started takes the lease first.
const LIMIT: Duration = Duration::from_secs(10);

/// Arguments of `ronde scale`.
#[derive(Args)]
pub(crate) struct ScaleArguments {
    /// The folder of the job or of its results, or `ADDRESS:PORT` of its coordinator.
    job: String,
    /// Workers that the job should have; between `elastic.min_workers` and `elastic.max_workers`.
    #[arg(value_name = "N")]
    workers: u32,
    #[command(flatten)]
    token: TokenArguments,
}

pub(crate) fn scale(arguments: &ScaleArguments) -> i32 {
    let found = match find(Some(&arguments.job), &arguments.token) {
        Ok(found) => found,
        Err(message) => {
            eprintln!("{message}");
            return exit::USER_ERROR;
        }
    };
    match ronde_cluster::scale(&found.invitation, arguments.workers, LIMIT) {
        Ok(note) => {
            eprintln!("{note}");
            exit::DONE
        }
        Err(error) => super::job_failure(&error),
    }
}
