//! A pod that reads the results of a job that has ended, for as long as one command takes. A Job starts it, so that a user needs no
//! further right.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::ClusterApi;
use super::manifest::{CONTAINER, RESULTS, results_volume};
use super::{ASK_EVERY, KubernetesSettings, exec, manifest, pod_state};
use crate::error::SubmitError;
use crate::platform::insert;

/// Time limit for the pod to start.
const START_MAX: Duration = Duration::from_secs(180);
/// Seconds after which the pod ends by itself, if its client was killed.
const LIFE_S: u32 = 3600;
/// Seconds after which a Job whose client was killed is deleted when it has ended.
const KEPT_S: u32 = 60;

/// Runs a command in a new pod with the results of a job, and removes its Job. Returns the exit code.
pub(super) fn run(
    api: &ClusterApi,
    settings: &KubernetesSettings,
    job: &str,
    command: &[String],
    out: &mut dyn Write,
) -> Result<i32, SubmitError> {
    let mut document = document(settings, api.namespace(), job);
    // It is deleted with the Job, if this process is killed before it deletes it.
    if let Ok(owner) = api
        .job(job)
        .map_err(|e| api.failed(e))
        .and_then(|job| manifest::owner(&job))
    {
        let mut owner = owner;
        // The Job's controller must not count the pod among its own.
        insert(&mut owner, "controller", false);
        insert(&mut document["metadata"], "ownerReferences", json!([owner]));
    }
    let created = api.create("jobs", &document);
    let created = created.map_err(|failure| api.failed(failure))?;
    let name = pod_state::name(&created).to_owned();
    let ran = started(api, &name).and_then(|pod| exec::run(api, &pod, command, out));
    let deleted = api.delete_job(&name);
    let code = ran?;
    deleted.map_err(|failure| api.failed(failure))?;
    Ok(code)
}

/// Waits until the pod of a Job runs, and returns its name.
fn started(api: &ClusterApi, job: &str) -> Result<String, SubmitError> {
    let mut last = Ok(Vec::new());
    let is_ready = |pod: &Value| pod_state::is_running(pod) || pod_state::is_over(pod);
    ronde_clock::wait_until_every(START_MAX, ASK_EVERY, || {
        last = api.pods(job);
        last.as_ref().is_ok_and(|pods| pods.iter().any(is_ready))
    });
    let pods = last.map_err(|failure| api.failed(failure))?;
    if let Some(pod) = pods.iter().find(|pod| pod_state::is_running(pod)) {
        return Ok(pod_state::name(pod).to_owned());
    }
    let reason = match pods.first() {
        Some(pod) => pod_state::reason(pod),
        None => {
            let events = api.events("Job", job).unwrap_or_default();
            pod_state::newest_warning(&events).unwrap_or_else(|| "it is not created".to_owned())
        }
    };
    Err(api.problem(format!(
        "the pod of Job {job}, which reads the results, does not start: {reason}"
    )))
}

fn document(settings: &KubernetesSettings, namespace: &str, job: &str) -> Value {
    let life = LIFE_S.to_string();
    let amounts = json!({ "cpu": "100m", "memory": "256Mi" });
    let mut pod = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "enableServiceLinks": false,
        "automountServiceAccountToken": false,
        "securityContext": manifest::security(),
        "volumes": [results_volume(settings)],
        "containers": [{
            "name": CONTAINER,
            "image": settings.image,
            "command": ["ronde", "__job", "hold", "--seconds", life],
            // Quotas may refuse pods without them.
            "resources": { "requests": amounts, "limits": amounts },
            "securityContext": manifest::container_security(),
            "volumeMounts": [{ "name": "results", "mountPath": RESULTS }],
        }],
    });
    if let Some(further) = &settings.pod {
        manifest::merge(&mut pod, further);
    }
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "generateName": format!("{job}-reader-"),
            "namespace": namespace,
            "labels": manifest::labels(job),
        },
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "activeDeadlineSeconds": LIFE_S,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": { "metadata": { "labels": manifest::labels(job) }, "spec": pod },
        },
    })
}
