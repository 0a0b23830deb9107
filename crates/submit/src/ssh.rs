//! [`SshTarget`]: jobs on hosts over SSH. The launcher runs on the first host, an agent on each other one; all of them
//! are detached and need no connection to the submitting machine.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::SubmitError;
use crate::hosts::{HostSlots, different, parse_host_file};
use crate::job::{JobPlacement, PlacedHost, SubmittedJob};
use crate::job_folder;
use crate::job_paths::JobPaths;
use crate::launcher_arguments::folder_word;
use crate::local::{not_placed, state_before_placement};
use crate::preview::JobPreview;
use crate::process_folder::ProcessState;
use crate::shell_words;
use crate::state::JobState;
use crate::target::{LogRequest, SubmitRequest, Target};

mod changed_key;
mod connection;
mod facts;
mod fetch;
mod growth;
mod logs;
mod preparation;
mod start;
mod submission;
mod unused;

pub use facts::HostFacts;
pub use start::{StartOrder, StartReport};

use connection::{Input, SshConnection, each};
use submission::Submission;

/// The folder on the hosts, unless the target names another one.
const FOLDER: &str = "~/.local/share/ronde";
/// Time limit for short answers of a host.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Time limit for the removal of data.
const REMOVE_MAX: Duration = Duration::from_secs(600);
/// Time for the agents to end after the launcher.
const AGENT_GRACE: Duration = Duration::from_secs(10);

/// Settings of a target of hosts over SSH.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SshSettings {
    /// The hosts: `host:slots`. The first one runs the launcher.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostSlots>,
    /// A file with the hosts, as `horovodrun` and `mpirun` read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostfile: Option<PathBuf>,
    /// The folder of ronde on the hosts, `~/.local/share/ronde` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Further arguments of `ssh`, such as `-F` and a file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// The path of `ronde` on the hosts; by default this program is copied to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The address of the first host at which the others reach it; by default the one to which `ssh` has connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Where a cloud announces the end of a host: absolute paths of files that appear, or addresses. Its workers then leave, and the
    /// launcher saves a checkpoint and ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drain_on: Vec<String>,
}

impl SshSettings {
    /// Reads the host file, if there is one; relative paths start from `base`.
    ///
    /// # Errors
    /// The file is not valid, or has no hosts.
    pub fn resolve(mut self, base: &Path) -> Result<Self, SubmitError> {
        if let Some(file) = self.hostfile.take() {
            let path = base.join(file);
            let text = std::fs::read_to_string(&path).map_err(SubmitError::file("read", &path))?;
            self.hosts.extend(parse_host_file(&text)?);
        }
        self.hosts = different(self.hosts)?;
        Ok(self)
    }
}

/// Hosts over SSH.
pub struct SshTarget {
    settings: SshSettings,
    /// The folder for sockets of shared connections.
    sockets: PathBuf,
}

/// A job on hosts.
struct RemoteJob<'a> {
    hosts: &'a [PlacedHost],
    paths: JobPaths,
    program: &'a str,
}

impl SshTarget {
    /// Creates the target; `state` is the user's folder for the state of ronde.
    #[must_use]
    pub fn new(settings: SshSettings, state: &Path) -> Self {
        Self {
            settings,
            sockets: state.join("ssh"),
        }
    }

    /// Returns the mark that distinguishes a job from jobs of the same name that other machines or users submit.
    fn mark(&self, paths: &JobPaths) -> String {
        let name = paths.folder().file_name().unwrap_or_default();
        job_folder::owner(&self.sockets, &name.to_string_lossy())
    }

    /// Runs a script with the folder and the mark of a job on each of its hosts.
    fn call_everywhere(
        &self,
        job: &SubmittedJob,
        script: &str,
        limit: Duration,
    ) -> Result<(), SubmitError> {
        let Some(remote) = self.job(job) else {
            return Ok(());
        };
        let folder = remote.paths.folder().display().to_string();
        let call = preparation::script(script, &[&folder, &self.mark(&remote.paths)]);
        let called = each(remote.hosts, |host| {
            let connection = self.connection(&host.host);
            connection.call(&call, Input::Nothing, limit)
        });
        called.into_iter().try_for_each(|called| called.map(|_| ()))
    }

