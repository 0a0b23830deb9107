//! [`RayTarget`]: jobs on a cluster of Ray, through its Jobs REST interface. A job is one job of Ray: its entrypoint leads the
//! run on one node, and starts an agent on each other one as a task.
//!
//! So Ray's own commands show and end the job. Commands about a job run beside it as short jobs of Ray on the same node, because
//! the interface has no other way into a node. Only the agents on other nodes need Python: they are tasks of Ray, which has no
//! other interface for them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::drain_sources;
use crate::error::SubmitError;
use crate::fetching::{self, LAUNCHER_LOG};
use crate::job::{JobPlacement, SubmittedJob};
use crate::job_paths::JobPaths;
use crate::launcher_arguments::{LauncherArguments, folder_word};
use crate::local::{not_placed, state_before_placement};
use crate::platform::insert;
use crate::preview::JobPreview;
use crate::shell_words;
use crate::state::JobState;
use crate::target::{LogRequest, SubmitRequest, Target};

mod allocation;
mod api;
mod package;
pub(crate) mod text_archive;

pub use allocation::{RayAllocation, keep_package, remove_package};

use allocation::{ADDRESS_WORD, INPUTS_WORD};
use api::RayApi;
use package::RayPackage;

/// The folder of the jobs on the nodes.
const FOLDER: &str = "/tmp/ronde-jobs";
/// The path of the program in the package.
const PROGRAM: &str = "./ronde";
/// Time limit for a job that was ordered to end.
const END_MAX: Duration = Duration::from_secs(90);
/// Time limit for a command on the node of a launcher, besides the time that it takes itself.
const COMMAND_MAX: Duration = Duration::from_secs(180);
/// Interval between two requests about a job.
const ASK_EVERY: Duration = Duration::from_millis(300);
/// The share of a node's own resource that a command on it takes.
const NODE_SHARE: f64 = 0.001;
/// Begins the output of a command, after the lines that Ray itself writes.
const OUTPUT_MARK: &str = "ronde: output";

/// Settings of a target of Ray.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaySettings {
    /// The address of the dashboard, such as `http://head:8265`.
    pub address: String,
    /// A file with the token of the cluster; by default `RAY_AUTH_TOKEN`, `RAY_AUTH_TOKEN_PATH`, or `~/.ray/auth_token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// A file with the certificates of the authority of a dashboard behind HTTPS; by default those that this machine trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<PathBuf>,
    /// The number of nodes; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// The largest number of workers on a node; by default the workers divided by the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// The processors of each worker; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus_per_worker: Option<u32>,
    /// The path of an installed `ronde` on the nodes; by default this program is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The Python on the nodes that can import `ray`, for jobs on several nodes; `python3` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// The folder of the jobs on the nodes; several nodes need one that they share, unless all results go to an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Where a cloud announces the end of a node: absolute paths of files that appear, or addresses. Its workers then leave, and the
    /// launcher saves a checkpoint and ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drain_on: Vec<String>,
}

/// Where this process finds the token of a cluster of Ray.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RayAccess {
    /// The token itself, if a variable has it.
    pub token: Option<String>,
    /// The file with the token, which need not exist.
    pub token_file: Option<PathBuf>,
}

impl std::fmt::Debug for RayAccess {
    /// Formats everything except the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RayAccess")
            .field("token_file", &self.token_file)
            .finish_non_exhaustive()
    }
}

/// A cluster of Ray.
pub struct RayTarget {
    settings: RaySettings,
    access: RayAccess,
}

/// The placement of a job.
struct PlacedRun<'a> {
    id: &'a str,
    paths: JobPaths,
    package: Option<&'a str>,
}

impl RayTarget {
    /// Creates the target. Nothing is read or sent.
    #[must_use]
    pub fn new(settings: RaySettings, access: RayAccess) -> Self {
        Self { settings, access }
    }

    fn api(&self) -> Result<RayApi, SubmitError> {
        RayApi::open(&self.settings, &self.access)
    }

