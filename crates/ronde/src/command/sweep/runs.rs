//! The runs of a sweep as jobs: placed, looked at, fetched, removed.

use std::path::Path;
use std::time::Duration;

use ronde_core::Recovery;
use ronde_submit::{JobState, NewJob, SubmitError, TargetSettings};

use crate::command::console::message;
use crate::command::submit::{self, RunToSubmit};
use crate::command::submitted::SubmittedJobs;
use crate::command::{cancel, fetch};

/// Time for a last checkpoint of a run that is ended.
const GRACE: Duration = Duration::from_secs(30);

/// The state of a run.
pub(super) enum RunState {
    /// There is no job, or none that was placed.
    NotPlaced,
    /// It waits or runs, or its target does not answer.
    UnderWay,
    /// It ended with exit code 0.
    Finished,
    /// It ended otherwise.
    Failed(String),
}

/// Places the job of a run.
pub(super) fn place(
    on: &str,
    settings: &TargetSettings,
    job: &str,
    file: Option<&Path>,
    run: &RunToSubmit,
) -> Result<(), SubmitError> {
    submit::place_quietly(on, settings.clone(), Some(job), file, run).map(|_| ())
}

/// Returns whether a target runs many jobs as one job of its scheduler.
pub(super) fn has_arrays(settings: &TargetSettings) -> Result<bool, SubmitError> {
    let jobs = SubmittedJobs::open()?;
    Ok(jobs.target(settings).has_arrays())
}

/// Places the jobs of runs as one job of the scheduler. Leaves no record if that fails.
pub(super) fn place_array(
    on: &str,
    settings: &TargetSettings,
    file: Option<&Path>,
    runs: &[(String, RunToSubmit)],
    side_by_side: u32,
) -> Result<(), SubmitError> {
    let jobs = SubmittedJobs::open()?;
    let target = jobs.target(settings);
    let mut records = Vec::new();
    let mut requests = Vec::new();
    for (job, run) in runs {
        records.push(jobs.registry.create(Some(job), job, |name| {
            Ok(NewJob {
                name,
                target: on.to_owned(),
                settings: settings.clone(),
                run_file: file.map(Path::to_owned),
                workers: run.request.workers,
                output: run.request.output.clone(),
            })
        })?);
        requests.push((job.clone(), run.request.clone()));
    }
    let mut placed = |task: usize, placement| jobs.registry.place(&mut records[task], placement);
    let submitted = target.submit_array(&requests, side_by_side, &mut placed);
    if submitted.is_err() {
        for (job, _) in runs {
            jobs.registry.remove(job)?;
        }
    }
    submitted
}

/// Returns the state of a run. A job that was never placed is removed.
pub(super) fn state(job: &str) -> Result<RunState, SubmitError> {
    let jobs = SubmittedJobs::open()?;
    if !jobs.registry.has(job) {
        return Ok(RunState::NotPlaced);
    }
    let (record, target) = jobs.find(job)?;
    let state = match jobs.state(&record, &*target) {
        Ok(state) => state,
        Err(error) if error.recovery() == Recovery::Retry => {
            message!("warning: {error}");
            return Ok(RunState::UnderWay);
        }
        Err(error) => return Err(error),
    };
    Ok(match state {
        JobState::Finished => RunState::Finished,
        JobState::Lost if !target.has_started(&record)? => {
            target.remove(&record)?;
            jobs.registry.remove(job)?;
            RunState::NotPlaced
        }
        state if state.is_over() => RunState::Failed(state.to_string()),
        _ => RunState::UnderWay,
    })
}

/// Copies the results of a run to a folder.
pub(super) fn fetch(job: &str, to: &Path) -> Result<(), SubmitError> {
    fetch::copy(job, to)
}

/// Removes the record of a run that is over, if there is one, and what the run has left on its target.
pub(super) fn remove(job: &str) -> Result<(), SubmitError> {
    let jobs = SubmittedJobs::open()?;
    if jobs.registry.has(job) {
        let (record, target) = jobs.find(job)?;
        target.remove(&record)?;
    }
    jobs.registry.remove(job)
}

/// Returns whether a run on a target can continue from the results of an earlier one on this machine.
pub(super) fn can_continue(settings: &TargetSettings) -> Result<bool, SubmitError> {
    Ok(SubmittedJobs::open()?.target(settings).can_continue())
}

/// Ends a run and removes its record.
pub(super) fn cancel(job: &str) -> Result<(), SubmitError> {
    if SubmittedJobs::open()?.registry.has(job) {
        cancel::end(job, GRACE)?;
        remove(job)?;
    }
    Ok(())
}
