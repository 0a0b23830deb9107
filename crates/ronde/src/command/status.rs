//! `ronde status`: shows the status of a job.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use ronde_cluster::{ClusterError, status_of_folder};

use super::exit;
use super::job::{JobArguments, ResolvedJob};

/// Time limit for the coordinator's answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Arguments of `ronde status`.
#[derive(Args)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    job: JobArguments,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn status(arguments: &StatusArguments) -> i32 {
    let ResolvedJob { invitation, folder } = match arguments.job.find() {
        Ok(found) => found,
        Err(message) => {
            eprintln!("{message}");
            return exit::USER_ERROR;
        }
    };
    let answer = ronde_cluster::status(&invitation, LIMIT);
    let status = match (answer, &folder) {
        // The folder has the last status even without a coordinator.
        (Err(ClusterError::NoCoordinator { .. } | ClusterError::Over { .. }), Some(folder)) => {
            status_of_folder(folder)
        }
        (answer, _) => answer,
    };
    match status {
        Ok(status) => {
            let text = match arguments.json {
                true => status.to_json(),
                false => status.to_string(),
            };
            // The reader may have closed the pipe, such as `head`.
            let _ = writeln!(std::io::stdout(), "{text}");
            exit::DONE
        }
        Err(error) => super::job_failure(&error),
    }
}