    fn nodes(&self) -> u32 {
        self.settings.nodes.unwrap_or(1).max(1)
    }

    fn slots(&self, request: &SubmitRequest) -> u32 {
        let slots = self.settings.slots;
        slots
            .unwrap_or(request.workers.div_ceil(self.nodes()))
            .max(1)
    }

    /// Returns the processors that Ray reserves on each node.
    fn cpus(&self, request: &SubmitRequest) -> u32 {
        let each = request.resources.cpus.or(self.settings.cpus_per_worker);
        self.slots(request).saturating_mul(each.unwrap_or(1))
    }

    /// Returns the GPUs, and the bytes of memory, that Ray reserves on each node.
    fn gpus_and_memory(&self, request: &SubmitRequest) -> (u32, u64) {
        let (slots, resources) = (self.slots(request), request.resources);
        (
            slots.saturating_mul(resources.gpus.unwrap_or(0)),
            u64::from(slots).saturating_mul(resources.memory_bytes.unwrap_or(0)),
        )
    }

    /// Checks whether a run fits the target.
    fn check(&self, request: &SubmitRequest) -> Result<(), SubmitError> {
        request.check_no_env_from()?;
        let (nodes, slots) = (self.nodes(), self.slots(request));
        if u64::from(request.workers) > u64::from(slots) * u64::from(nodes) {
            return Err(SubmitError::invalid(
                format!(
                    "cannot start {} workers: {nodes} nodes have {} slots",
                    request.workers,
                    u64::from(slots) * u64::from(nodes)
                ),
                "set `nodes` or `slots` of the target to more, or pass `-n` with fewer workers",
            ));
        }
        if nodes > 1 && !request.is_elastic {
            return Err(SubmitError::invalid(
                "cannot use several nodes for a run with `elastic.enabled = false`",
                "remove `elastic.enabled` from the run file, or set `nodes = 1`",
            ));
        }
        if nodes > 1
            && request.saves_in_output
            && request.output.is_none()
            && self.settings.folder.is_none()
        {
            return Err(SubmitError::invalid(
                "the checkpoints of several nodes need a folder that all of them share",
                "set `run.output` or `checkpoint.to` to an address such as s3://bucket/runs/x, or `folder` of the target",
            ));
        }
        Ok(())
    }

    fn folder(&self, id: &str) -> PathBuf {
        let base = self.settings.folder.clone();
        base.unwrap_or_else(|| PathBuf::from(FOLDER)).join(id)
    }

    fn program(&self) -> &str {
        self.settings.program.as_deref().unwrap_or(PROGRAM)
    }

    /// Returns the request for a job of Ray.
    fn request(&self, id: &str, request: &SubmitRequest, package: &RayPackage) -> Value {
        let folder = self.folder(id);
        let arguments = LauncherArguments {
            run_file: package
                .run_file()
                .map(|file| format!("{INPUTS_WORD}/{file}")),
            results: &JobPaths::new(&folder).results(),
            listen: request.is_elastic.then(|| ADDRESS_WORD.to_owned()),
            here: self.slots(request),
            request,
        };
        let (nodes, slots) = (self.nodes().to_string(), self.slots(request).to_string());
        let (cpus, folder) = (self.cpus(request).to_string(), folder.display().to_string());
        let python = self.settings.python.as_deref().unwrap_or("python3");
        let mut words = vec![
            self.program(),
            "__job",
            "ray",
            "--nodes",
            &nodes,
            "--slots",
            &slots,
        ];
        words.extend(["--cpus", &cpus, "--python", python]);
        let (gpus, memory) = self.gpus_and_memory(request);
        let (gpus_text, memory_text) = (gpus.to_string(), memory.to_string());
        if gpus > 0 {
            words.extend(["--gpus", &gpus_text]);
        }
        if memory > 0 {
            words.extend(["--memory", &memory_text]);
        }
        let drain = drain_sources::words(&self.settings.drain_on);
        words.extend(drain.iter().map(String::as_str));
        words.extend([folder.as_str(), "--"]);
        let launcher = [arguments.words(), drain.clone()].concat();
        words.extend(launcher.iter().map(String::as_str));
        let mut body = json!({
            "submission_id": id,
            "entrypoint": format!("exec {}", shell_words::join(words)),
            "entrypoint_num_cpus": self.cpus(request),
            "runtime_env": runtime_env(Some(package.name())),
            "metadata": { "ronde": "job" },
        });
        if gpus > 0 {
            insert(&mut body, "entrypoint_num_gpus", gpus);
        }
        if memory > 0 {
            insert(&mut body, "entrypoint_memory", memory);
        }
        body
    }

