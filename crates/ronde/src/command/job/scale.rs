//! `ronde scale`: changes the number of workers of a running job.

use std::time::Duration;

use clap::Args;
use ronde_cluster::WaitSettings;
use ronde_submit::{JobState, SubmitError, SubmittedJob, Target};

use crate::command::console::{info, message};
use crate::command::exit;
use crate::command::job::find::{TokenArguments, find};
use crate::command::job::submitted;
use crate::command::job::submitted::SubmittedJobs;

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

/// Refuses a job that is over, whose coordinator may be left. The state of a job elsewhere is not asked for: that takes time.
fn check(jobs: &SubmittedJobs, job: &SubmittedJob, target: &dyn Target) -> Result<(), SubmitError> {
    let state = match job.settings.is_remote() {
        true => jobs.registry.ended(&job.name),
        false => Some(jobs.state(job, target)?),
    };
    match state.filter(JobState::is_over) {
        None => Ok(()),
        Some(state) => Err(SubmitError::Invalid {
            problem: format!("cannot scale job `{}`: it is {state}", job.name),
            help: "`ronde submit` starts a new job".to_owned(),
        }),
    }
}

pub(crate) fn scale(arguments: &ScaleArguments) -> i32 {
    match submitted::by_name(Some(&arguments.job)) {
        Ok(Some((jobs, job, target))) => {
            let scaled =
                check(&jobs, &job, &*target).and_then(|()| target.scale(&job, arguments.workers));
            return scaled.unwrap_or_else(|error| crate::command::failure::submit_failure(&error));
        }
        Ok(None) => {}
        Err(error) => return crate::command::failure::submit_failure(&error),
    }
    let found = match find(Some(&arguments.job), &arguments.token) {
        Ok(found) => found,
        Err(message) => {
            message!("{message}");
            return exit::USER_ERROR;
        }
    };
    let wait = WaitSettings {
        timeout: LIMIT,
        notify: &mut |message| info!("{message}"),
    };
    match ronde_cluster::scale(&found.invitation, arguments.workers, wait) {
        Ok(note) => {
            message!("{note}");
            exit::DONE
        }
        Err(error) => crate::command::failure::job_failure(&error),
    }
}
