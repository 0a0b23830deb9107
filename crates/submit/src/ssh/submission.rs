//! [`Submission`]: submits one job to hosts: checks them, copies missing files, starts the launcher and the agents.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::connection::{Input, each, tar};
use super::preparation::{COPY_MAX, CopiedProgram, HostNeeds, PreparedHost, script};
use super::start::{StartOrder, StartReport, TOKEN_WORD};
use super::{ANSWER_MAX, FOLDER, RemoteJob, SshTarget, facts};
use crate::drain_sources;
use crate::error::SubmitError;
use crate::fetching::checkpoint_files;
use crate::hosts::different;
use crate::input_folder::InputFolder;
use crate::job::{JobPlacement, PlacedHost};
use crate::job_paths::JobPaths;
use crate::launcher_arguments::LauncherArguments;
use crate::process_folder::{ProcessCommand, ProcessState};
use crate::shell_words;
use crate::target::SubmitRequest;

/// Time limit for a start on a host; longer than a process may take to begin.
const START_MAX: Duration = Duration::from_secs(120);
/// Time limit for all agents to join.
const JOIN_MAX: Duration = Duration::from_secs(40);
/// Creates the folder of a job and reports whether it is new, or was created for the same job, whose submitter was killed before
/// anything started. Arguments: the folder, the mark of the job.
const CREATE: &str = r#"
umask 077
if mkdir -- "$1"; then
  printf %s "$2" | cat > "$1/owner" && echo new && exit
  rm -f "$1/owner"; rmdir -- "$1"; exit 71
fi
if test ! -e "$1/launcher/process.json" && test "$(cat "$1/owner")" = "$2"; then echo new; exit; fi
test -e "$1" && echo exists
"#;
/// Stores checkpoints among the results. Argument: the folder of the job.
const STORE_CHECKPOINTS: &str =
    r#"umask 077; mkdir -p -- "$1/results" && tar -x -f - -C "$1/results""#;
/// Reports whether a host sees the folder of the first host, and creates it otherwise. Arguments: the folder, the mark of the
/// job, the number of the host.
const JOIN_FOLDER: &str = r#"
umask 077
owner=$(cat "$1/owner" 2>/dev/null)
if test "$owner" = "$2"; then echo shared; exit; fi
if test "$owner" = "$2-$3"; then echo separate; exit; fi
if mkdir -- "$1"; then
  printf %s "$2-$3" | cat > "$1/owner" && echo separate && exit
  rm -f "$1/owner"; rmdir -- "$1"; exit 71
fi
test -e "$1" && echo exists
"#;
/// Removes the folder of a job, unless another job has it, and the note about its program and data. Arguments: the folder, the mark of
/// the job.
pub(super) const REMOVE: &str = r#"
case "$(cat "$1/owner" 2>/dev/null)" in "$2"|"$2"-*) rm -rf -- "$1";; esac
test -e "$1" || rm -f "${1%/jobs/*}/uses/$2"-*
"#;

/// A job that is being placed.
pub(super) struct Submission<'a> {
    target: &'a SshTarget,
    name: &'a str,
    request: &'a SubmitRequest,
}

/// The hosts of a job with its folder.
struct HostsOfJob {
    hosts: Vec<PreparedHost>,
    paths: JobPaths,
    inputs: Option<InputFolder>,
}

/// The part of the status of a job that shows which hosts have joined.
#[derive(Deserialize)]
struct JoinedHosts {
    hosts: Vec<serde_json::Value>,
}

impl<'a> Submission<'a> {
    /// Checks whether a run fits the target.
    pub(super) fn new(
        target: &'a SshTarget,
        name: &'a str,
        request: &'a SubmitRequest,
    ) -> Result<Self, SubmitError> {
        request.check_no_env_from()?;
        let hosts = different(target.settings.hosts.clone())?;
        let slots: u32 = hosts.iter().map(|host| host.slots).sum();
        if request.workers > slots {
            return Err(SubmitError::invalid(
                format!(
                    "cannot start {} workers: the hosts have {slots} slots",
                    request.workers
                ),
                "pass `-n` with fewer workers, or write more slots: `HOST:SLOTS`",
            ));
        }
        if !request.is_elastic && hosts.len() > 1 {
            return Err(SubmitError::invalid(
                "cannot use several hosts for a run with `elastic.enabled = false`",
                "remove `elastic.enabled` from the run file, or use one host",
            ));
        }
        Ok(Self {
            target,
            name,
            request,
        })
    }

