//! The runs of a sweep as jobs: placed, looked at, fetched, removed.

use std::path::Path;
use std::time::Duration;

use ronde_core::Recovery;
use ronde_submit::{JobState, NewJob, SubmitError, SubmittedJob, TargetSettings};
use ronde_sweep::SweepRun;

use crate::command::job::submit;
use crate::command::job::submit::RunToSubmit;
use crate::command::job::submitted::SubmittedJobs;
use crate::command::job::{cancel, fetch};

/// Time for a last checkpoint of a run that is ended.
const GRACE: Duration = Duration::from_secs(30);

/// The state of a run.
pub(super) enum RunState {
    /// There is no job, or none that was placed.
    NotPlaced,
    /// It waits or runs.
    UnderWay,
    /// Its target does not answer now.
    NoAnswer(SubmitError),
    /// It ended with exit code 0.
    Finished,
    /// It ended otherwise.
    Failed(String),
}

/// What the jobs of a sweep have in common.
#[derive(Clone, Copy)]
pub(super) struct SweepJobs<'a> {
    /// The identity of the sweep.
    pub(super) sweep: Option<&'a str>,
    /// The name of the target.
    pub(super) on: &'a str,
    /// The target.
    pub(super) settings: &'a TargetSettings,
    /// The run file; `None`: the embedded example.
    pub(super) file: Option<&'a Path>,
}

impl SweepJobs<'_> {
    /// Claims the name of the job of a run: creates its record. What an earlier job of the same run has left is removed.
    pub(super) fn claim(&self, job: &str, run: &RunToSubmit) -> Result<SubmittedJob, SubmitError> {
        match self.state(job)? {
            RunState::Finished | RunState::Failed(_) => self.remove(job, false)?,
            RunState::NoAnswer(error) => return Err(error),
            RunState::NotPlaced | RunState::UnderWay => {}
        }
        let new = NewJob {
            name: job.to_owned(),
            target: self.on.to_owned(),
            settings: self.settings.clone(),
            run_file: self.file.map(Path::to_owned),
            workers: run.request.workers,
            output: run.request.output.clone(),
        };
        let jobs = SubmittedJobs::open()?;
        jobs.registry.create_in_sweep(self.sweep, new)
    }

    /// Claims the names of the jobs of runs. Leaves no record if that fails.
    pub(super) fn claim_all(
        &self,
        runs: &[(SweepRun, RunToSubmit)],
    ) -> Result<Vec<SubmittedJob>, SubmitError> {
        let mut records = Vec::new();
        for (run, to_submit) in runs {
            match self.claim(&run.job, to_submit) {
                Ok(record) => records.push(record),
                Err(error) => {
                    release(&records)?;
                    return Err(error);
                }
            }
        }
        Ok(records)
    }

    /// Returns the state of a run. A job that was never placed is removed.
    pub(super) fn state(&self, job: &str) -> Result<RunState, SubmitError> {
        let jobs = SubmittedJobs::open()?;
        if !jobs.registry.has(job) {
            return Ok(RunState::NotPlaced);
        }
        let (record, target) = jobs.find(job)?;
        if !self.is_own(&record) {
            return Err(SubmitError::Invalid {
                problem: format!("there is a job `{job}` of another sweep, or of another command"),
                help: format!(
                    "give this sweep another name with `name` in its file, or remove that job with `ronde jobs --remove {job}`"
                ),
            });
        }
        let state = match jobs.state(&record, &*target) {
            Ok(state) => state,
            Err(error) if error.recovery() == Recovery::Retry => {
                return Ok(RunState::NoAnswer(error));
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

    /// Removes the record of a run that is over, if there is one, and what the run has left on its target; of the last run also
    /// the programs and data that the runs have shared.
    pub(super) fn remove(&self, job: &str, is_last: bool) -> Result<(), SubmitError> {
        let jobs = SubmittedJobs::open()?;
        if !jobs.registry.has(job) {
            return Ok(());
        }
        let (record, target) = jobs.find(job)?;
        if !self.is_own(&record) {
            return Ok(());
        }
        // A launcher that was killed may have left its coordinator, which would disturb the next attempt.
        if jobs.state(&record, &*target)? == JobState::Lost {
            target.cancel(&record, Duration::ZERO, cancel::report)?;
        }
        target.remove(&record)?;
        if is_last {
            target.remove_unused(&record)?;
        }
        jobs.registry.remove(job)
    }

    /// Ends a run and removes its record.
    pub(super) fn cancel(&self, job: &str) -> Result<(), SubmitError> {
        let jobs = SubmittedJobs::open()?;
        if jobs.registry.has(job) && self.is_own(&jobs.registry.find(job)?) {
            cancel::end(job, GRACE)?;
            self.remove(job, true)?;
        }
        Ok(())
    }

    /// Returns whether a job is one of the sweep. Another sweep may have the same name.
    fn is_own(&self, record: &SubmittedJob) -> bool {
        record.sweep.as_deref() == self.sweep
    }
}

/// Places the job of a run, whose name was claimed. Leaves no record if that fails and nothing can run.
pub(super) fn place(mut record: SubmittedJob, run: &RunToSubmit) -> Result<(), SubmitError> {
    let jobs = SubmittedJobs::open()?;
    let target = jobs.target(&record.settings);
    submit::place_claimed(&jobs, &*target, &mut record, &run.request)
}

/// Places the jobs of runs, whose names were claimed, as one job of the scheduler. Leaves no record if that fails and nothing can
/// run.
pub(super) fn place_array(
    mut records: Vec<SubmittedJob>,
    settings: &TargetSettings,
    runs: &[(SweepRun, RunToSubmit)],
    side_by_side: u32,
) -> Result<(), SubmitError> {
    let jobs = SubmittedJobs::open()?;
    let target = jobs.target(settings);
    let requests: Vec<_> = runs
        .iter()
        .map(|(run, to_submit)| (run.job.clone(), to_submit.request.clone()))
        .collect();
    let mut placed = |task: usize, placement| jobs.registry.place(&mut records[task], placement);
    let submitted = target.submit_array(&requests, side_by_side, &mut placed);
    match submitted {
        Err(SubmitError::MayRun { .. }) | Ok(()) => {}
        Err(_) => release(&records)?,
    }
    submitted
}

/// Removes the records of jobs that were not placed.
fn release(records: &[SubmittedJob]) -> Result<(), SubmitError> {
    let jobs = SubmittedJobs::open()?;
    for record in records {
        jobs.registry.remove(&record.name)?;
    }
    Ok(())
}

/// Returns whether a target runs many jobs as one job of its scheduler.
pub(super) fn has_arrays(settings: &TargetSettings) -> Result<bool, SubmitError> {
    let jobs = SubmittedJobs::open()?;
    Ok(jobs.target(settings).has_arrays())
}

/// Copies the results of a run to a folder.
pub(super) fn fetch(job: &str, to: &Path) -> Result<(), SubmitError> {
    fetch::copy(job, to)
}

/// Removes what an earlier attempt of a run has left in the folder of its results.
pub(super) fn forget(job: &str, results: &Path) -> Result<(), SubmitError> {
    fetch::remove_copy(job, results)
}

/// Returns whether a run on a target can continue from the results of an earlier one on this machine.
pub(super) fn can_continue(settings: &TargetSettings) -> Result<bool, SubmitError> {
    Ok(SubmittedJobs::open()?.target(settings).can_continue())
}
