//! [`Target`]: a machine or service that runs jobs, with the same operations everywhere.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::SubmitError;
use crate::hosts::HostSlots;
use crate::job::{JobPlacement, SubmittedJob};
use crate::kubernetes::KubernetesAccess;
use crate::preview::JobPreview;
use crate::ray::RayAccess;
use crate::run_inputs::{JobResources, RunInputs};
use crate::secrets::check_no_secret;
use crate::state::JobState;

/// This build of `ronde`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobProgram {
    /// The path of the program on this machine.
    pub path: PathBuf,
    /// Its version, which must be the same on all hosts.
    pub version: String,
}

/// What targets need to know about this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetContext {
    /// The folder of the registry.
    pub jobs: PathBuf,
    /// Where the settings of clusters of Kubernetes are.
    pub kubernetes: KubernetesAccess,
    /// Where the token of a cluster of Ray is.
    pub ray: RayAccess,
}

/// A run that is to be submitted.
#[derive(Debug, Clone)]
pub struct SubmitRequest {
    /// The absolute path of the run file; `None`: the embedded example.
    pub run_file: Option<PathBuf>,
    /// The number of workers at the start.
    pub workers: u32,
    /// The largest number of workers that the run can have.
    pub workers_max: u32,
    /// Overrides of the run file, as after `--set`.
    pub sets: Vec<String>,
    /// The files beside the run file that the run needs.
    pub inputs: RunInputs,
    /// The needs of each worker.
    pub resources: JobResources,
    /// Further Secrets of Kubernetes whose keys become variables of the workers.
    pub env_from: Vec<String>,
    /// The current folder.
    pub directory: PathBuf,
    /// Whether workers may join and leave.
    pub is_elastic: bool,
    /// Whether checkpoints are saved in the run's output folder.
    pub saves_in_output: bool,
    /// The address to which results are sent; `None`: they stay in the folder of the job.
    pub output: Option<String>,
    /// The folder of this machine with the results of an earlier run, from whose newest checkpoint this run continues;
    /// `None`: it begins with the first step.
    pub continues: Option<PathBuf>,
    /// This build of `ronde`.
    pub program: JobProgram,
}

impl SubmitRequest {
    /// Refuses secrets in the run file, in overrides and in the address of the results, which are sent besides files.
    ///
    /// # Errors
    /// There is one, or the run file cannot be read.
    pub fn check_secrets(&self) -> Result<(), SubmitError> {
        if let Some(path) = &self.run_file {
            let text = std::fs::read_to_string(path).map_err(SubmitError::file("read", path))?;
            check_no_secret(&path.display().to_string(), &text)?;
        }
        for set in &self.sets {
            let key = set.split('=').next().unwrap_or_default();
            check_no_secret(&format!("`--set {key}`"), set)?;
        }
        check_no_secret("`run.output`", self.output.as_deref().unwrap_or_default())
    }

    /// Refuses Secrets of Kubernetes, for targets that have none.
    pub(crate) fn check_no_env_from(&self) -> Result<(), SubmitError> {
        match self.env_from.first() {
            None => Ok(()),
            Some(name) => Err(SubmitError::invalid(
                format!("cannot use Secret `{name}`: the target is not one of Kubernetes"),
                "leave out `--env-from`, and set the variables where the job runs",
            )),
        }
    }
}

/// The output to show.
#[derive(Debug, Clone, Copy)]
pub struct LogRequest {
    /// The rank; `None`: the output of the launcher, with progress and errors.
    pub rank: Option<u32>,
    /// Whether to wait for further output until the job is over.
    pub follow: bool,
    /// Called when output that is followed stops for a time: a connection is lost, or the disk of a job on this machine is full.
    pub interrupted: fn(&SubmitError),
}

/// A machine or service that runs jobs. Operations on an existing job need its record only.
pub trait Target: Send + Sync {
    /// Returns the commands, files and documents that [`Target::submit`] would send. Sends nothing.
    ///
    /// # Errors
    /// The request does not fit the target.
    fn preview(&self, name: &str, request: &SubmitRequest) -> Result<JobPreview, SubmitError>;

    /// Places a job and returns when it is under way or queued. Calls `placed` before the first process of the job
    /// exists wherever its placement is known by then. Leaves nothing running if it fails.
    ///
    /// # Errors
    /// The first problem, before anything trains where possible.
    fn submit(
        &self,
        name: &str,
        request: &SubmitRequest,
        placed: &mut dyn FnMut(JobPlacement) -> Result<(), SubmitError>,
    ) -> Result<(), SubmitError>;

    /// Returns whether a run can continue from results on this machine, if [`SubmitRequest::continues`] names some.
    fn can_continue(&self) -> bool {
        false
    }

    /// Looks for the placement of a job whose submitter was killed before it could write it. Returns `None` if nothing was
    /// placed.
    ///
    /// # Errors
    /// The target does not answer.
    fn find_placement(&self, job: &SubmittedJob) -> Result<Option<JobPlacement>, SubmitError> {
        let _ = job;
        Ok(None)
    }

