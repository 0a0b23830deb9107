//! [`LocalTarget`]: jobs on this machine, each in a separate session.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::SubmitError;
use crate::fetching;
use crate::job::{JobPlacement, SubmittedJob};
use crate::job_folder;
use crate::job_paths::JobPaths;
use crate::launcher_arguments::{LauncherArguments, folder_word};
use crate::preview::JobPreview;
use crate::process_folder::{ProcessCommand, ProcessState};
use crate::shell_words;
use crate::state::JobState;
use crate::target::{LogRequest, SubmitRequest, Target};

/// Time limit for a job to begin; one that has not failed by then is under way.
const BEGIN_MAX: Duration = Duration::from_secs(20);

/// Settings of the target of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalSettings {
    /// The folder in which each job gets a folder; by default that of the records.
    pub folder: Option<PathBuf>,
    /// The largest number of workers of a job; by default the number of processors.
    pub slots: Option<u32>,
}

/// This machine.
pub struct LocalTarget {
    settings: LocalSettings,
    jobs: PathBuf,
}

impl LocalTarget {
    /// Creates the target; `jobs` is the folder of the registry.
    #[must_use]
    pub fn new(settings: LocalSettings, jobs: &Path) -> Self {
        Self {
            settings,
            jobs: jobs.to_owned(),
        }
    }

    fn paths(&self, name: &str) -> JobPaths {
        let folder = self.settings.folder.as_ref().unwrap_or(&self.jobs);
        JobPaths::new(folder.join(name))
    }

    fn command_of(&self, paths: &JobPaths, request: &SubmitRequest) -> ProcessCommand {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let processors = u32::try_from(processors).unwrap_or(1);
        let slots = self.settings.slots.unwrap_or(processors);
        let run_file = request.run_file.as_ref();
        let arguments = LauncherArguments {
            run_file: run_file.map(|path| path.display().to_string()),
            results: &paths.results(),
            listen: request.is_elastic.then(|| "127.0.0.1".to_owned()),
            here: slots.min(request.workers_max).max(request.workers),
            request,
        };
        ProcessCommand {
            arguments: arguments.words(),
            directory: request.directory.clone(),
        }
    }
}

/// Returns the files of a job of this machine; `None` while it is being placed.
fn placed(job: &SubmittedJob) -> Option<JobPaths> {
    match &job.placement {
        Some(JobPlacement::Local { folder } | JobPlacement::Slurm { folder, .. }) => {
            Some(JobPaths::new(folder))
        }
        _ => None,
    }
}

/// Returns the files of a job that was placed on file systems of this machine.
///
/// # Errors
/// The job is being placed.
pub(crate) fn paths_of(job: &SubmittedJob) -> Result<JobPaths, SubmitError> {
    placed(job).ok_or_else(|| not_placed(job))
}

/// Returns the error for a job that has not been placed yet.
pub(crate) fn not_placed(job: &SubmittedJob) -> SubmitError {
    SubmitError::invalid(
        format!("job `{}` has not been started yet", job.name),
        "`ronde jobs` shows its state",
    )
}

/// Returns the state of a job that its submitter has not placed.
pub(crate) fn state_before_placement(job: &SubmittedJob, is_cancelled: bool) -> JobState {
    match job.submitter.is_alive() {
        true => JobState::Starting,
        false if is_cancelled => JobState::Cancelled,
        false => JobState::Lost,
    }
}

/// Runs `ronde` with words in which `{}` is the folder of the results.
pub(crate) fn run_command(paths: &JobPaths, words: &[&str]) -> Result<i32, SubmitError> {
    let program = std::env::current_exe().map_err(SubmitError::file("find", Path::new("ronde")))?;
    let results = folder_word(words, &paths.results());
    let status = Command::new(&program).args(results).status();
    let status = status.map_err(|error| SubmitError::Program {
        program: program.display().to_string(),
        problem: error.to_string(),
    })?;
    Ok(status.code().unwrap_or(1))
}

impl Target for LocalTarget {
    fn preview(&self, name: &str, request: &SubmitRequest) -> Result<JobPreview, SubmitError> {
        request.check_no_env_from()?;
        let paths = self.paths(name);
        let command = self.command_of(&paths, request);
        let words = command.arguments.iter().map(String::as_str);
        Ok(JobPreview::new(format!(
            "in {}\n{} {}\noutput: {}",
            command.directory.display(),
            request.program.path.display(),
            shell_words::join(words),
            paths.process(0).output().display()
        )))
    }

