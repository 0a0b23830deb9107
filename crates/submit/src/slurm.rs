//! [`SlurmTarget`]: jobs in an allocation of Slurm. The batch script is `ronde` itself on the first node: it leads the run
//! and starts an agent on each other node by `srun`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::drain_sources;
use crate::error::SubmitError;
use crate::fetching;
use crate::job::{JobPlacement, SubmittedJob};
use crate::job_folder;
use crate::job_paths::JobPaths;
use crate::launcher_arguments::LauncherArguments;
use crate::local::{not_placed, paths_of, run_command, state_before_placement};
use crate::preview::JobPreview;
use crate::process_folder::{ProcessCommand, remove_if_exists};
use crate::state::JobState;
use crate::target::{LogRequest, SubmitRequest, Target};

mod agents;
mod allocation;
mod cancelling;
mod client;
mod heartbeat;
mod lost_launcher;
mod queue;
mod script;
mod sending;

pub use allocation::{SlurmAllocation, slurm_node_address};
pub use heartbeat::AgentHeartbeat;

use client::call;
use sending::SentScript;

/// The word among the arguments of the launcher for the address of its node.
pub(crate) const ADDRESS_WORD: &str = "{address}";
/// Exists in the folder of a job that was cancelled, so that it is not queued again.
pub(crate) const CANCELLED_FILE: &str = "cancelled.json";
/// The file with the batch script.
const SCRIPT_FILE: &str = "job.sh";

/// Settings of a target of Slurm.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlurmSettings {
    /// The number of nodes; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// The largest number of workers on a node; by default the workers divided by the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// The processors of each worker; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus_per_worker: Option<u32>,
    /// The partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The time limit of the allocation, as `sbatch` reads it. A run that needs longer is queued again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Seconds before the time limit at which a checkpoint is saved; 120 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_s: Option<u32>,
    /// Further options of `sbatch`, such as `--exclusive`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Where the end of a node is announced: absolute paths and addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drain_on: Vec<String>,
    /// The folder in which each job gets a folder, shared by all nodes; by default that of the records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
}

/// A cluster of Slurm, whose commands this machine has.
pub struct SlurmTarget {
    settings: SlurmSettings,
    jobs: PathBuf,
}

impl SlurmSettings {
    /// Returns the key whose value would begin another line of the script.
    pub(crate) fn broken_line(&self) -> Option<&'static str> {
        let values = [
            ("partition", &self.partition),
            ("account", &self.account),
            ("time", &self.time),
        ];
        let is_broken = |value: &String| value.chars().any(char::is_control);
        let broken = values
            .into_iter()
            .find(|(_, value)| value.as_ref().is_some_and(is_broken));
        broken.map(|(key, _)| key)
    }
}

impl SlurmTarget {
    /// Creates the target; `jobs` is the folder of the registry.
    #[must_use]
    pub fn new(settings: SlurmSettings, jobs: &Path) -> Self {
        Self {
            settings,
            jobs: jobs.to_owned(),
        }
    }

    fn paths(&self, name: &str) -> JobPaths {
        let folder = self.settings.folder.as_ref().unwrap_or(&self.jobs);
        JobPaths::new(folder.join(name))
    }

    fn slots(&self, request: &SubmitRequest) -> u32 {
        let nodes = self.settings.nodes.unwrap_or(1).max(1);
        let slots = self
            .settings
            .slots
            .unwrap_or(request.workers.div_ceil(nodes));
        slots.max(1)
    }

    /// Checks whether a run fits the allocation.
    fn check(&self, request: &SubmitRequest) -> Result<(), SubmitError> {
        request.check_secrets()?;
        request.check_no_env_from()?;
        let nodes = self.settings.nodes.unwrap_or(1);
        let slots = u64::from(self.slots(request)) * u64::from(nodes);
        if u64::from(request.workers) > slots {
            let problem = format!(
                "cannot start {} workers: {nodes} nodes have {slots} slots",
                request.workers
            );
            let help =
                "set `nodes` or `slots` of the target to more, or pass `-n` with fewer workers";
            return Err(SubmitError::invalid(problem, help));
        }
        if nodes > 1 && !request.is_elastic {
            return Err(SubmitError::invalid(
                "cannot use several nodes for a run with `elastic.enabled = false`",
                "remove `elastic.enabled` from the run file, or set `nodes = 1`",
            ));
        }
        Ok(())
    }

