//! [`JobManifest`]: the documents of a job: an indexed Job, a ConfigMap with the run file and a Secret with the job's
//! credentials. Pure: documents are values.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::credentials::{FILES, PodCredentials};
use super::inputs::PodInputs;
use super::pod::{ADDRESS_WORD, CANCELLED_CODE, COMMAND_FILE, INPUT_FOLDER, SECRET_FOLDER};
use super::{KubernetesSettings, POD_FOLDER};
use crate::drain_sources;
use crate::error::SubmitError;
use crate::launcher_arguments::LauncherArguments;
use crate::platform::{insert, kubernetes_label, yaml};
use crate::preview::JobPreview;
use crate::process_folder::ProcessCommand;
use crate::run_inputs::JobResources;
use crate::target::SubmitRequest;

/// The annotation of a Job with its folder, which no other submission has.
const FOLDER: &str = "ronde/folder";
/// The name of the container.
pub(super) const CONTAINER: &str = "ronde";
/// The folder of the volume for the results.
pub(super) const RESULTS: &str = "/run/ronde/results";
/// The user and group in the images of ronde. The group owns the volumes.
const USER: u32 = 65_532;
/// Failures of pods, besides those of ended or cancelled runs, after which the job is given up.
const FAILURES_MAX: u32 = 20;
/// Seconds for a last checkpoint.
const GRACE_S: u32 = 120;
/// The name of GPUs among the resources of a pod.
const GPU: &str = "nvidia.com/gpu";
/// The default port of the coordinator.
const PORT: u16 = 4711;
/// Exit codes of the launcher that end the job: it failed, or was cancelled.
const FINAL_CODES: [i32; 6] = [1, 2, 3, 4, 101, CANCELLED_CODE];
/// The exit code of a launcher or an agent that was drained by SIGTERM; its pod is replaced.
const DRAINED_CODE: i32 = 143;
/// Seconds between the end of a drain and the end of the time that Kubernetes allows for it.
const MARGIN_S: u32 = 10;

/// The documents of a job.
pub(super) struct JobManifest<'a> {
    settings: &'a KubernetesSettings,
    name: String,
    folder: PathBuf,
    namespace: Option<String>,
    workers: u32,
    output: Option<String>,
    pods: u32,
    slots: u32,
    is_elastic: bool,
    inputs: PodInputs,
    command: ProcessCommand,
    resources: JobResources,
    /// The Secrets whose keys become variables.
    variables: Vec<String>,
}

impl<'a> JobManifest<'a> {
    /// Checks whether a run fits the target, and reads its input files. `stamp` tells the folder of the job from those of
    /// earlier jobs with this name, whose results stay in the volume.
    pub(super) fn new(
        settings: &'a KubernetesSettings,
        (name, stamp): (&str, u64),
        namespace: Option<&str>,
        request: &SubmitRequest,
    ) -> Result<Self, SubmitError> {
        let slots = settings.slots.unwrap_or(1).max(1);
        let pods = request.workers.div_ceil(slots).max(1);
        if pods > 1 && !request.is_elastic {
            return Err(SubmitError::invalid(
                format!("cannot use {pods} pods for a run with `elastic.enabled = false`"),
                format!(
                    "remove `elastic.enabled` from the run file, or set `slots = {}` of the target",
                    request.workers
                ),
            ));
        }
        if settings.claim.is_none() && request.output.is_none() {
            return Err(SubmitError::invalid(
                "the results of the job would be lost with its pods",
                "set `run.output` to an address such as s3://bucket/runs/x, or `claim` of the target to a volume claim",
            ));
        }
        let inputs = PodInputs::read(request)?;
        let name = kubernetes_label(name);
        let folder = PathBuf::from(RESULTS).join(format!("{name}-{stamp:x}"));
        let run_file = inputs
            .run_file()
            .map(|file| format!("{INPUT_FOLDER}/{}", file.display()));
        let arguments = LauncherArguments {
            run_file,
            results: &folder.join("results"),
            listen: request
                .is_elastic
                .then(|| format!("{ADDRESS_WORD}:{}", settings.port.unwrap_or(PORT))),
            here: slots,
            request,
        };
        let mut words = arguments.words();
        words.extend(drain_sources::words(&settings.drain_on));
        if request.is_elastic {
            words.extend(["--credentials".to_owned(), SECRET_FOLDER.to_owned()]);
        }
        let manifest = Self {
            settings,
            namespace: namespace.map(str::to_owned),
            workers: request.workers,
            output: request.output.clone(),
            pods,
            slots,
            is_elastic: request.is_elastic,
            inputs,
            command: ProcessCommand {
                arguments: words,
                directory: PathBuf::from(INPUT_FOLDER),
            },
            name,
            folder,
            resources: request.resources,
            variables: [settings.env_secrets.as_slice(), &request.env_from].concat(),
        };
        manifest.inputs.check_fits(&manifest.command_text())?;
        Ok(manifest)
    }

    /// Returns the command of the launcher for its file.
    fn command_text(&self) -> String {
        serde_json::to_string(&self.command).unwrap_or_default()
    }