    fn connection(&self, host: &str) -> SshConnection {
        SshConnection::new(host, &self.settings.options, &self.sockets)
    }

    fn job<'a>(&self, job: &'a SubmittedJob) -> Option<RemoteJob<'a>> {
        match &job.placement {
            Some(JobPlacement::Ssh {
                hosts,
                folder,
                program,
            }) => Some(RemoteJob {
                hosts,
                paths: JobPaths::new(folder),
                program,
            }),
            _ => None,
        }
    }

    fn placed<'a>(&self, job: &'a SubmittedJob) -> Result<RemoteJob<'a>, SubmitError> {
        self.job(job).ok_or_else(|| not_placed(job))
    }

    /// Asks the first host for the state of the launcher.
    fn process_state(&self, job: &RemoteJob<'_>) -> Result<ProcessState, SubmitError> {
        let folder = job.paths.process_path(0).display().to_string();
        let connection = self.connection(&job.hosts[0].host);
        let command = shell_words::join([job.program, "__job", "state", &folder]);
        let answer = connection.call(&command, Input::Nothing, ANSWER_MAX)?;
        connection.parse(&answer)
    }

    /// Asks the first host for the states of the launchers of several jobs with one program; `None` where only a request
    /// about the job alone returns the reason.
    fn process_states(
        &self,
        host: &str,
        program: &str,
        folders: &[String],
    ) -> Result<Vec<Option<ProcessState>>, SubmitError> {
        let connection = self.connection(host);
        let words = [program, "__job", "state"].into_iter();
        let command = shell_words::join(words.chain(folders.iter().map(String::as_str)));
        let answer = connection.call(&command, Input::Nothing, ANSWER_MAX)?;
        answer.lines().map(|line| connection.parse(line)).collect()
    }

    /// Ends the processes on all hosts: first the launcher, whose end ends the agents. Tries all hosts before it returns
    /// the first error.
    fn stop(&self, job: &RemoteJob<'_>, grace: Duration) -> Result<(), SubmitError> {
        let stop = |number: usize, grace: Duration| {
            let Some(host) = job.hosts.get(number) else {
                return Ok(());
            };
            let folder = job.paths.process_path(number).display().to_string();
            let grace_s = grace.as_secs().to_string();
            let words = [job.program, "__job", "stop", "--grace", &grace_s, &folder];
            let connection = self.connection(&host.host);
            let command = shell_words::join(words);
            connection
                .call(&command, Input::Nothing, grace + ANSWER_MAX * 2)
                .map(|_| ())
        };
        let launcher = stop(0, grace);
        let agents: Vec<usize> = (1..job.hosts.len()).collect();
        let agents = each(&agents, |number| stop(*number, grace.min(AGENT_GRACE)));
        launcher?;
        agents.into_iter().collect()
    }
}

/// Returns the state of a job whose launcher has this state.
fn state_of(state: &ProcessState, job: &SubmittedJob, is_cancelled: bool) -> JobState {
    match state {
        ProcessState::NotStarted => state_before_placement(job, is_cancelled),
        state => JobState::of(state, is_cancelled),
    }
}

impl Target for SshTarget {
    fn preview(&self, name: &str, request: &SubmitRequest) -> Result<JobPreview, SubmitError> {
        let text = Submission::new(self, name, request)?.preview()?;
        Ok(JobPreview::new(text))
    }

    fn submit(
        &self,
        name: &str,
        request: &SubmitRequest,
        placed: &mut dyn FnMut(JobPlacement) -> Result<(), SubmitError>,
    ) -> Result<(), SubmitError> {
        Submission::new(self, name, request)?.run(placed)
    }

    fn state(&self, job: &SubmittedJob, is_cancelled: bool) -> Result<JobState, SubmitError> {
        let Some(remote) = self.job(job) else {
            return Ok(state_before_placement(job, is_cancelled));
        };
        let state = self.process_state(&remote)?;
        Ok(state_of(&state, job, is_cancelled))
    }