    fn folder(&self) -> &str {
        self.target.settings.folder.as_deref().unwrap_or(FOLDER)
    }

    fn inputs(&self) -> Result<Option<InputFolder>, SubmitError> {
        InputFolder::of(self.request)
    }

    /// Returns the preview of the files and commands for the hosts.
    pub(super) fn preview(&self) -> Result<String, SubmitError> {
        let settings = &self.target.settings;
        let mut lines = Vec::new();
        if let Some(inputs) = self.inputs()? {
            lines.push(format!(
                "copy {} files ({} bytes) of {} to {}/inputs/{}",
                inputs.files.len(),
                inputs.bytes,
                inputs.base.display(),
                self.folder(),
                inputs.hash
            ));
        }
        if settings.program.is_none() {
            let program = self.request.program.path.display();
            lines.push(format!("copy {program} to {}/bin", self.folder()));
        }
        let folder = JobPaths::new(format!("{}/jobs/{}", self.folder(), self.name));
        let run_file = self.request.run_file.as_ref();
        let run_file = run_file.and_then(|path| path.file_name());
        let name = run_file.map(|name| name.to_string_lossy().into_owned());
        let program = settings.program.as_deref().unwrap_or("ronde");
        for (number, host) in settings.hosts.iter().enumerate() {
            let words = match number {
                0 => self.launcher(
                    name.clone(),
                    &folder,
                    settings.address.as_deref(),
                    host.slots,
                ),
                _ => self.agent("ADDRESS", &host.host, host.slots, number, &folder),
            };
            let words = std::iter::once(program).chain(words.iter().map(String::as_str));
            let connection = self.target.connection(&host.host);
            lines.push(connection.words(&shell_words::join(words)));
        }
        Ok(lines.join("\n"))
    }

    /// Places the job.
    pub(super) fn run(
        &self,
        placed: &mut dyn FnMut(JobPlacement) -> Result<(), SubmitError>,
    ) -> Result<(), SubmitError> {
        let job = self.prepare()?;
        let placement: Vec<PlacedHost> = job
            .hosts
            .iter()
            .map(|prepared| PlacedHost {
                host: prepared.host.host.clone(),
                slots: prepared.host.slots,
            })
            .collect();
        let program = job.hosts[0].program.clone();
        self.claim_folder(&job)?;
        let mut was_placed = false;
        let started = self.join_folders(&job).and_then(|()| {
            self.send_checkpoints(&job)?;
            placed(JobPlacement::Ssh {
                hosts: placement.clone(),
                folder: job.paths.folder().to_owned(),
                program: program.clone(),
            })?;
            was_placed = true;
            self.start(&job)
        });
        if started.is_ok() {
            return started;
        }
        // Nothing may be left behind. Before the placement, nothing was started, and another job may have the folder.
        let remote = RemoteJob {
            hosts: &placement,
            paths: job.paths.clone(),
            program: &program,
        };
        let stopped = match was_placed {
            true => self.target.stop(&remote, Duration::ZERO),
            false => Ok(()),
        };
        match (started, stopped) {
            (Err(error), Err(_)) => Err(SubmitError::MayRun {
                job: self.name.to_owned(),
                problem: error.to_string(),
            }),
            (started, _) => {
                self.remove_folders(&job);
                started
            }
        }
    }

