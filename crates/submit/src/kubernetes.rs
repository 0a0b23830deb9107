//! [`KubernetesTarget`]: jobs as indexed Jobs of Kubernetes. One pod leads the run, at first that with index 0, and each other
//! pod joins it.
//!
//! The client is our own, over `reqwest`, which the stores need anyway: it uses nine requests, watches no objects, and its documents
//! are plain JSON values. Tests check them against the published schemas of the API, and the server refuses unknown fields
//! (`fieldValidation=Strict`). The crate `kube` 5 with `k8s-openapi` would replace about 400 lines of it, and add 26 crates and about
//! 70 seconds of processor time to a build. It runs the programs that print credentials without a time limit, follows output without
//! noticing a lost connection, and opens only web sockets with a protocol of Kubernetes, while the client of Ray uses others.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ronde_core::Recovery;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::SubmitError;
use crate::fetching::{self, LAUNCHER_LOG};
use crate::interruptions::Interruptions;
use crate::job::{JobPlacement, SubmittedJob};
use crate::launcher_arguments::folder_word;
use crate::local::{not_placed, state_before_placement};
use crate::preview::JobPreview;
use crate::skipping_writer::SkippingWriter;
use crate::state::JobState;
use crate::target::{LogRequest, SubmitRequest, Target};

mod api;
mod cancel;
mod credentials;
mod exec;
mod inputs;
mod leadership;
mod logs;
mod manifest;
mod pod;
mod pod_state;
mod reader;
mod renewed;
mod rights;

#[cfg(feature = "full")]
mod certificate_name;
#[cfg(feature = "full")]
mod connection;
#[cfg(feature = "full")]
mod connection_error;
#[cfg(feature = "full")]
mod kubeconfig;
#[cfg(not(feature = "full"))]
mod no_connection;
#[cfg(feature = "full")]
mod proxy;
#[cfg(feature = "full")]
mod web_socket;

pub use leadership::{
    ENDS_AFTER, LeaderRecord, LeaderState, LeaderWatch, PodRole, RENEW_EVERY, TAKEN_AFTER,
};
pub use pod::{KubernetesPod, PodFolders};

pub(crate) use api::ApiFailure;
#[cfg(feature = "full")]
pub(crate) use connection::Connection;
#[cfg(not(feature = "full"))]
pub(crate) use no_connection::NoConnection as Connection;
pub(crate) use renewed::RenewedConnection;

use api::ClusterApi;
use cancel::JobCancellation;
use manifest::JobManifest;

/// Time limit for Kubernetes to delete a Job that has ended.
const EXPIRE_MAX: Duration = Duration::from_secs(30);
/// Interval between two requests about a job.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Where `ronde` waits in a pod for the commands of others: the folder of its process.
const POD_FOLDER: &str = "/run/ronde/pod";

/// Settings of a target of Kubernetes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubernetesSettings {
    /// The image of the pods, such as the one that `ronde image` makes.
    pub image: String,
    /// The kubeconfig file; by default those of `KUBECONFIG`, `~/.kube/config`, or the service account of this pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; by default its current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The namespace; by default that of the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The largest number of workers in a pod; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// The processors of a pod as a quantity of Kubernetes, such as `4` or `3500m`; one for each slot by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// The memory of a pod as a quantity of Kubernetes, such as `8Gi`; without a limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// The volume claim for the results; several pods need one with the access mode ReadWriteMany.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// The Secrets whose keys become variables of the pods, such as the credentials of an object store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_secrets: Vec<String>,
    /// The service account of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// Seconds for a last checkpoint before a pod is killed; 120 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u32>,
    /// The port of the coordinator; 4711 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Where a cloud announces the end of the node of a pod: absolute paths of files that appear, or addresses. Its workers then leave, and the
    /// launcher saves a checkpoint and ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drain_on: Vec<String>,
    /// Further fields of the specification of the pods, such as `nodeSelector`, which are merged into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Value>,
}

/// Where this process finds the settings of clusters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubernetesAccess {
    /// The kubeconfig files of the user, in the order in which they are merged. Missing ones are skipped.
    pub kubeconfig: Vec<PathBuf>,
    /// The address of the API server of the pod in which this process runs, if it runs in one.
    pub in_cluster: Option<String>,
}

