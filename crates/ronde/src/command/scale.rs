//! `ronde scale`: changes the number of workers of a running job.

use std::time::Duration;

use clap::Args;

use super::job::{TokenArguments, find};
use super::{exit, submitted};
use crate::command::console::message;

/// Time limit for the coordinator's answer; a coordinator that has just started acquires the lease first.
const LIMIT: Duration = Duration::from_secs(10);

/// Arguments of `ronde scale`.
#[derive(Args)]
pub(crate) struct ScaleArguments {
    /// Folder of the job or of its results, name of a submitted job, or `ADDRESS:PORT` of its coordinator.
    job: String,
    /// New number of workers, from `elastic.min_workers` to `elastic.max_workers`.
    #[arg(value_name = "N")]
    workers: u32,
    #[command(flatten)]
    token: TokenArguments,
}

pub(crate) fn scale(arguments: &ScaleArguments) -> i32 {
    match submitted::by_name(Some(&arguments.job)) {
        Ok(Some((_, job, target))) => {
            let scaled = target.scale(&job, arguments.workers);
            return scaled.unwrap_or_else(|error| super::submit_failure(&error));
        }
        Ok(None) => {}
        Err(error) => return super::submit_failure(&error),
    }
    let found = match find(Some(&arguments.job), &arguments.token) {
        Ok(found) => found,
        Err(message) => {
            message!("{message}");
            return exit::USER_ERROR;
        }
    };
    match ronde_cluster::scale(&found.invitation, arguments.workers, LIMIT) {
        Ok(note) => {
            message!("{note}");
            exit::DONE
        }
        Err(error) => super::job_failure(&error),
    }
}
