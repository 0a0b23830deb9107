//! Submitted jobs of this machine: where their records are, and how a command finds one.

use std::path::{Path, PathBuf};

use ronde::environment;
use ronde_submit::{
    JobPlacement, JobRegistry, JobState, SubmitError, SubmittedJob, Target, TargetContext,
    TargetSettings,
};

/// Name of the folder of the records in the user's folder for state.
const JOBS_FOLDER: &str = "jobs";

/// The records of this machine's jobs, and their folder.
pub(crate) struct SubmittedJobs {
    pub(crate) registry: JobRegistry,
    pub(crate) path: PathBuf,
}

impl SubmittedJobs {
    /// Finds the folder of the records, which need not exist.
    pub(crate) fn open() -> Result<Self, SubmitError> {
        let state = environment::state_folder().ok_or_else(|| SubmitError::Invalid {
            problem: "there is no folder for the records of jobs".to_owned(),
            help: "set HOME or XDG_STATE_HOME to an absolute path".to_owned(),
        })?;
        let path = state.join(JOBS_FOLDER);
        Ok(Self {
            registry: JobRegistry::new(&path),
            path,
        })
    }

    /// Returns a target.
    pub(crate) fn target(&self, settings: &TargetSettings) -> Box<dyn Target> {
        settings.target(&TargetContext {
            jobs: self.path.clone(),
            kubernetes: environment::kubernetes_access(),
            ray: environment::ray_access(),
        })
    }

    /// Finds a job by its name.
    pub(crate) fn find(&self, name: &str) -> Result<(SubmittedJob, Box<dyn Target>), SubmitError> {
        let mut job = self.registry.find(name)?;
        let target = self.target(&job.settings);
        self.complete(&mut job, &*target)?;
        Ok((job, target))
    }

    /// Completes the record of a job whose submitter was killed before it could write where the job is, if it was placed.
    pub(crate) fn complete(
        &self,
        job: &mut SubmittedJob,
        target: &dyn Target,
    ) -> Result<(), SubmitError> {
        let is_left = job.placement.is_none() && !job.submitter.is_alive();
        if is_left
            && self.registry.ended(&job.name).is_none()
            && let Some(placement) = target.find_placement(job)?
        {
            self.registry.place(job, placement)?;
        }
        Ok(())
    }

    /// Returns the state of a job: the final one if it is known, otherwise that on its target.
    pub(crate) fn state(
        &self,
        job: &SubmittedJob,
        target: &dyn Target,
    ) -> Result<JobState, SubmitError> {
        if let Some(ended) = self.registry.ended(&job.name) {
            return Ok(ended);
        }
        loop {
            // The answer may take long, and another command may cancel the job meanwhile.
            let was_cancelled = self.registry.is_cancelled(&job.name);
            let state = target.state(job, was_cancelled)?;
            if self.registry.keep_end(&job.name, &state, was_cancelled) {
                return Ok(state);
            }
        }
    }
}

/// A submitted job with the records of this machine and its target.
pub(crate) type JobOnTarget = (SubmittedJobs, SubmittedJob, Box<dyn Target>);

/// Finds the submitted job that `name` refers to, if there is one. An entry of the current folder counts with a `/` only: `./name`.
pub(crate) fn by_name(name: Option<&str>) -> Result<Option<JobOnTarget>, SubmitError> {
    let Some(name) = name else {
        return Ok(None);
    };
    match SubmittedJobs::open() {
        Ok(jobs) if jobs.registry.has(name) => {
            let (job, target) = jobs.find(name)?;
            Ok(Some((jobs, job, target)))
        }
        _ => Ok(None),
    }
}

/// Returns the folder of a job on its target, for display.
pub(crate) fn folder(job: &SubmittedJob) -> Option<&Path> {
    match job.placement.as_ref()? {
        JobPlacement::Local { folder }
        | JobPlacement::Ssh { folder, .. }
        | JobPlacement::Slurm { folder, .. }
        | JobPlacement::Kubernetes { folder, .. }
        | JobPlacement::Ray { folder, .. } => Some(folder),
    }
}