    /// Returns the name of the Job and of everything that belongs to it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the folder of the job in its pods.
    pub(super) fn folder(&self) -> PathBuf {
        self.folder.clone()
    }

    fn metadata(&self) -> Value {
        let mut metadata = json!({ "name": self.name, "labels": labels(&self.name) });
        if let Some(namespace) = &self.namespace {
            insert(&mut metadata, "namespace", namespace.clone());
        }
        metadata
    }

    /// Returns whether a Job on the server is the one of this submission.
    pub(super) fn is_of(&self, job: &Value) -> bool {
        let folder = &job["metadata"]["annotations"][FOLDER];
        folder.as_str().map(Path::new) == Some(self.folder.as_path())
    }

    /// Returns the Job, which is suspended.
    pub(super) fn job(&self) -> Value {
        let codes = |action: &str, codes: &[i32]| {
            json!({
                "action": action,
                "onExitCodes": { "containerName": CONTAINER, "operator": "In", "values": codes },
            })
        };
        let mut metadata = self.metadata();
        let folder = self.folder.display().to_string();
        insert(&mut metadata, "annotations", json!({ FOLDER: folder }));
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {
                "completionMode": "Indexed",
                "completions": self.pods,
                "parallelism": self.pods,
                "suspend": true,
                "backoffLimit": FAILURES_MAX,
                // A lost node may still run its pod, which leaves the job before another one takes its index.
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": { "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }],
                    },
                    codes("Ignore", &[DRAINED_CODE]),
                    codes("FailJob", &FINAL_CODES),
                ] },
                // The launcher ends when the run does; any pod may lead.
                "successPolicy": { "rules": [{ "succeededCount": 1 }] },
                "template": {
                    "metadata": { "labels": labels(&self.name) },
                    "spec": self.pod(),
                },
            },
        })
    }

    fn pod(&self) -> Value {
        let grace = self.settings.grace_s.unwrap_or(GRACE_S);
        let limit = grace_of_pods(self.settings);
        let mut pod = json!({
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": limit,
            "enableServiceLinks": false,
            "automountServiceAccountToken": self.settings.service_account.is_some(),
            "securityContext": security(),
            "volumes": self.volumes(),
            "containers": [self.container(grace)],
        });
        if let Some(account) = &self.settings.service_account {
            insert(&mut pod, "serviceAccountName", account.clone());
        }
        if let Some(further) = &self.settings.pod {
            merge(&mut pod, further);
        }
        pod
    }

    fn volumes(&self) -> Value {
        json!([
            { "name": "inputs", "configMap": { "name": self.name, "items": self.inputs.items(COMMAND_FILE) } },
            { "name": "credentials", "secret": { "secretName": self.name, "defaultMode": 0o440 } },
            { "name": "pod", "emptyDir": {} },
            { "name": "memory", "emptyDir": { "medium": "Memory" } },
            results_volume(self.settings),
        ])
    }

    fn container(&self, grace: u32) -> Value {
        let folder = self.folder().display().to_string();
        let port = self.settings.port.unwrap_or(PORT);
        let (slots, pods, port_word) = (
            self.slots.to_string(),
            self.pods.to_string(),
            port.to_string(),
        );
        let mut command = vec!["ronde", "__job", "pod", "--slots", &slots, "--pods", &pods];
        command.extend(["--results", &folder]);
        if self.is_elastic {
            command.extend(["--port", &port_word]);
        }
        if let Some(address) = &self.output {
            command.extend(["--store", address]);
        }
        let drain = drain_sources::words(&self.settings.drain_on);
        command.extend(drain.iter().map(String::as_str));
        let probe = |more: &[&str], period: u32, failures: u32| {
            let words = [&["ronde", "__job", "pod-probe"], more, &[folder.as_str()]].concat();
            json!({
                "exec": { "command": words },
                "periodSeconds": period,
                "timeoutSeconds": 10,
                "failureThreshold": failures,
            })
        };
        let drain = [
            "ronde",
            "__job",
            "stop",
            "--grace",
            &grace.to_string(),
            POD_FOLDER,
        ]
        .map(str::to_owned);
        let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
        let mut container = json!({
            "name": CONTAINER,
            "image": self.settings.image,
            "command": command,
            "env": [field("POD_IP", "status.podIP"), field("POD_NAME", "metadata.name")],
            // The last lines of its output are then in the status of the pod.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "ports": [{ "name": "coordinator", "containerPort": port }],
            "resources": self.resources(),
            "readinessProbe": probe(&["--ready"], 5, 3),
            "livenessProbe": probe(&[], 30, 10),
            "lifecycle": { "preStop": { "exec": { "command": drain } } },
            "securityContext": container_security(),
            "volumeMounts": [
                { "name": "inputs", "mountPath": INPUT_FOLDER, "readOnly": true },
                { "name": "credentials", "mountPath": SECRET_FOLDER, "readOnly": true },
                { "name": "pod", "mountPath": POD_FOLDER },
                { "name": "memory", "mountPath": "/dev/shm" },
                { "name": "results", "mountPath": RESULTS },
            ],
        });
        if !self.variables.is_empty() {
            let secrets = self.variables.iter();
            let from: Vec<Value> = secrets
                .map(|name| json!({ "secretRef": { "name": name } }))
                .collect();
            insert(&mut container, "envFrom", from);
        }
        container
    }

    /// Returns the resources of a pod: requests and limits are equal, so that pods are not evicted first.
    fn resources(&self) -> Value {
        let slots = u64::from(self.slots);
        let of_workers = |one: u64| one.saturating_mul(slots).to_string();
        let cpus = self.resources.cpus.map(|cpus| of_workers(cpus.into()));
        let cpu = cpus.or_else(|| self.settings.cpu.clone());
        let mut amounts = json!({ "cpu": cpu.unwrap_or_else(|| self.slots.to_string()) });
        let memory = self.resources.memory_bytes.map(of_workers);
        if let Some(memory) = memory.or_else(|| self.settings.memory.clone()) {
            insert(&mut amounts, "memory", memory);
        }
        if let Some(gpus) = self.resources.gpus.filter(|gpus| *gpus > 0) {
            insert(&mut amounts, GPU, of_workers(gpus.into()));
        }
        json!({ "requests": amounts, "limits": amounts })
    }

    /// Returns the other documents with the names of their kinds in addresses. They are deleted with their owner.
    pub(super) fn parts(
        &self,
        secrets: &PodCredentials,
        owner: &Value,
    ) -> [(&'static str, Value); 2] {
        let texts = secrets
            .files()
            .map(|(file, text)| (file.to_owned(), Value::from(text)));
        let texts = Value::Object(texts.into_iter().collect());
        let mut parts = self.documents(texts);
        for (_, part) in &mut parts {
            insert(&mut part["metadata"], "ownerReferences", json!([owner]));
        }
        parts
    }

    fn documents(&self, secret: Value) -> [(&'static str, Value); 2] {
        let (texts, bytes) = self.inputs.data(COMMAND_FILE, &self.command_text());
        [
            (
                "secrets",
                json!({
                    "apiVersion": "v1", "kind": "Secret", "metadata": self.metadata(),
                    "type": "Opaque", "stringData": secret,
                }),
            ),
            (
                "configmaps",
                json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "metadata": self.metadata(),
                    "data": texts, "binaryData": bytes,
                }),
            ),
        ]
    }

    /// Returns all documents, with the names of secret files instead of their contents.
    pub(super) fn preview(&self) -> JobPreview {
        let secret =
            FILES.map(|file| (file.to_owned(), Value::from("(created by `ronde submit`)")));
        let parts = self.documents(Value::Object(secret.into_iter().collect()));
        let parts = parts.into_iter().map(|(_, part)| part);
        let documents: Vec<Value> = std::iter::once(self.job()).chain(parts).collect();
        let text = format!(
            "# {} workers in {} pods, which start when everything has been created\n{}",
            self.workers,
            self.pods,
            yaml::stream(&documents)
        );
        JobPreview::with_documents(text, documents)
    }
}

