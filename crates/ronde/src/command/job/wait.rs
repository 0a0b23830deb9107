//! `ronde wait`: waits for the end of a submitted job.

use std::time::Duration;

use clap::Args;
use ronde_core::Recovery;
use ronde_submit::{JobState, SubmitError};

use crate::command::console::{info, message};
use crate::command::job::submitted::SubmittedJobs;

/// Interval between two looks at a job whose state costs little.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The longest interval for a job on other machines; the first ones are shorter, for short jobs.
const LOOK_EVERY_REMOTE: Duration = Duration::from_secs(2);
/// The time for which a job waits for its scheduler before the reason is shown.
const QUEUED_MAX: Duration = Duration::from_secs(2);

/// Arguments of `ronde wait`.
#[derive(Args)]
pub(crate) struct WaitArguments {
    /// Name of the job.
    job: String,
}

pub(crate) fn wait(arguments: &WaitArguments) -> i32 {
    crate::command::job::hang_up::end_with_terminal();
    match until_over(&arguments.job) {
        Ok(state) => {
            info!("job {}: {state}", arguments.job);
            state.exit_code().unwrap_or(crate::command::exit::BUG)
        }
        Err(error) => crate::command::failure::submit_failure(&error),
    }
}

/// Waits until a job is over and returns its state. A target that does not answer is asked again.
pub(crate) fn until_over(name: &str) -> Result<JobState, SubmitError> {
    let jobs = SubmittedJobs::open()?;
    let mut is_reported = false;
    let mut shown = None;
    let mut queued_for = Duration::ZERO;
    let mut remote = LOOK_EVERY;
    let is_remote = jobs.registry.find(name)?.settings.is_remote();
    loop {
        let found = jobs.find(name);
        match found.and_then(|(job, target)| jobs.state(&job, &*target)) {
            Ok(state) if state.is_over() => return Ok(state),
            Ok(state) => {
                is_reported = false;
                let is_queued = matches!(state, JobState::Queued { .. });
                let is_due = !is_queued || queued_for >= QUEUED_MAX;
                let text = state.to_string();
                let found = (is_queued || state.problem().is_some()).then_some(text);
                if is_due && found != shown {
                    message!("job {name}: {state}");
                    shown = found;
                }
                if !is_queued {
                    queued_for = Duration::ZERO;
                }
            }
            Err(error) if error.recovery() == Recovery::Retry => {
                if !std::mem::replace(&mut is_reported, true) {
                    message!("warning: {error}\n  waiting for its answer until Ctrl-C");
                }
            }
            Err(error) => return Err(error),
        }
        let pause = match is_remote {
            true => remote,
            false => LOOK_EVERY,
        };
        queued_for = queued_for.saturating_add(pause);
        ronde_clock::pause(pause);
        remote = (remote * 3 / 2).min(LOOK_EVERY_REMOTE);
    }
}