    /// Returns the cluster of a job, and its placement; `None` while it is being placed.
    fn placed<'a>(
        &self,
        job: &'a SubmittedJob,
    ) -> Result<Option<(RayApi, PlacedRun<'a>)>, SubmitError> {
        match &job.placement {
            Some(JobPlacement::Ray {
                id,
                folder,
                package,
            }) => {
                let placed = PlacedRun {
                    id,
                    paths: JobPaths::new(folder),
                    package: package.as_deref(),
                };
                Ok(Some((self.api()?, placed)))
            }
            _ => Ok(None),
        }
    }

    fn placed_or_error<'a>(
        &self,
        job: &'a SubmittedJob,
    ) -> Result<(RayApi, PlacedRun<'a>), SubmitError> {
        self.placed(job)?.ok_or_else(|| not_placed(job))
    }

    /// Runs `ronde` with words on the node of the launcher, as a job of Ray, for `limit` at most. Returns its exit code and
    /// its output.
    fn run_at_node(
        &self,
        api: &RayApi,
        placed: &PlacedRun<'_>,
        words: &[String],
        limit: Duration,
    ) -> Result<(i32, String), SubmitError> {
        let launcher = api.job(placed.id)?.unwrap_or_default();
        let Some(node) = api::node(&launcher) else {
            return Err(SubmitError::invalid(
                format!("job {} of Ray has not been started yet", placed.id),
                "`ronde jobs` shows its state",
            ));
        };
        let id = format!("{}-command-{:x}", placed.id, ronde_clock::unix_ms());
        let words = std::iter::once(self.program()).chain(words.iter().map(String::as_str));
        let mut resources = serde_json::Map::new();
        resources.insert(format!("node:{node}"), NODE_SHARE.into());
        api.submit(&json!({
            "submission_id": id,
            "entrypoint": format!("echo '{OUTPUT_MARK}'; exec {}", shell_words::join(words)),
            "entrypoint_resources": resources,
            "runtime_env": runtime_env(placed.package),
            "metadata": { "ronde": "command" },
        }))?;
        let mut last = Ok(None);
        let is_over = || {
            last = api.job(&id);
            let state = last.as_ref().map(|job| api::state(job.as_ref(), false));
            state.is_ok_and(|state| state.is_over())
        };
        let has_ended = ronde_clock::wait_until_every(limit, ASK_EVERY, is_over);
        if !has_ended {
            // The command is not needed any more; the error is the one to report.
            let _ = api.stop(&id);
            return Err(api.problem(format!(
                "a command on node {node} did not end within {} s",
                limit.as_secs()
            )));
        }
        let output = api.logs(&id)?;
        // It is one of a long list only.
        let _ = api.delete(&id);
        let Some((_, output)) = output.split_once(&format!("{OUTPUT_MARK}\n")) else {
            let text = last?.and_then(|job| Some(job["message"].as_str()?.to_owned()));
            return Err(api.problem(format!(
                "a command on node {node} could not be started: {}",
                text.unwrap_or_default()
            )));
        };
        // Ray may write its own line after the first output.
        let own = |line: &&str| !line.starts_with("Running entrypoint for job ");
        let output: String = output.split_inclusive('\n').filter(own).collect();
        match api::state(last?.as_ref(), false) {
            JobState::Finished => Ok((0, output)),
            JobState::Failed { code, .. } => Ok((code, output)),
            state => Err(api.problem(format!("a command on node {node} is {state}"))),
        }
    }
}

