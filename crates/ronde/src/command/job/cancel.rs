//! `ronde cancel`: ends a submitted job.

use std::time::Duration;

use clap::Args;
use ronde_submit::{JobState, SubmitError};

use crate::command::console::{info, message};
use crate::command::exit;
use crate::command::job::submitted::SubmittedJobs;

/// The interval between looks at a job that is being placed, and their number.
const WAIT: Duration = Duration::from_millis(100);
const WAITS: u32 = 300;

/// Arguments of `ronde cancel`.
#[derive(Args)]
pub(crate) struct CancelArguments {
    /// Name of the job.
    job: String,
    /// Kill the job at once, without a last checkpoint.
    #[arg(long)]
    now: bool,
    /// Time for a last checkpoint, in seconds; then the job is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 120,
          value_parser = clap::value_parser!(u32).range(1..=86_400), conflicts_with = "now")]
    grace: u32,
}

pub(crate) fn cancel(arguments: &CancelArguments) -> i32 {
    let grace = match arguments.now {
        true => Duration::ZERO,
        false => Duration::from_secs(arguments.grace.into()),
    };
    match end(&arguments.job, grace) {
        Ok(state) => {
            info!("job {}: {state}", arguments.job);
            exit::DONE
        }
        Err(error) => crate::command::failure::submit_failure(&error),
    }
}

/// Prints a difference from the usual way to end a job, with its reason.
pub(crate) fn report(text: &str) {
    message!("{text}");
}

/// Ends a job and everything that remains of it, and returns its state.
pub(crate) fn end(name: &str, grace: Duration) -> Result<JobState, SubmitError> {
    let jobs = SubmittedJobs::open()?;
    let (job, target) = jobs.find(name)?;
    let is_placing = job.submitter.is_alive();
    let state = jobs.state(&job, &*target);
    let was_over = state.as_ref().is_ok_and(JobState::is_over);
    if !was_over && let Err(error) = jobs.registry.mark_cancelled(name) {
        // A job that has no submitter can be ended without the note, such as on a full disk.
        if job.submitter.is_alive() {
            return Err(error);
        }
        message!("warning: the job will not be listed as cancelled: {error}");
    }
    // Also after the end: a launcher that was killed may have left processes behind.
    if let Err(error) = target.cancel(&job, grace, report) {
        let is_over = || {
            let state = jobs.state(&job, &*target);
            state.is_ok_and(|state| state.is_over())
        };
        // The job may continue, and then it was not cancelled.
        if !was_over && !is_over() {
            jobs.registry.unmark_cancelled(name)?;
        }
        return Err(error);
    }
    if was_over {
        return state;
    }
    let state = match jobs.state(&job, &*target)? {
        JobState::Starting => wait_for_submitter(&jobs, name)?,
        // It may have been placed since its target was asked to end it.
        state if is_placing && !state.is_over() => wait_for_submitter(&jobs, name)?,
        state => state,
    };
    // The submitting command may have removed the record, and the note in it, before the state was read.
    Ok(match state {
        JobState::Lost => JobState::Cancelled,
        state => state,
    })
}

/// Waits until the command that places a job has seen that the job is cancelled, and has ended what it began.
fn wait_for_submitter(jobs: &SubmittedJobs, name: &str) -> Result<JobState, SubmitError> {
    for _ in 0..WAITS {
        ronde_clock::pause(WAIT);
        // The submitting command removes the record.
        if !jobs.registry.has(name) {
            return Ok(JobState::Cancelled);
        }
        let (job, target) = match jobs.find(name) {
            Err(_) if !jobs.registry.has(name) => return Ok(JobState::Cancelled),
            found => found?,
        };
        let state = jobs.state(&job, &*target)?;
        if state.is_over() {
            return Ok(state);
        }
    }
    Err(SubmitError::Invalid {
        problem: format!("job `{name}` is still being placed; it ends as soon as it is placed"),
        help: format!(
            "`ronde status {name}` shows its state; ending the command that submits it is possible, too"
        ),
    })
}