    fn submit(
        &self,
        name: &str,
        request: &SubmitRequest,
        placed: &mut dyn FnMut(JobPlacement) -> Result<(), SubmitError>,
    ) -> Result<(), SubmitError> {
        request.check_no_env_from()?;
        let paths = self.paths(name);
        let launcher = paths.process(0);
        job_folder::claim(&paths, &self.jobs, name)?;
        launcher.prepare(&self.command_of(&paths, request))?;
        if let Some(from) = &request.continues {
            fetching::copy_checkpoints(from, &paths.results())?;
        }
        placed(JobPlacement::Local {
            folder: paths.folder().to_owned(),
        })?;
        launcher.start(&request.program.path)?;
        let mut state = ProcessState::NotStarted;
        ronde_clock::wait_until(BEGIN_MAX, || {
            state = launcher.state().unwrap_or(ProcessState::Lost);
            paths.has_begun(request.is_elastic) || !matches!(state, ProcessState::Running { .. })
        });
        let code = match state {
            ProcessState::Exited { code: 0, .. } | ProcessState::Running { .. } => return Ok(()),
            ProcessState::Exited { code, .. } => code,
            ProcessState::NotStarted | ProcessState::Lost => 3,
        };
        launcher.stop(Duration::ZERO)?;
        let output = launcher.last_output();
        job_folder::remove(&paths, &self.jobs, name)?;
        Err(SubmitError::EndedEarly {
            job: name.to_owned(),
            code,
            output,
        })
    }

    fn state(&self, job: &SubmittedJob, is_cancelled: bool) -> Result<JobState, SubmitError> {
        let Some(paths) = placed(job) else {
            return Ok(state_before_placement(job, is_cancelled));
        };
        match paths.process(0).state()? {
            // The submitter has written the placement, and was killed before it started the launcher.
            ProcessState::NotStarted => Ok(state_before_placement(job, is_cancelled)),
            state => Ok(JobState::of(&state, is_cancelled)),
        }
    }

    fn logs(
        &self,
        job: &SubmittedJob,
        request: LogRequest,
        out: &mut dyn Write,
    ) -> Result<(), SubmitError> {
        let paths = paths_of(job)?;
        let launcher = paths.process(0);
        let mut was_full = false;
        let mut is_over = || {
            let Ok(ProcessState::Running { problem, .. }) = launcher.state() else {
                return true;
            };
            // Otherwise the output only seems to stop.
            if !std::mem::replace(&mut was_full, problem.is_some()) && was_full {
                let cause = std::io::ErrorKind::StorageFull.into();
                (request.interrupted)(&SubmitError::file("write", &launcher.output())(cause));
            }
            false
        };
        let host = paths.host_of_rank(&[0], request, &mut is_over);
        paths.write_logs(host, request, out, &mut is_over)
    }

    fn command(&self, job: &SubmittedJob, words: &[&str]) -> Result<i32, SubmitError> {
        run_command(&paths_of(job)?, words)
    }

    fn cancel(&self, job: &SubmittedJob, grace: Duration, _: fn(&str)) -> Result<(), SubmitError> {
        let Some(paths) = placed(job) else {
            return Ok(());
        };
        match paths.process(0).stop(grace)? {
            true => Ok(()),
            false => Err(SubmitError::invalid(
                format!("processes of job `{}` do not end", job.name),
                "a process that waits for a disk or a device ends when that answers",
            )),
        }
    }

    fn fetch(&self, job: &SubmittedJob, to: &Path) -> Result<(), SubmitError> {
        fetching::copy_results(&paths_of(job)?, to)
    }

    fn can_continue(&self) -> bool {
        true
    }

    fn has_started(&self, job: &SubmittedJob) -> Result<bool, SubmitError> {
        match placed(job) {
            Some(paths) => Ok(paths.process(0).state()? != ProcessState::NotStarted),
            None => Ok(false),
        }
    }

    fn remove(&self, job: &SubmittedJob) -> Result<(), SubmitError> {
        match placed(job) {
            Some(paths) => job_folder::remove(&paths, &self.jobs, &job.name),
            None => Ok(()),
        }
    }
}