/// Returns the environment of a job of Ray. It has no secret: users of the dashboard can read it.
fn runtime_env(package: Option<&str>) -> Value {
    match package {
        Some(name) => json!({ "working_dir": format!("gcs://{name}") }),
        None => json!({}),
    }
}

impl Target for RayTarget {
    fn preview(&self, name: &str, request: &SubmitRequest) -> Result<JobPreview, SubmitError> {
        self.check(request)?;
        let package = RayPackage::describe(&self.settings, request)?;
        let body = self.request(name, request, &package);
        let text = serde_json::to_string_pretty(&body).unwrap_or_default();
        let text = format!(
            "PUT {address}/api/packages/gcs/{} ({} files)\nPOST {address}/api/jobs/\n{text}",
            package.name(),
            package.files(),
            address = self.settings.address,
        );
        Ok(JobPreview::with_documents(text, vec![body]))
    }

    fn submit(
        &self,
        name: &str,
        request: &SubmitRequest,
        placed: &mut dyn FnMut(JobPlacement) -> Result<(), SubmitError>,
    ) -> Result<(), SubmitError> {
        self.check(request)?;
        let api = self.api()?;
        let package = RayPackage::describe(&self.settings, request)?;
        if !api.has_package(package.name())? {
            api.put_package(package.name(), package.archive()?)?;
        }
        // Other machines may submit jobs of this name.
        let id = format!("{name}-{:x}", ronde_clock::unix_ms());
        placed(JobPlacement::Ray {
            id: id.clone(),
            folder: self.folder(&id),
            package: Some(package.name().to_owned()),
        })?;
        let submitted = api.submit(&self.request(&id, request, &package));
        submitted.map_err(|error| match api.stop(&id) {
            Ok(_) => error,
            // The cluster may have accepted it without an answer.
            Err(_) => SubmitError::MayRun {
                job: name.to_owned(),
                problem: error.to_string(),
            },
        })
    }

    fn state(&self, job: &SubmittedJob, is_cancelled: bool) -> Result<JobState, SubmitError> {
        match self.placed(job)? {
            Some((api, placed)) => Ok(api::state(api.job(placed.id)?.as_ref(), is_cancelled)),
            None => Ok(state_before_placement(job, is_cancelled)),
        }
    }

    fn states(&self, jobs: &[(&SubmittedJob, bool)]) -> Option<Vec<JobState>> {
        let listed = self.api().and_then(|api| api.jobs());
        let state = |(job, is_cancelled): &(&SubmittedJob, bool)| {
            let Some(JobPlacement::Ray { id, .. }) = &job.placement else {
                return state_before_placement(job, *is_cancelled);
            };
            match &listed {
                Ok(listed) => {
                    let mut listed = listed.iter();
                    let job = listed.find(|job| job["submission_id"] == id.as_str());
                    api::state(job, *is_cancelled)
                }
                Err(error) => JobState::unknown(error),
            }
        };
        Some(jobs.iter().map(state).collect())
    }

    fn logs(
        &self,
        job: &SubmittedJob,
        request: LogRequest,
        out: &mut dyn Write,
    ) -> Result<(), SubmitError> {
        let (api, placed) = self.placed_or_error(job)?;
        match (request.rank, request.follow) {
            (None, false) => write_out(out, api.logs(placed.id)?.as_bytes()),
            (None, true) => api.follow(placed.id, request.interrupted, out),
            (Some(_), true) => Err(SubmitError::invalid(
                "cannot follow the output of one rank on Ray",
                "leave out `-f`, or leave out `--rank` for the progress of the run",
            )),
            (Some(rank), false) => {
                let folder = placed.paths.folder().display().to_string();
                let rank = rank.to_string();
                let words = ["__job", "rank-log", "--rank", &rank, &folder].map(str::to_owned);
                match self.run_at_node(&api, &placed, &words, COMMAND_MAX)? {
                    (0, output) => write_out(out, output.as_bytes()),
                    _ => Err(SubmitError::invalid(
                        format!("rank {rank} has printed nothing on the node of the launcher"),
                        "ranks of other nodes need a `folder` of the target that the nodes share, or an address as \
                         `run.output`",
                    )),
                }
            }
        }
    }