    /// Checks all hosts and copies missing files.
    fn prepare(&self) -> Result<HostsOfJob, SubmitError> {
        let settings = &self.target.settings;
        let program = match settings.program {
            Some(_) => None,
            None => Some(CopiedProgram::open(&self.request.program.path)?),
        };
        let needs = HostNeeds {
            folder: self.folder(),
            program,
            installed: settings.program.as_deref(),
            inputs: self.inputs()?,
            mark: self.target.mark(&JobPaths::new(self.name)),
        };
        let hosts = each(&settings.hosts, |host| {
            PreparedHost::prepare(&needs, host, self.target.connection(&host.host))
        });
        let hosts: Vec<PreparedHost> = hosts.into_iter().collect::<Result<_, _>>()?;
        let facts: Vec<_> = hosts
            .iter()
            .map(|host| (host.host.host.as_str(), host.facts.clone()))
            .collect();
        facts::check(&self.request.program.version, &facts)?;
        let first = &hosts[0];
        if let Some(other) = hosts.iter().find(|host| host.folder != first.folder) {
            return Err(other.connection.failed(format!(
                "its folder {} has another path than {} of `{}`\n  \
                 help: set `folder` of the target to a path that is the same on all hosts",
                other.folder.display(),
                first.folder.display(),
                first.host.host
            )));
        }
        Ok(HostsOfJob {
            paths: JobPaths::new(first.folder.join("jobs").join(self.name)),
            hosts,
            inputs: needs.inputs,
        })
    }

    /// Creates the folder of the job on the first host, where no other job may have it.
    fn claim_folder(&self, job: &HostsOfJob) -> Result<(), SubmitError> {
        let folder = job.paths.folder().display().to_string();
        let first = &job.hosts[0];
        let mark = self.target.mark(&job.paths);
        let call = script(CREATE, &[&folder, &mark]);
        let answer = first.connection.call(&call, Input::Nothing, ANSWER_MAX)?;
        match answer.trim() {
            "new" => Ok(()),
            _ => Err(self.other_job(first, &folder)),
        }
    }

    /// Returns the error of a host whose folder another job has.
    fn other_job(&self, host: &PreparedHost, folder: &str) -> SubmitError {
        SubmitError::invalid(
            format!(
                "host `{}` has the folder of a job `{}` already: {folder} is that of another job, which may be running",
                host.host.host, self.name
            ),
            "choose another name with `--name`",
        )
    }

    /// Creates the folder on the other hosts, and checks whether all can save checkpoints together.
    fn join_folders(&self, job: &HostsOfJob) -> Result<(), SubmitError> {
        let folder = job.paths.folder().display().to_string();
        let (first, mark) = (&job.hosts[0], self.target.mark(&job.paths));
        let others: Vec<(usize, &PreparedHost)> = job.hosts.iter().enumerate().skip(1).collect();
        let joined = each(&others, |(number, host)| {
            let call = script(JOIN_FOLDER, &[&folder, &mark, &number.to_string()]);
            host.connection.call(&call, Input::Nothing, ANSWER_MAX)
        });
        for ((_, host), answer) in others.iter().zip(joined) {
            let answer = answer?;
            if answer.contains("exists") {
                return Err(self.other_job(host, &folder));
            }
            if !answer.contains("shared") && self.request.saves_in_output {
                return Err(host.connection.failed(format!(
                    "it does not share {folder} with `{}`, so that checkpoints cannot be complete\n  \
                     help: set `folder` of the target to a shared folder, or save checkpoints to an object store: \
                     --set checkpoint.to=s3://BUCKET/PREFIX",
                    first.host.host
                )));
            }
        }
        Ok(())
    }

    /// Copies the checkpoints of the run that this one continues to the first host, whose folder all others share.
    fn send_checkpoints(&self, job: &HostsOfJob) -> Result<(), SubmitError> {
        let Some(from) = &self.request.continues else {
            return Ok(());
        };
        let folder = job.paths.folder().display().to_string();
        let store = script(STORE_CHECKPOINTS, &[&folder]);
        let sent = Input::Output(tar(from, &checkpoint_files(from)?)?);
        let first = &job.hosts[0].connection;
        first.call(&store, sent, COPY_MAX).map(|_| ())
    }