    /// Returns whether the launcher of a job was started. A submitter may be killed after it has written where the job is,
    /// and before it starts the launcher.
    ///
    /// # Errors
    /// The target does not answer.
    fn has_started(&self, job: &SubmittedJob) -> Result<bool, SubmitError> {
        Ok(job.placement.is_some())
    }

    /// Returns whether [`Target::submit_array`] sends one job to a scheduler.
    fn has_arrays(&self) -> bool {
        false
    }

    /// Places jobs that are known together, at most `side_by_side` of them under way at the same time where the target
    /// has a scheduler. Calls `placed` with the position of each job.
    ///
    /// # Errors
    /// The first problem.
    fn submit_array(
        &self,
        jobs: &[(String, SubmitRequest)],
        side_by_side: u32,
        placed: &mut dyn FnMut(usize, JobPlacement) -> Result<(), SubmitError>,
    ) -> Result<(), SubmitError> {
        let _ = side_by_side;
        for (position, (name, request)) in jobs.iter().enumerate() {
            self.submit(name, request, &mut |placement| placed(position, placement))?;
        }
        Ok(())
    }

    /// Returns the state of a job.
    ///
    /// # Errors
    /// The target does not answer.
    fn state(&self, job: &SubmittedJob, is_cancelled: bool) -> Result<JobState, SubmitError>;

    /// Returns the states of several jobs with few requests, in their order; `None` if the target has no such requests. Each
    /// job is given with whether it was cancelled.
    fn states(&self, jobs: &[(&SubmittedJob, bool)]) -> Option<Vec<JobState>> {
        let _ = jobs;
        None
    }

    /// Writes the output of a job to `out`.
    ///
    /// # Errors
    /// The target does not answer, or `out` cannot be written.
    fn logs(
        &self,
        job: &SubmittedJob,
        request: LogRequest,
        out: &mut dyn Write,
    ) -> Result<(), SubmitError>;

    /// Runs `ronde` with these words where the results of the job are, `{}` standing for their folder, with the
    /// standard streams of this process. Returns its exit code.
    ///
    /// # Errors
    /// The target does not answer.
    fn command(&self, job: &SubmittedJob, words: &[&str]) -> Result<i32, SubmitError>;

    /// Changes the number of workers of a job. Returns the exit code of the command that requests it.
    ///
    /// # Errors
    /// The target does not answer.
    fn scale(&self, job: &SubmittedJob, workers: u32) -> Result<i32, SubmitError> {
        self.command(job, &["scale", "{}", &workers.to_string()])
    }

    /// Ends a job: it saves a checkpoint if it can within `grace`; then everything that remains is killed. `report` receives what
    /// is done in another way than usual, and why.
    ///
    /// # Errors
    /// The target does not answer, or a process remains.
    fn cancel(
        &self,
        job: &SubmittedJob,
        grace: Duration,
        report: fn(&str),
    ) -> Result<(), SubmitError>;

    /// Copies the results and logs of a job to a folder of this machine.
    ///
    /// # Errors
    /// The target does not answer, or the folder cannot be written.
    fn fetch(&self, job: &SubmittedJob, to: &std::path::Path) -> Result<(), SubmitError>;

    /// Starts an agent of a job on a further host, or again on one that has left. Returns the placement with the host.
    ///
    /// # Errors
    /// The target has no such hosts, or the host cannot run the job.
    fn add_host(&self, job: &SubmittedJob, host: &HostSlots) -> Result<JobPlacement, SubmitError> {
        Err(no_hosts(job, &host.host))
    }

    /// Lets the workers of a host finish their step and leave a job.
    ///
    /// # Errors
    /// The target has no such hosts, or the host does not answer.
    fn drain_host(
        &self,
        job: &SubmittedJob,
        host: &str,
        grace: Duration,
    ) -> Result<(), SubmitError> {
        let _ = grace;
        Err(no_hosts(job, host))
    }

    /// Removes the files of a finished job on the target besides the folder of its record; its results, too, where they
    /// are in a folder of this machine, of hosts over SSH or of Slurm.
    ///
    /// # Errors
    /// The target does not answer.
    fn remove(&self, job: &SubmittedJob) -> Result<(), SubmitError> {
        let _ = job;
        Ok(())
    }

    /// Removes programs and data that were copied to the target for a job that has been removed, unless another job uses them.
    ///
    /// # Errors
    /// The target does not answer.
    fn remove_unused(&self, job: &SubmittedJob) -> Result<(), SubmitError> {
        let _ = job;
        Ok(())
    }
}

/// Returns the error of a target that does not take single hosts.
fn no_hosts(job: &SubmittedJob, host: &str) -> SubmitError {
    SubmitError::invalid(
        format!(
            "host `{host}` cannot join or leave job `{}`: its target `{}` has no hosts over SSH",
            job.name, job.target
        ),
        "submit the job to a target with `kind = \"ssh\"`",
    )
}