/// A namespace of a cluster.
pub struct KubernetesTarget {
    settings: KubernetesSettings,
    access: KubernetesAccess,
}

/// The jobs of a namespace, and all of their pods.
struct JobsAndPods {
    jobs: Vec<Value>,
    pods: Vec<Value>,
}

impl JobsAndPods {
    fn state(&self, api: &ClusterApi, name: &str, is_cancelled: bool) -> JobState {
        let mut jobs = self.jobs.iter();
        let job = jobs.find(|job| pod_state::name(job) == name);
        let pods = self.pods.iter().filter(|pod| pod_state::job(pod) == name);
        let pods: Vec<Value> = pods.cloned().collect();
        explained(api, job, &pods, is_cancelled)
    }
}

/// The placement of a job.
struct PlacedPods<'a> {
    namespace: &'a str,
    name: &'a str,
    folder: &'a Path,
}

impl KubernetesTarget {
    /// Creates the target. Nothing is read or sent.
    #[must_use]
    pub fn new(settings: KubernetesSettings, access: KubernetesAccess) -> Self {
        Self { settings, access }
    }

    fn api(&self, namespace: Option<&str>) -> Result<ClusterApi, SubmitError> {
        ClusterApi::open(&self.settings, &self.access, namespace)
    }

    /// Returns the cluster of a job, and its placement; `None` while it is being placed.
    fn placed<'a>(
        &self,
        job: &'a SubmittedJob,
    ) -> Result<Option<(ClusterApi, PlacedPods<'a>)>, SubmitError> {
        match &job.placement {
            Some(JobPlacement::Kubernetes {
                namespace,
                name,
                folder,
            }) => {
                let placed = PlacedPods {
                    namespace,
                    name,
                    folder,
                };
                Ok(Some((self.api(Some(placed.namespace))?, placed)))
            }
            _ => Ok(None),
        }
    }

    fn placed_or_error<'a>(
        &self,
        job: &'a SubmittedJob,
    ) -> Result<(ClusterApi, PlacedPods<'a>), SubmitError> {
        self.placed(job)?.ok_or_else(|| not_placed(job))
    }

    /// Lists the jobs of a namespace with their pods. The error is a message.
    fn listing(&self, namespace: &str) -> Result<(ClusterApi, JobsAndPods), String> {
        let api = self.api(Some(namespace));
        let api = api.map_err(|error| error.to_string())?;
        let failed = |failure| api.failed(failure).to_string();
        let listed = JobsAndPods {
            jobs: api.all("jobs").map_err(failed)?,
            pods: api.all("pods").map_err(failed)?,
        };
        Ok((api, listed))
    }

    fn state_of(
        &self,
        api: &ClusterApi,
        name: &str,
        is_cancelled: bool,
    ) -> Result<JobState, SubmitError> {
        let job = match api.job(name) {
            Ok(job) => Some(job),
            Err(ApiFailure::Status { code: 404, .. }) => None,
            Err(failure) => return Err(api.failed(failure)),
        };
        let pods = match &job {
            Some(job) if !pod_state::is_finished(job) || pod_state::has_failed(job) => {
                api.pods(name).map_err(|failure| api.failed(failure))?
            }
            _ => Vec::new(),
        };
        Ok(explained(api, job.as_ref(), &pods, is_cancelled))
    }

    /// Runs `ronde` with words in the pod that leads the job, or after its end in one that reads its results, and passes
    /// its output to `out`. Returns its exit code.
    fn run_in_pod(
        &self,
        api: &ClusterApi,
        placed: &PlacedPods<'_>,
        words: &[String],
        out: &mut dyn Write,
    ) -> Result<i32, SubmitError> {
        let command: Vec<String> = std::iter::once("ronde".to_owned())
            .chain(words.iter().cloned())
            .collect();
        let state = self.state_of(api, placed.name, false)?;
        if state.is_over() {
            // Pods of it on a lost node still look as if they ran.
            return reader::run(api, &self.settings, placed.name, &command, out);
        }
        let pods = api.pods(placed.name).map_err(|e| api.failed(e))?;
        match leading_pod(api, &pods).filter(pod_state::is_running) {
            Some(pod) => exec::run(api, pod_state::name(&pod), &command, out),
            None => Err(SubmitError::invalid(
                format!(
                    "Job {} has no pod that leads it: it is {state}",
                    placed.name
                ),
                "wait until it is running; `ronde jobs` shows its state",
            )),
        }
    }

    /// Shows the output of a rank until the job is over, or the command that prints it ends. Returns whether the job is over.
    fn show_rank(
        &self,
        api: &ClusterApi,
        placed: &PlacedPods<'_>,
        rank: u32,
        (shown, out): (&mut u64, &mut dyn Write),
    ) -> Result<bool, SubmitError> {
        let is_over = self.state_of(api, placed.name, false)?.is_over();
        let mut rest = SkippingWriter::new(out, *shown);
        let words = rank_log_words(placed, rank, !is_over);
        let ran = self.run_in_pod(api, placed, &words, &mut rest);
        *shown = rest.seen().max(*shown);
        let may_continue = |error: &SubmitError| {
            // Between two pods; or the pod has ended, and the command with it.
            matches!(error, SubmitError::Invalid { .. }) || error.recovery() == Recovery::Retry
        };
        match ran {
            Ok(0) if is_over => Ok(true),
            Ok(_) if is_over => Err(no_output(rank)),
            // Without output of the rank, the exit code is another one.
            Ok(_) => Ok(false),
            Err(error) if !is_over && may_continue(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Shows the output of a rank until the job is over. A command in a pod ends with the pod, so what it has not shown is
    /// read again, from the pod that replaces it or from the results.
    fn follow_rank(
        &self,
        api: &ClusterApi,
        placed: &PlacedPods<'_>,
        rank: u32,
        (interrupted, out): (fn(&SubmitError), &mut dyn Write),
    ) -> Result<(), SubmitError> {
        let mut shown = 0;
        let mut interruptions = Interruptions::new(interrupted);
        loop {
            let is_over = self.show_rank(api, placed, rank, (&mut shown, &mut *out));
            if interruptions.pass(is_over)? == Some(true) {
                return Ok(());
            }
            ronde_clock::pause(ASK_EVERY);
        }
    }
}

/// Returns the state of a job, with the reason of the events of the cluster if it waits and nothing else has one. They may not be
/// readable.
fn explained(
    api: &ClusterApi,
    job: Option<&Value>,
    pods: &[Value],
    is_cancelled: bool,
) -> JobState {
    let state = pod_state::job_state(job, pods, is_cancelled);
    match pod_state::waiting_object(job, pods) {
        Some((kind, name)) => {
            let events = api.events(kind, &name).unwrap_or_default();
            pod_state::with_events(state, &events)
        }
        None => state,
    }
}

/// Returns the pod that leads a job: of several that may lead, the one that says so; else the newest one with index 0, which
/// need not run.
fn leading_pod(api: &ClusterApi, pods: &[Value]) -> Option<Value> {
    let first = pod_state::leader(pods);
    let candidates = pod_state::candidates(pods);
    if first
        .as_ref()
        .is_some_and(|first| candidates == [first.clone()])
    {
        return first;
    }
    let words = ["ronde", "__job", "pod-leads", POD_FOLDER].map(str::to_owned);
    let leads = |pod: &Value| {
        let ran = exec::run(api, pod_state::name(pod), &words, &mut std::io::sink());
        ran.is_ok_and(|code| code == 0)
    };
    candidates.into_iter().find(leads).or(first)
}

/// Returns the words that print the output of a rank in a pod.
fn rank_log_words(placed: &PlacedPods<'_>, rank: u32, follow: bool) -> Vec<String> {
    let mut words = vec!["__job".to_owned(), "rank-log".to_owned()];
    words.extend(["--rank".to_owned(), rank.to_string()]);
    words.extend(follow.then(|| "--follow".to_owned()));
    words.push(placed.folder.display().to_string());
    words
}

/// Deletes the Job of a submission that has failed, with its pods; not one that another submission has created with its name.
fn delete_own(api: &ClusterApi, manifest: &JobManifest<'_>) -> Result<(), ApiFailure> {
    let deleted = match api.job(manifest.name()) {
        Ok(job) if !manifest.is_of(&job) => return Ok(()),
        Ok(_) => api.delete_job(manifest.name()).map(|_| ()),
        Err(failure) => Err(failure),
    };
    match deleted {
        Err(ApiFailure::Status { code: 404, .. }) => Ok(()),
        Err(refused @ ApiFailure::Status { code: 403, .. }) => {
            // Kubernetes deletes a Job that has ended. Without pods, it ends at its deadline.
            let expired = serde_json::json!({ "spec": {
                "suspend": false, "parallelism": 0, "activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 0,
            } });
            if api.patch_job(manifest.name(), &expired).is_err() {
                return Err(refused);
            }
            let is_gone = || {
                matches!(
                    api.job(manifest.name()),
                    Err(ApiFailure::Status { code: 404, .. })
                )
            };
            match ronde_clock::wait_until_every(EXPIRE_MAX, ASK_EVERY, is_gone) {
                true => Ok(()),
                false => Err(refused),
            }
        }
        deleted => deleted,
    }
}

fn no_output(rank: u32) -> SubmitError {
    SubmitError::invalid(
        format!("rank {rank} has printed nothing"),
        "`ronde logs JOB` without `--rank` shows progress and errors",
    )
}

impl Target for KubernetesTarget {
    fn preview(&self, name: &str, request: &SubmitRequest) -> Result<JobPreview, SubmitError> {
        let namespace = match &self.settings.namespace {
            Some(namespace) => Some(namespace.clone()),
            // A preview needs no cluster, but shows the namespace where it is known.
            None => self.api(None).ok().map(|api| api.namespace().to_owned()),
        };
        let name = (name, ronde_clock::unix_ms());
        let manifest = JobManifest::new(&self.settings, name, namespace.as_deref(), request)?;
        Ok(manifest.preview())
    }

    fn submit(
        &self,
        job: &str,
        request: &SubmitRequest,
        placed: &mut dyn FnMut(JobPlacement) -> Result<(), SubmitError>,
    ) -> Result<(), SubmitError> {
        let api = self.api(self.settings.namespace.as_deref())?;
        let namespace = api.namespace().to_owned();
        let stamped = (job, ronde_clock::unix_ms());
        let manifest = JobManifest::new(&self.settings, stamped, Some(&namespace), request)?;
        let secrets = credentials::PodCredentials::new(manifest.name())?;
        rights::check(&api)?;
        // Suspended: no pod exists before everything that it needs.
        let created = match api.create("jobs", &manifest.job()) {
            Err(ApiFailure::Status { code: 409, .. }) => {
                return Err(SubmitError::invalid(
                    format!(
                        "there is a Job `{}` in namespace `{namespace}` already",
                        manifest.name()
                    ),
                    "choose another name with `--name`",
                ));
            }
            Err(failure @ ApiFailure::Status { code: ..500, .. }) => {
                return Err(api.failed(failure));
            }
            // Without an answer, the server may have created it.
            created => created.map_err(|failure| api.failed(failure)),
        };
        let complete = || {
            // At once, so that a submitter that is killed leaves no Job that nothing here can remove.
            placed(JobPlacement::Kubernetes {
                namespace: namespace.clone(),
                name: manifest.name().to_owned(),
                folder: manifest.folder(),
            })?;
            let owner = manifest::owner(&created?)?;
            for (kind, document) in manifest.parts(&secrets, &owner) {
                api.create(kind, &document).map_err(|e| api.failed(e))?;
            }
            let start = serde_json::json!({ "spec": { "suspend": false } });
            api.patch_job(manifest.name(), &start)
                .map_err(|e| api.failed(e))
        };
        complete().map(|_| ()).map_err(|error| {
            match delete_own(&api, &manifest) {
                Ok(()) => error,
                // The server may have started its pods without an answer.
                Err(kept) => SubmitError::MayRun {
                    job: job.to_owned(),
                    problem: format!(
                        "{error}\n  the Job `{}` stays, because it cannot be deleted: {kept}",
                        manifest.name()
                    ),
                },
            }
        })
    }

    fn state(&self, job: &SubmittedJob, is_cancelled: bool) -> Result<JobState, SubmitError> {
        match self.placed(job)? {
            Some((api, placed)) => self.state_of(&api, placed.name, is_cancelled),
            None => Ok(state_before_placement(job, is_cancelled)),
        }
    }

    fn states(&self, jobs: &[(&SubmittedJob, bool)]) -> Option<Vec<JobState>> {
        let mut listings = BTreeMap::new();
        let state = |(job, is_cancelled): &(&SubmittedJob, bool)| {
            let Some(JobPlacement::Kubernetes {
                namespace, name, ..
            }) = &job.placement
            else {
                return state_before_placement(job, *is_cancelled);
            };
            let listing = listings
                .entry(namespace.clone())
                .or_insert_with(|| self.listing(namespace));
            match listing {
                Ok((api, listing)) => listing.state(api, name, *is_cancelled),
                Err(problem) => JobState::Unknown {
                    problem: problem.clone(),
                },
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
        let Some(rank) = request.rank else {
            let mut is_over = || {
                let state = self.state_of(&api, placed.name, false);
                state.map(|state| state.is_over())
            };
            return match request.follow {
                true => {
                    logs::follow_launcher(&api, placed.name, request.interrupted, out, &mut is_over)
                }
                false => logs::of_launcher(&api, placed.name, out),
            };
        };
        if request.follow {
            return self.follow_rank(&api, &placed, rank, (request.interrupted, out));
        }
        match self.run_in_pod(&api, &placed, &rank_log_words(&placed, rank, false), out)? {
            0 => Ok(()),
            _ => Err(no_output(rank)),
        }
    }

    fn command(&self, job: &SubmittedJob, words: &[&str]) -> Result<i32, SubmitError> {
        let (api, placed) = self.placed_or_error(job)?;
        let words = folder_word(words, &placed.folder.join("results"));
        self.run_in_pod(&api, &placed, &words, &mut std::io::stdout())
    }

    fn scale(&self, job: &SubmittedJob, workers: u32) -> Result<i32, SubmitError> {
        let (api, placed) = self.placed_or_error(job)?;
        let results = placed.folder.join("results").display().to_string();
        let words = ["scale".to_owned(), results, workers.to_string()];
        // The coordinator knows the limits, so it decides before the number of pods changes.
        let code = self.run_in_pod(&api, &placed, &words, &mut std::io::stdout())?;
        if code == 0 {
            let pods = workers
                .div_ceil(self.settings.slots.unwrap_or(1).max(1))
                .max(1);
            let size = serde_json::json!({ "spec": { "parallelism": pods, "completions": pods } });
            api.patch_job(placed.name, &size)
                .map_err(|e| api.failed(e))?;
        }
        Ok(code)
    }

    fn cancel(
        &self,
        job: &SubmittedJob,
        grace: Duration,
        report: fn(&str),
    ) -> Result<(), SubmitError> {
        let Some((api, placed)) = self.placed(job)? else {
            return Ok(());
        };
        let is_over = || {
            let state = self.state_of(&api, placed.name, true);
            state.is_ok_and(|state| state.is_over())
        };
        let cancellation = JobCancellation {
            api: &api,
            settings: &self.settings,
            name: placed.name,
            is_over: &is_over,
            report,
        };
        cancellation.run(grace)
    }

    fn fetch(&self, job: &SubmittedJob, to: &Path) -> Result<(), SubmitError> {
        let (api, placed) = self.placed_or_error(job)?;
        fetching::create(to)?;
        let folder = placed.folder.join("results").display().to_string();
        let words = ["__job".to_owned(), "send".to_owned(), folder];
        let mut archive = tempfile::tempfile().map_err(SubmitError::file("write", to))?;
        match self.run_in_pod(&api, &placed, &words, &mut archive)? {
            0 => fetching::unpack(archive, to)?,
            code => {
                return Err(api.problem(format!("the results cannot be read: exit code {code}")));
            }
        }
        let logs = to.join("logs");
        fetching::create(&logs)?;
        let log = logs.join(LAUNCHER_LOG);
        let mut file = std::fs::File::create(&log).map_err(SubmitError::file("write", &log))?;
        logs::of_launcher(&api, placed.name, &mut file)
    }

    fn remove(&self, job: &SubmittedJob) -> Result<(), SubmitError> {
        let Some((api, placed)) = self.placed(job)? else {
            return Ok(());
        };
        match api.delete_job(placed.name) {
            Err(ApiFailure::Status { code: 404, .. }) | Ok(_) => Ok(()),
            Err(failure) => Err(api.failed(failure)),
        }
    }
}