    fn remove_folders(&self, job: &HostsOfJob) {
        let folder = job.paths.folder().display().to_string();
        let mark = self.target.mark(&job.paths);
        for _removed in each(&job.hosts, |host| {
            let call = script(REMOVE, &[&folder, &mark]);
            host.connection.call(&call, Input::Nothing, ANSWER_MAX)
        }) {}
    }

    /// Starts the launcher and the agents, and waits until all have joined.
    fn start(&self, job: &HostsOfJob) -> Result<(), SubmitError> {
        let first = &job.hosts[0];
        let address = match (&self.target.settings.address, job.hosts.len()) {
            (Some(address), _) => Some(address.clone()),
            (None, 1) => None,
            (None, _) => first.address.clone(),
        };
        let run_file = job
            .inputs
            .as_ref()
            .map(|inputs| first.input(inputs, &inputs.run_file));
        let run_file = run_file.map(|path| path.display().to_string());
        let words = self.launcher(run_file, &job.paths, address.as_deref(), first.host.slots);
        let report = self.start_process(job, 0, words, None)?;
        let (address, token) = match (report.state, report.address, report.token) {
            // A short run.
            (ProcessState::Exited { code: 0, .. }, ..) => return Ok(()),
            (ProcessState::Running { .. }, Some(address), Some(token)) => (address, token),
            (ProcessState::Running { .. }, ..) if !self.request.is_elastic => return Ok(()),
            (state, ..) => {
                return Err(SubmitError::EndedEarly {
                    job: self.name.to_owned(),
                    code: match state {
                        ProcessState::Exited { code, .. } => code,
                        _ => 3,
                    },
                    output: report.output,
                });
            }
        };
        let agents: Vec<usize> = (1..job.hosts.len()).collect();
        let started = each(&agents, |number| {
            let host = &job.hosts[*number].host;
            let words = self.agent(&address, &host.host, host.slots, *number, &job.paths);
            self.start_process(job, *number, words, Some(token.clone()))
        });
        started.into_iter().collect::<Result<Vec<_>, _>>()?;
        self.wait_for_agents(job)
    }

    fn launcher(
        &self,
        run_file: Option<String>,
        paths: &JobPaths,
        address: Option<&str>,
        slots: u32,
    ) -> Vec<String> {
        let listen = address.unwrap_or("127.0.0.1").to_owned();
        let arguments = LauncherArguments {
            run_file,
            results: &paths.results(),
            listen: self.request.is_elastic.then_some(listen),
            here: slots,
            request: self.request,
        };
        let drain = drain_sources::words(&self.target.settings.drain_on);
        [arguments.words(), drain].concat()
    }

    fn agent(
        &self,
        address: &str,
        host: &str,
        slots: u32,
        number: usize,
        paths: &JobPaths,
    ) -> Vec<String> {
        let logs = paths.process_path(number).display().to_string();
        let slots = slots.to_string();
        let words = ["join", address, "--token-file", TOKEN_WORD, "-n", &slots];
        let more = ["--host", host, "--logs", &logs];
        let words = words.into_iter().chain(more).map(str::to_owned);
        let drain = drain_sources::words(&self.target.settings.drain_on);
        words.chain(drain).collect()
    }

    fn start_process(
        &self,
        job: &HostsOfJob,
        number: usize,
        arguments: Vec<String>,
        token: Option<String>,
    ) -> Result<StartReport, SubmitError> {
        let host = &job.hosts[number];
        let directory: PathBuf = job.paths.folder().to_owned();
        let order = StartOrder {
            folder: job.paths.process_path(number),
            command: ProcessCommand {
                arguments,
                directory: directory.clone(),
            },
            token,
            leads: (number == 0).then_some(directory),
            is_elastic: self.request.is_elastic,
        };
        let text = serde_json::to_vec(&order)
            .map_err(|error| host.connection.failed(error.to_string()))?;
        let call = shell_words::join([host.program.as_str(), "__job", "start"]);
        let answer = host
            .connection
            .call(&call, Input::Bytes(&text), START_MAX)?;
        host.connection.parse(&answer)
    }