    fn command_of(&self, paths: &JobPaths, request: &SubmitRequest) -> ProcessCommand {
        let arguments = LauncherArguments {
            run_file: request
                .run_file
                .as_ref()
                .map(|path| path.display().to_string()),
            results: &paths.results(),
            listen: request.is_elastic.then(|| ADDRESS_WORD.to_owned()),
            here: self.slots(request),
            request,
        };
        let drain = drain_sources::words(&self.settings.drain_on);
        ProcessCommand {
            arguments: [arguments.words(), drain].concat(),
            directory: request.directory.clone(),
        }
    }

    /// Writes everything except the batch script to the folder of a job.
    fn prepare(
        &self,
        name: &str,
        request: &SubmitRequest,
        sent: &SentScript,
    ) -> Result<(), SubmitError> {
        let paths = self.paths(name);
        remove_if_exists(&paths.folder().join(CANCELLED_FILE))?;
        let launcher = paths.process(0);
        launcher.prepare(&self.command_of(&paths, request))?;
        if let Some(from) = &request.continues {
            fetching::copy_checkpoints(from, &paths.results())?;
        }
        sending::note(paths.folder(), sent)
    }

    /// Writes the folder of a job and sends its batch script. Returns the number.
    fn send(&self, name: &str, request: &SubmitRequest) -> Result<u64, SubmitError> {
        let paths = self.paths(name);
        let file = paths.folder().join(SCRIPT_FILE);
        let sent = SentScript {
            script: file.clone(),
            task: None,
        };
        self.prepare(name, request, &sent)?;
        let program = self.store_program(&paths, &request.program.path)?;
        let needs = (self.slots(request), request.resources);
        let text = script::text(&self.settings, name, &paths, &program, needs);
        std::fs::write(&file, text).map_err(SubmitError::file("write", &file))?;
        send(name, &file, &request.directory)
    }

    /// Writes the folders of jobs and sends their array, which begins with `first`. Returns the number.
    fn send_array(
        &self,
        (first, request): &(String, SubmitRequest),
        jobs: &[(String, SubmitRequest)],
        side_by_side: u32,
    ) -> Result<u64, SubmitError> {
        let mut folders = Vec::new();
        let file = self.paths(first).folder().join(SCRIPT_FILE);
        for (task, (name, request)) in jobs.iter().enumerate() {
            let paths = self.paths(name);
            let sent = SentScript {
                script: file.clone(),
                task: u32::try_from(task).ok(),
            };
            self.prepare(name, request, &sent)?;
            // Each folder has the program, because those of jobs that are over may be removed.
            let program = self.paths(first).folder().join("ronde");
            let link = paths.folder().join("ronde");
            if name == first || std::fs::hard_link(&program, link).is_err() {
                self.store_program(&paths, &request.program.path)?;
            }
            folders.push(paths.folder().to_owned());
        }
        let needs = (self.slots(request), request.resources);
        let text = script::array_text(&self.settings, first, &folders, side_by_side, needs);
        std::fs::write(&file, text).map_err(SubmitError::file("write", &file))?;
        send(first, &file, &request.directory)
    }

    /// Creates the folders of jobs and calls `send`. Without a job of Slurm, it removes them again.
    fn in_new_folders(
        &self,
        names: &[&str],
        send: impl FnOnce() -> Result<u64, SubmitError>,
    ) -> Result<u64, SubmitError> {
        let mut claimed = Vec::new();
        let claims = names.iter().try_for_each(|name| {
            let paths = self.paths(name);
            job_folder::claim(&paths, &self.jobs, name)?;
            claimed.push((paths, name));
            Ok(())
        });
        let sent = claims.and_then(|()| send());
        if !matches!(sent, Ok(_) | Err(SubmitError::MayRun { .. })) {
            for (paths, name) in claimed {
                // The reason why nothing was sent matters more.
                let _ = job_folder::remove(&paths, &self.jobs, name);
            }
        }
        sent
    }