/// Returns the seconds that Kubernetes allows for the end of a pod.
pub(super) fn grace_of_pods(settings: &KubernetesSettings) -> u32 {
    settings.grace_s.unwrap_or(GRACE_S).saturating_add(MARGIN_S)
}

/// Returns the labels of everything that belongs to a job.
pub(super) fn labels(name: &str) -> Value {
    json!({ "app.kubernetes.io/managed-by": "ronde", "app.kubernetes.io/instance": name })
}

/// Returns the volume with the results.
pub(super) fn results_volume(settings: &KubernetesSettings) -> Value {
    match &settings.claim {
        Some(claim) => {
            json!({ "name": "results", "persistentVolumeClaim": { "claimName": claim } })
        }
        None => json!({ "name": "results", "emptyDir": {} }),
    }
}

/// Returns the rights of a pod's processes under the Pod Security Standard "restricted". The user is a number, because
/// a kubelet cannot decide whether a named one is root.
pub(super) fn security() -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

/// Returns the rights of a container's processes.
pub(super) fn container_security() -> Value {
    json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } })
}

/// Returns the reference to the Job that a server has created.
pub(super) fn owner(job: &Value) -> Result<Value, SubmitError> {
    let metadata = &job["metadata"];
    match (metadata["name"].as_str(), metadata["uid"].as_str()) {
        (Some(name), Some(uid)) => Ok(json!({
            "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid,
            "controller": true, "blockOwnerDeletion": false,
        })),
        _ => Err(SubmitError::Program {
            program: "Kubernetes".to_owned(),
            problem: "the created Job has no name or no identity".to_owned(),
        }),
    }
}

/// Merges `further` into `value`: objects field by field, other values replace (RFC 7386).
pub(super) fn merge(value: &mut Value, further: &Value) {
    match (value, further) {
        (Value::Object(map), Value::Object(further)) => {
            for (key, further) in further {
                merge(map.entry(key.clone()).or_insert(Value::Null), further);
            }
        }
        (value, further) => *value = further.clone(),
    }
}

#[cfg(test)]
pub(super) mod tests;