    /// Waits until the coordinator lists all hosts, or the run is over.
    fn wait_for_agents(&self, job: &HostsOfJob) -> Result<(), SubmitError> {
        let first = &job.hosts[0];
        let results = job.paths.results().display().to_string();
        let status = shell_words::join([first.program.as_str(), "status", "--json", &results]);
        let mut unreachable = None;
        let has_all = ronde_clock::wait_until(JOIN_MAX, || {
            let answer = first.connection.call(&status, Input::Nothing, ANSWER_MAX);
            unreachable = match &answer {
                Err(SubmitError::Host {
                    is_temporary: true,
                    problem,
                    ..
                }) => Some(problem.clone()),
                _ => None,
            };
            let listed = answer.and_then(|answer| first.connection.parse::<JoinedHosts>(&answer));
            listed.is_ok_and(|status| status.hosts.len() >= job.hosts.len()) || self.is_over(job)
        });
        if has_all {
            return Ok(());
        }
        if let Some(problem) = unreachable {
            return Err(first.connection.failed(problem));
        }
        let mut outputs = Vec::new();
        for (number, host) in job.hosts.iter().enumerate().skip(1) {
            let log = job.paths.process(number).output().display().to_string();
            let tail = shell_words::join(["tail", "-n", "5", &log]);
            let text = host.connection.call(&tail, Input::Nothing, ANSWER_MAX);
            let text = text.unwrap_or_else(|error| error.to_string());
            outputs.push(format!("{}: {}", host.host.host, text.trim()));
        }
        Err(first.connection.failed(format!(
            "the other hosts did not join within {} s:\n{}\n  \
             help: they must reach it by TCP; set `address` of the target to its address in their network",
            JOIN_MAX.as_secs(),
            outputs.join("\n")
        )))
    }

    fn is_over(&self, job: &HostsOfJob) -> bool {
        let first = &job.hosts[0];
        let folder = job.paths.process_path(0).display().to_string();
        let call = shell_words::join([first.program.as_str(), "__job", "state", &folder]);
        let answer = first.connection.call(&call, Input::Nothing, ANSWER_MAX);
        let state = answer.and_then(|answer| first.connection.parse::<ProcessState>(&answer));
        state.is_ok_and(|state| matches!(state, ProcessState::Exited { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::preparation::tests::run_script;
    use super::*;

    #[test]
    fn a_folder_is_shared_by_its_own_job_only_and_removed_by_no_other_one() {
        let disk = tempfile::tempdir().unwrap();
        let folder = disk.path().join("job").display().to_string();
        let run = |text: &str, arguments: &[&str]| run_script(text, arguments, b"").1;
        for (script, arguments) in [
            (CREATE, &[&*folder, "mine"][..]),
            (JOIN_FOLDER, &[&*folder, "mine", "1"]),
        ] {
            let full = format!("cat() {{ command cat \"$@\" > /dev/full; }}\n{script}");
            assert_eq!(run_script(&full, arguments, b"").0, 71);
            assert!(!disk.path().join("job").exists(), "the disk was full");
        }
        assert_eq!(run(CREATE, &[&folder, "mine"]), "new");
        assert_eq!(
            run(CREATE, &[&folder, "mine"]),
            "new",
            "nothing was started"
        );
        assert_eq!(run(CREATE, &[&folder, "other"]), "exists");
        assert_eq!(run(JOIN_FOLDER, &[&folder, "mine", "1"]), "shared");
        assert_eq!(run(JOIN_FOLDER, &[&folder, "other", "1"]), "exists");
        run(REMOVE, &[&folder, "other"]);
        assert!(disk.path().join("job").exists());
        run(REMOVE, &[&folder, "mine"]);
        assert!(!disk.path().join("job").exists());
        // A host with a separate disk, whose folder stays after a submitter that was killed.
        for _ in 0..2 {
            assert_eq!(run(JOIN_FOLDER, &[&folder, "mine", "2"]), "separate");
        }
        assert_eq!(run(JOIN_FOLDER, &[&folder, "mine", "1"]), "exists");
        run(REMOVE, &[&folder, "mine"]);
        assert!(!disk.path().join("job").exists());
    }
}