    /// Stores this program where a later build does not replace it while the job waits. Returns its path.
    fn store_program(&self, paths: &JobPaths, program: &Path) -> Result<PathBuf, SubmitError> {
        let to = paths.folder().join("ronde");
        let copied = std::fs::copy(program, &to);
        copied.map_err(SubmitError::file("write", &to))?;
        Ok(to)
    }
}

/// Returns the number of the Slurm job, as its commands read it, and the job's files.
fn placed(job: &SubmittedJob) -> Option<(String, JobPaths)> {
    match &job.placement {
        Some(JobPlacement::Slurm { id, task, folder }) => {
            // Another one than in the record if the script was sent twice.
            let leading = sending::leading(folder);
            let id = leading.map_or(*id, |leading| leading.submitted_id());
            let id = match task {
                Some(task) => format!("{id}_{task}"),
                None => id.to_string(),
            };
            Some((id, JobPaths::new(folder)))
        }
        _ => None,
    }
}

/// Sends the batch script of a job, or of an array that begins with it, to Slurm and returns the number.
fn send(job: &str, script: &Path, directory: &Path) -> Result<u64, SubmitError> {
    let directory = directory.display().to_string();
    let file = script.display().to_string();
    let answer = call("sbatch", &["--parsable", "--chdir", &directory, &file]);
    let answer = answer.map_err(|error| match client::may_have_arrived(&error) {
        true => SubmitError::MayRun {
            job: job.to_owned(),
            problem: error.to_string(),
        },
        false => client::refusal(error),
    })?;
    let id = answer.trim().split(';').next();
    let id = id.and_then(|id| id.parse::<u64>().ok());
    id.ok_or_else(|| SubmitError::MayRun {
        job: job.to_owned(),
        problem: format!(
            "cannot run `sbatch`: unexpected answer `{}`",
            answer.trim().escape_debug()
        ),
    })
}

impl Target for SlurmTarget {
    fn preview(&self, name: &str, request: &SubmitRequest) -> Result<JobPreview, SubmitError> {
        self.check(request)?;
        let paths = self.paths(name);
        let program = paths.folder().join("ronde");
        Ok(JobPreview::new(script::text(
            &self.settings,
            name,
            &paths,
            &program,
            (self.slots(request), request.resources),
        )))
    }

    fn submit(
        &self,
        name: &str,
        request: &SubmitRequest,
        placed: &mut dyn FnMut(JobPlacement) -> Result<(), SubmitError>,
    ) -> Result<(), SubmitError> {
        self.check(request)?;
        let id = self.in_new_folders(&[name], || self.send(name, request))?;
        let folder = self.paths(name).folder().to_owned();
        let kept = placed(JobPlacement::Slurm {
            id,
            task: None,
            folder,
        });
        if kept.is_err() {
            // Without a record, no command could end it.
            call("scancel", &[&id.to_string()])?;
        }
        kept
    }

    fn has_arrays(&self) -> bool {
        true
    }

    fn submit_array(
        &self,
        jobs: &[(String, SubmitRequest)],
        side_by_side: u32,
        placed: &mut dyn FnMut(usize, JobPlacement) -> Result<(), SubmitError>,
    ) -> Result<(), SubmitError> {
        let Some(first) = jobs.first() else {
            return Ok(());
        };
        jobs.iter()
            .try_for_each(|(_, request)| self.check(request))?;
        let names: Vec<&str> = jobs.iter().map(|(name, _)| name.as_str()).collect();
        let id = self.in_new_folders(&names, || self.send_array(first, jobs, side_by_side))?;
        for (task, (name, _)) in jobs.iter().enumerate() {
            let kept = placed(
                task,
                JobPlacement::Slurm {
                    id,
                    task: u32::try_from(task).ok(),
                    folder: self.paths(name).folder().to_owned(),
                },
            );
            if kept.is_err() {
                // Without records, no command could end it.
                call("scancel", &[&id.to_string()])?;
                return kept;
            }
        }
        Ok(())
    }

