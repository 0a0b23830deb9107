//! `ronde status`: shows the status of a job or run.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use ronde_cluster::{ClusterError, status_of_folder};
use ronde_submit::{JobState, SubmitError, SubmittedJob, Target};

use crate::command::console::{Printable, message, print};
use crate::command::exit;
use crate::command::job::find::{JobArguments, ResolvedJob};
use crate::command::job::submitted;
use crate::command::job::submitted::SubmittedJobs;
use crate::command::run::run_status::RunStatus;

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
    match submitted::by_name(arguments.job.job.as_deref()) {
        Ok(Some((jobs, job, target))) => {
            let shown = submitted_status(&jobs, &job, &*target, arguments.json);
            return shown.unwrap_or_else(|error| crate::command::failure::submit_failure(&error));
        }
        Ok(None) => {}
        Err(error) => return crate::command::failure::submit_failure(&error),
    }
    if let Some(run) = arguments.job.plain_run() {
        return run_status(&run, arguments.json);
    }
    let ResolvedJob { invitation, folder } = match arguments.job.find() {
        Ok(found) => found,
        Err(message) => {
            message!("{message}");
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
            let mut text = match arguments.json {
                true => status.to_json(),
                false => status.to_string(),
            };
            let run = folder.as_ref().and_then(|folder| folder.path().parent());
            if let (false, Some(Ok(run))) = (arguments.json, run.map(RunStatus::read)) {
                run.workers()
                    .for_each(|line| text = format!("{text}\n{line}"));
            }
            print(text)
        }
        Err(error) => crate::command::failure::job_failure(&error),
    }
}

/// Prints the status of a run without a separate coordinator, from its folder.
fn run_status(folder: &Path, json: bool) -> i32 {
    match RunStatus::read(folder) {
        Ok(status) => {
            let text = match json {
                true => status.to_json(),
                false => status.to_string(),
            };
            print(text)
        }
        Err(message) => {
            message!("{message}");
            exit::USER_ERROR
        }
    }
}

/// Prints the state of a submitted job, and the status of its run where it is.
fn submitted_status(
    jobs: &SubmittedJobs,
    job: &SubmittedJob,
    target: &dyn Target,
    json: bool,
) -> Result<i32, SubmitError> {
    let state = jobs.state(job, target)?;
    let has_run = !matches!(state, JobState::Starting | JobState::Queued { .. });
    let mut out = Printable(std::io::stdout());
    // The reader may have closed the pipe, such as `head`.
    if !json {
        let _ = writeln!(out, "job {} on {}: {state}", job.name, job.target);
    } else if !has_run {
        let line = serde_json::json!({"job": job.name, "target": job.target, "state": state});
        let _ = writeln!(out, "{line}");
    }
    if has_run && !json && state.is_over() {
        let _ = writeln!(out, "the last status of its run:");
    }
    match (has_run, json) {
        (true, true) => target.command(job, &["status", "--json", "{}"]),
        (true, false) => target.command(job, &["status", "{}"]),
        (false, _) => Ok(exit::DONE),
    }
}
