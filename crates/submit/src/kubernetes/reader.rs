//! A pod that reads the results of a job that has ended, for as long as one command takes.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::ClusterApi;
use super::manifest::{CONTAINER, RESULTS, results_volume};
use super::{ASK_EVERY, KubernetesSettings, exec, manifest, pod_state};
use crate::clock;
use crate::error::SubmitError;
use crate::platform::insert;

/// Time limit for the pod to start.
const START_MAX: Duration = Duration::from_secs(180);
/// Seconds after which the pod ends by itself, if its client was killed.
const LIFE_S: u32 = 3600;

/// Runs a command in a new pod with the results of a job, and removes the pod. Returns the exit code.
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
        // The Job's controller must not count the pod as one of its own.
        insert(&mut owner, "controller", false);
        insert(&mut document["metadata"], "ownerReferences", json!([owner]));
    }
    let created = api.create("pods", &document);
    let created = created.map_err(|failure| api.failed(failure))?;
    let name = pod_state::name(&created).to_owned();
    let ran = started(api, &name).and_then(|()| exec::run(api, &name, command, out));
    let deleted = api.delete_pod(&name, 0);
    let code = ran?;
    deleted.map_err(|failure| api.failed(failure))?;
    Ok(code)
}

/// Waits until the pod runs.
fn started(api: &ClusterApi, name: &str) -> Result<(), SubmitError> {
    let mut last = Ok(Value::Null);
    let is_running = clock::wait_until_every(START_MAX, ASK_EVERY, || {
        last = api.pod(name);
        last.as_ref()
            .is_ok_and(|pod| pod_state::is_running(pod) || pod_state::is_over(pod))
    });
    let pod = last.map_err(|failure| api.failed(failure))?;
    match is_running && pod_state::is_running(&pod) {
        true => Ok(()),
        false => Err(api.problem(format!(
            "pod {name}, which reads the results, does not start: {}",
            pod_state::reason(&pod)
        ))),
    }
}

fn document(settings: &KubernetesSettings, namespace: &str, job: &str) -> Value {
    let life = LIFE_S.to_string();
    let mut pod = json!({
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFE_S,
        "enableServiceLinks": false,
        "automountServiceAccountToken": false,
        "securityContext": manifest::security(),
        "volumes": [results_volume(settings)],
        "containers": [{
            "name": CONTAINER,
            "image": settings.image,
            "command": ["ronde", "__job", "hold", "--seconds", life],
            "securityContext": manifest::container_security(),
            "volumeMounts": [{ "name": "results", "mountPath": RESULTS }],
        }],
    });
    if let Some(further) = &settings.pod {
        manifest::merge(&mut pod, further);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": format!("{job}-reader-"),
            "namespace": namespace,
            "labels": manifest::labels(job),
        },
        "spec": pod,
    })
}