    fn state(&self, job: &SubmittedJob, is_cancelled: bool) -> Result<JobState, SubmitError> {
        match placed(job) {
            Some((id, paths)) => queue::state(&id, &paths, is_cancelled),
            None => Ok(state_before_placement(job, is_cancelled)),
        }
    }

    fn states(&self, jobs: &[(&SubmittedJob, bool)]) -> Option<Vec<JobState>> {
        let placed: Vec<_> = jobs.iter().map(|(job, _)| placed(job)).collect();
        let requests = jobs.iter().zip(&placed);
        let requests: Vec<_> = requests
            .filter_map(|((_, is_cancelled), placed)| {
                let (id, paths) = placed.as_ref()?;
                Some((id.as_str(), paths, *is_cancelled))
            })
            .collect();
        let mut answers = queue::states(&requests).into_iter();
        let states = jobs
            .iter()
            .zip(&placed)
            .map(|((job, is_cancelled), placed)| match placed {
                Some(_) => answers.next().unwrap_or(JobState::Lost),
                None => state_before_placement(job, *is_cancelled),
            });
        Some(states.collect())
    }

    fn logs(
        &self,
        job: &SubmittedJob,
        request: LogRequest,
        out: &mut dyn Write,
    ) -> Result<(), SubmitError> {
        let (id, paths) = placed(job).ok_or_else(|| not_placed(job))?;
        let mut is_over = queue::watch(&id, &paths);
        let host = paths.host_of_rank(&[0, 1], request, &mut is_over);
        paths.write_logs(host, request, out, &mut is_over)
    }

    fn command(&self, job: &SubmittedJob, words: &[&str]) -> Result<i32, SubmitError> {
        run_command(&paths_of(job)?, words)
    }

    fn cancel(
        &self,
        job: &SubmittedJob,
        grace: Duration,
        report: fn(&str),
    ) -> Result<(), SubmitError> {
        match placed(job) {
            Some((id, paths)) => cancelling::cancel(&id, &paths, grace, report),
            None => Ok(()),
        }
    }

    fn fetch(&self, job: &SubmittedJob, to: &Path) -> Result<(), SubmitError> {
        fetching::copy_results(&paths_of(job)?, to)
    }

    fn can_continue(&self) -> bool {
        true
    }

    fn find_placement(&self, job: &SubmittedJob) -> Result<Option<JobPlacement>, SubmitError> {
        let folder = self.paths(&job.name).folder().to_owned();
        let found = sending::find(&folder)?;
        Ok(found.map(|(id, task)| JobPlacement::Slurm { id, task, folder }))
    }

    fn remove(&self, job: &SubmittedJob) -> Result<(), SubmitError> {
        match placed(job) {
            Some((_, paths)) => job_folder::remove(&paths, &self.jobs, &job.name),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_jobs_that_slurm_does_not_have_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("shared");
        let settings = SlurmSettings {
            folder: Some(shared.clone()),
            ..SlurmSettings::default()
        };
        let target = SlurmTarget::new(settings, &dir.path().join("records"));
        let left = || std::fs::read_dir(&shared).unwrap().count();
        let refused = || SubmitError::invalid("refused", "none");
        let sent = target.in_new_folders(&["a", "b"], || {
            assert_eq!(left(), 2);
            std::fs::write(shared.join("a/ronde"), "the program").unwrap();
            Err(refused())
        });
        assert!(matches!(sent, Err(SubmitError::Invalid { .. })));
        assert_eq!(left(), 0);
        // The folder of another job stays, and that of a job which Slurm may have.
        std::fs::create_dir(shared.join("b")).unwrap();
        let send = || panic!("nothing may be sent");
        target.in_new_folders(&["a", "b"], send).unwrap_err();
        assert_eq!(left(), 1);
        let may_run = || SubmitError::MayRun {
            job: "a".to_owned(),
            problem: "no answer".to_owned(),
        };
        let sent = target.in_new_folders(&["a"], || Err(may_run()));
        assert!(matches!(sent, Err(SubmitError::MayRun { .. })));
        assert_eq!(target.in_new_folders(&["c"], || Ok(7)).unwrap(), 7);
        assert_eq!(left(), 3);
    }
}