    fn command(&self, job: &SubmittedJob, words: &[&str]) -> Result<i32, SubmitError> {
        let (api, placed) = self.placed_or_error(job)?;
        let words = folder_word(words, &placed.paths.results());
        let (code, output) = self.run_at_node(&api, &placed, &words, COMMAND_MAX)?;
        write_out(&mut std::io::stdout(), output.as_bytes())?;
        Ok(code)
    }

    fn cancel(&self, job: &SubmittedJob, grace: Duration, _: fn(&str)) -> Result<(), SubmitError> {
        let Some((api, placed)) = self.placed(job)? else {
            return Ok(());
        };
        let is_over = || {
            let job = api.job(placed.id);
            job.is_ok_and(|job| api::state(job.as_ref(), true).is_over())
        };
        if is_over() {
            return Ok(());
        }
        let running = api.job(placed.id)?;
        if api::state(running.as_ref(), true) == JobState::RUNNING {
            let folder = placed.paths.process_path(0).display().to_string();
            let seconds = grace.as_secs().to_string();
            let words = ["__job", "stop", "--grace", &seconds, &folder].map(str::to_owned);
            // Ray ends the rest.
            let _ = self.run_at_node(&api, &placed, &words, grace + COMMAND_MAX);
            ronde_clock::wait_until_every(Duration::from_secs(5), ASK_EVERY, is_over);
        }
        if !is_over() {
            api.stop(placed.id)?;
        }
        match ronde_clock::wait_until_every(END_MAX, ASK_EVERY, is_over) {
            true => Ok(()),
            false => Err(api.problem(format!(
                "job {} has not ended within {} s",
                placed.id,
                END_MAX.as_secs()
            ))),
        }
    }

    fn fetch(&self, job: &SubmittedJob, to: &Path) -> Result<(), SubmitError> {
        let (api, placed) = self.placed_or_error(job)?;
        fetching::create(to)?;
        let folder = placed.paths.results().display().to_string();
        let words = ["__job", "send", "--text", &folder].map(str::to_owned);
        let (code, text) = self.run_at_node(&api, &placed, &words, COMMAND_MAX)?;
        if code != 0 {
            let shown = text.chars().take(500).collect::<String>();
            return Err(api.problem(format!(
                "the results cannot be read: exit code {code}: {shown}"
            )));
        }
        let bytes = text_archive::read(&text);
        let bytes = bytes.map_err(|error| {
            api.problem(format!(
                "the results cannot be read from the output of a job of Ray: {error}"
            ))
        })?;
        let mut archive = tempfile::tempfile().map_err(SubmitError::file("write", to))?;
        archive
            .write_all(&bytes)
            .map_err(SubmitError::file("write", to))?;
        fetching::unpack(archive, to)?;
        let logs = to.join("logs");
        fetching::create(&logs)?;
        let log = logs.join(LAUNCHER_LOG);
        std::fs::write(&log, api.logs(placed.id)?).map_err(SubmitError::file("write", &log))
    }

    fn remove(&self, job: &SubmittedJob) -> Result<(), SubmitError> {
        match self.placed(job)? {
            Some((api, placed)) => api.delete(placed.id),
            None => Ok(()),
        }
    }
}

fn write_out(out: &mut dyn Write, bytes: &[u8]) -> Result<(), SubmitError> {
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(SubmitError::file("write", Path::new("the output")))
}