    fn states(&self, jobs: &[(&SubmittedJob, bool)]) -> Option<Vec<JobState>> {
        let mut groups: BTreeMap<(&str, &str), Vec<(usize, String)>> = BTreeMap::new();
        for (position, (job, _)) in jobs.iter().enumerate() {
            if let Some(remote) = self.job(job) {
                let folder = remote.paths.process_path(0).display().to_string();
                let group = groups.entry((&remote.hosts[0].host, remote.program));
                group.or_default().push((position, folder));
            }
        }
        let groups: Vec<_> = groups.into_iter().collect();
        let answers = each(&groups, |((host, program), group)| {
            let folders: Vec<String> = group.iter().map(|(_, folder)| folder.clone()).collect();
            self.process_states(host, program, &folders)
        });
        let mut found: Vec<Option<JobState>> = jobs.iter().map(|_| None).collect();
        for ((_, group), answer) in groups.iter().zip(answers) {
            for (number, (position, _)) in group.iter().enumerate() {
                found[*position] = match &answer {
                    Err(error) => Some(JobState::unknown(error)),
                    Ok(states) => states.get(number).cloned().flatten().map(|state| {
                        let (job, is_cancelled) = jobs[*position];
                        state_of(&state, job, is_cancelled)
                    }),
                };
            }
        }
        let alone = |(job, is_cancelled): &(&SubmittedJob, bool)| {
            let state = self.state(job, *is_cancelled);
            state.unwrap_or_else(|error| JobState::unknown(&error))
        };
        let states = found.into_iter().zip(jobs);
        let states = states.map(|(state, job)| state.unwrap_or_else(|| alone(job)));
        Some(states.collect())
    }

    fn logs(
        &self,
        job: &SubmittedJob,
        request: LogRequest,
        out: &mut dyn Write,
    ) -> Result<(), SubmitError> {
        logs::logs(self, &self.placed(job)?, request, out)
    }

    fn command(&self, job: &SubmittedJob, words: &[&str]) -> Result<i32, SubmitError> {
        let remote = self.placed(job)?;
        let words = folder_word(words, &remote.paths.results());
        let words = std::iter::once(remote.program).chain(words.iter().map(String::as_str));
        let connection = self.connection(&remote.hosts[0].host);
        connection.run(&shell_words::join(words))
    }

    fn cancel(&self, job: &SubmittedJob, grace: Duration, _: fn(&str)) -> Result<(), SubmitError> {
        match self.job(job) {
            Some(remote) => self.stop(&remote, grace),
            None => Ok(()),
        }
    }

    fn fetch(&self, job: &SubmittedJob, to: &Path) -> Result<(), SubmitError> {
        fetch::fetch(self, &self.placed(job)?, to)
    }

    fn can_continue(&self) -> bool {
        true
    }

    fn has_started(&self, job: &SubmittedJob) -> Result<bool, SubmitError> {
        match self.job(job) {
            Some(remote) => Ok(self.process_state(&remote)? != ProcessState::NotStarted),
            None => Ok(false),
        }
    }

    fn remove(&self, job: &SubmittedJob) -> Result<(), SubmitError> {
        self.call_everywhere(job, submission::REMOVE, ANSWER_MAX)
    }

    fn remove_unused(&self, job: &SubmittedJob) -> Result<(), SubmitError> {
        self.call_everywhere(job, unused::REMOVE_UNUSED, REMOVE_MAX)
    }

    fn add_host(&self, job: &SubmittedJob, host: &HostSlots) -> Result<JobPlacement, SubmitError> {
        growth::add(self, &self.placed(job)?, host, job.output.is_some())
    }

    fn drain_host(
        &self,
        job: &SubmittedJob,
        host: &str,
        grace: Duration,
    ) -> Result<(), SubmitError> {
        growth::drain(self, &self.placed(job)?, host, grace)
    }
}
