//! `ronde logs`: shows the output of a submitted job.

use std::io::ErrorKind;
use std::path::Path;

use clap::Args;
use ronde_submit::{JobState, LogRequest, SubmitError};

use crate::command::console::message;
use crate::command::exit;
use crate::command::job::submitted::SubmittedJobs;
use crate::command::job::{hang_up, stored_results};
use crate::command::run::run_folder::EVENT_FILE;

/// Arguments of `ronde logs`.
#[derive(Args)]
pub(crate) struct LogsArguments {
    /// Name of the job, or the address of its results.
    job: String,
    /// Show further output until the job is over.
    #[arg(short, long)]
    follow: bool,
    /// Show what this rank has printed [default: progress and errors of the run].
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
}

pub(crate) fn logs(arguments: &LogsArguments) -> i32 {
    if arguments.follow {
        hang_up::end_with_reader();
    }
    let request = LogRequest {
        rank: arguments.rank,
        follow: arguments.follow,
        interrupted: |error| {
            message!("warning: {error}\n  waiting for further output until Ctrl-C")
        },
    };
    if stored_results::is_address(&arguments.job) {
        return match stored_results::logs(&arguments.job, request) {
            Ok(()) => exit::DONE,
            Err(error) => crate::command::failure::submit_failure(&error),
        };
    }
    if let Some(problem) = folder_problem(&arguments.job) {
        message!("{problem}");
        return exit::USER_ERROR;
    }
    let shown = SubmittedJobs::open().and_then(|jobs| {
        let (job, target) = jobs.find(&arguments.job)?;
        if request.follow
            && let Ok(state @ JobState::Queued { .. }) = jobs.state(&job, &*target)
        {
            message!("job {}: {state}; its output follows", job.name);
        }
        match (&job.output, request.rank) {
            (Some(address), Some(_)) => stored_results::logs(address, request),
            _ => target.logs(&job, request, &mut std::io::stdout()),
        }?;
        // What is not in the output. Without an answer, there is nothing to add.
        if let Ok(state) = jobs.state(&job, &*target)
            && (state.problem().is_some()
                || matches!(state, JobState::Lost | JobState::Queued { .. }))
        {
            let problem = state.problem().unwrap_or_default();
            let details = problem.lines().skip(1).map(|line| format!("\n{line}"));
            message!("job {}: {state}{}", job.name, details.collect::<String>());
        }
        Ok(())
    });
    match shown {
        Ok(()) => exit::DONE,
        // The reader has closed the pipe, such as `head`.
        Err(SubmitError::File { cause, .. }) if cause.kind() == ErrorKind::BrokenPipe => exit::DONE,
        Err(error) => crate::command::failure::submit_failure(&error),
    }
}

/// Returns the message about the folder of a run, which has no output of a submitted job; `None` if the argument is
/// something else.
fn folder_problem(job: &str) -> Option<String> {
    let is_job = || SubmittedJobs::open().is_ok_and(|jobs| jobs.registry.has(job));
    if !Path::new(job).is_dir() || is_job() {
        return None;
    }
    let has_events = Path::new(job).join(EVENT_FILE).is_file();
    let more = match has_events {
        true => format!(
            "; the events of this run are in {}/{EVENT_FILE}",
            job.trim_end_matches('/')
        ),
        false => String::new(),
    };
    Some(format!(
        "error: cannot show the output of {job}: it is a folder, not a submitted job\n  \
         help: pass the name of a job, which `ronde jobs` lists, or the address of its results{more}"
    ))
}
