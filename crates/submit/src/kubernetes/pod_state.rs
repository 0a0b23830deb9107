//! The state of a job from its Job and pods, as a server describes them. Pure.

use serde_json::Value;

use crate::state::JobState;

/// The annotation with the index of a pod.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The exit codes of pods that were drained or killed, after which the run continues.
const LEFT_CODES: [i64; 2] = [143, 137];
/// The reason of a pod that is not ready although its containers are, because of something outside of it.
const READINESS_GATES: &str = "ReadinessGatesNotReady";
/// The annotation of a Job that was cancelled and is suspended.
pub(super) const CANCELLED: &str = "ronde/cancelled";

/// Returns the name of an object.
pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Returns the name of the Job of a pod.
pub(super) fn job(pod: &Value) -> &str {
    let name = &pod["metadata"]["labels"]["batch.kubernetes.io/job-name"];
    name.as_str().unwrap_or_default()
}

/// Returns the pods with index 0, the newest last.
pub(super) fn leaders(pods: &[Value]) -> Vec<Value> {
    let is_leader = |pod: &&Value| pod["metadata"]["annotations"][INDEX] == "0";
    let mut leaders: Vec<Value> = pods.iter().filter(is_leader).cloned().collect();
    leaders.sort_by_key(|pod| {
        let created = pod["metadata"]["creationTimestamp"].as_str();
        (created.unwrap_or_default().to_owned(), !is_over(pod))
    });
    leaders
}

/// Returns the newest pod with index 0.
pub(super) fn leader(pods: &[Value]) -> Option<Value> {
    leaders(pods).pop()
}

/// Returns the pods of further indexes that have led the job: they have ended with an exit code of the run.
pub(super) fn later_leaders(pods: &[Value]) -> Vec<Value> {
    let has_led = |pod: &&Value| {
        pod["metadata"]["annotations"][INDEX] != "0"
            && container_code(pod).is_some_and(|code| !LEFT_CODES.contains(&code))
    };
    pods.iter().filter(has_led).cloned().collect()
}

/// Returns the exit code of the container of a pod that has ended.
fn container_code(pod: &Value) -> Option<i64> {
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"].as_i64()
}

/// Returns the pod whose end is that of the run, or else the newest one with index 0.
fn decisive(pods: &[Value]) -> Option<Value> {
    later_leaders(pods).pop().or_else(|| leader(pods))
}

/// Returns the pods that may lead: those that run on nodes that answer, in the order of their indexes.
pub(super) fn candidates(pods: &[Value]) -> Vec<Value> {
    let runs = |pod: &&Value| is_running(pod) && !is_on_lost_node(pod);
    let mut running: Vec<Value> = pods.iter().filter(runs).cloned().collect();
    running.sort_by_key(|pod| {
        let index = pod["metadata"]["annotations"][INDEX].as_str();
        index.and_then(|index| index.parse::<u32>().ok())
    });
    running
}

/// Returns whether the node of a pod does not answer. Kubernetes then declares the pod not ready, beside the last report about its
/// containers, and removes it after its toleration, which takes until the node is back.
pub(super) fn is_on_lost_node(pod: &Value) -> bool {
    let disrupted = condition(pod, "DisruptionTarget");
    let is_removed = !pod["metadata"]["deletionTimestamp"].is_null()
        && disrupted.is_some_and(|found| found["reason"] == "DeletionByTaintManager");
    let of_containers = condition(pod, "ContainersReady");
    let is_declared = condition(pod, "Ready")
        .is_some_and(|found| found["status"] == "False" && found["reason"] != READINESS_GATES)
        && of_containers.is_some_and(|found| found["status"] == "True");
    is_removed || is_running(pod) && is_declared
}

/// Returns whether the container of a pod runs.
pub(super) fn is_running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

/// Returns whether the container of a pod has ended.
pub(super) fn is_over(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}

/// Returns whether the run of the Job has ended. The server may still end other pods of it, which on a lost node takes until the
/// node is back.
pub(super) fn is_finished(job: &Value) -> bool {
    has_succeeded(job) || has_failed(job)
}

fn has_succeeded(job: &Value) -> bool {
    has(job, "Complete") || has(job, "SuccessCriteriaMet")
}

/// Returns whether `ronde cancel` has ended the Job without its launcher.
fn is_cancelled_here(job: &Value) -> bool {
    job["metadata"]["annotations"][CANCELLED] == "true"
}

/// Returns whether the Job has failed, or fails as soon as its other pods have ended.
pub(super) fn has_failed(job: &Value) -> bool {
    has(job, "Failed") || has(job, "FailureTarget")
}

fn has(job: &Value, kind: &str) -> bool {
    condition(job, kind).is_some_and(|condition| condition["status"] == "True")
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
}

/// Returns the state of a job; `job` is `None` if the server has no such Job.
pub(super) fn job_state(job: Option<&Value>, pods: &[Value], is_cancelled: bool) -> JobState {
    let Some(job) = job else {
        return match is_cancelled {
            true => JobState::Cancelled,
            false => JobState::Lost,
        };
    };
    if has_succeeded(job) {
        return JobState::Finished;
    }
    if has_failed(job) {
        return match (is_cancelled, exit_code(job, pods)) {
            (true, _) => JobState::Cancelled,
            (false, Some(code)) => JobState::Failed {
                code,
                reason: last_words(pods),
            },
            (false, None) => JobState::Lost,
        };
    }
    let is_suspended = job["spec"]["suspend"] == true;
    let lost = pods
        .iter()
        .find(|pod| is_running(pod) && is_on_lost_node(pod));
    match leader(pods) {
        _ if is_suspended && (is_cancelled || is_cancelled_here(job)) => JobState::Cancelled,
        _ if is_suspended => queued("suspended"),
        _ if !candidates(pods).is_empty() => JobState::Running {
            problem: lost.map(on_lost_node),
        },
        Some(pod) if is_running(&pod) => JobState::Running {
            problem: Some(on_lost_node(&pod)),
        },
        Some(pod) if is_over(&pod) => queued("its first pod is replaced"),
        Some(pod) => queued(&reason(&pod)),
        None => queued("its pods are created"),
    }
}

/// Returns the problem of a pod on a lost node.
fn on_lost_node(pod: &Value) -> String {
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    format!(
        "node {node} of pod {} does not answer; Kubernetes replaces the pod when the node is back or removed",
        name(pod)
    )
}

fn queued(reason: &str) -> JobState {
    JobState::Queued {
        reason: reason.to_owned(),
    }
}

/// Returns the kind and the name of the object whose events may have the reason for which a Job waits: its first pod, or the Job itself while it has
/// none. `None` if its state needs no such reason.
pub(super) fn waiting_object(
    job: Option<&Value>,
    pods: &[Value],
) -> Option<(&'static str, String)> {
    let job = job.filter(|job| !is_finished(job) && job["spec"]["suspend"] != true)?;
    match leader(pods) {
        _ if !candidates(pods).is_empty() => None,
        None => Some(("Job", name(job).to_owned())),
        Some(pod) if is_running(&pod) || is_over(&pod) => None,
        Some(pod) if has_message(&pod) => None,
        Some(pod) => Some(("Pod", name(&pod).to_owned())),
    }
}

/// Returns the state of a waiting job with the newest warning among the events of the object that it waits for.
pub(super) fn with_events(state: JobState, events: &[Value]) -> JobState {
    match (state, newest_warning(events)) {
        (JobState::Queued { .. }, Some(warning)) => queued(&warning),
        (state, _) => state,
    }
}

/// Returns the newest warning among events, with its reason.
pub(super) fn newest_warning(events: &[Value]) -> Option<String> {
    let warnings = events.iter().filter(|event| event["type"] == "Warning");
    let newest = warnings.max_by_key(|event| {
        let times = ["lastTimestamp", "eventTime"].map(|key| event[key].as_str());
        let created = event["metadata"]["creationTimestamp"].as_str();
        let time = times.into_iter().flatten().chain(created).next();
        time.unwrap_or_default().to_owned()
    })?;
    let text = |key: &str| newest[key].as_str().unwrap_or_default();
    Some(format!("{}: {}", text("reason"), text("message")))
}

/// Returns the part of a pod's status that describes its start.
fn start_status(pod: &Value) -> &Value {
    let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
    let scheduled = condition(pod, "PodScheduled");
    let not_scheduled = scheduled.filter(|condition| condition["status"] == "False");
    not_scheduled.unwrap_or(waiting)
}

fn has_message(pod: &Value) -> bool {
    start_status(pod)["message"]
        .as_str()
        .is_some_and(|text| !text.is_empty())
}

/// Returns why a pod does not run yet.
pub(super) fn reason(pod: &Value) -> String {
    let source = start_status(pod);
    let text = |key: &str| source[key].as_str().unwrap_or_default();
    match (text("reason"), text("message")) {
        ("", _) => "it is starting".to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

/// Returns the last error in the output of the pod that led, as far as its status has it, or else the last line.
fn last_words(pods: &[Value]) -> Option<String> {
    let pod = decisive(pods)?;
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    let mut lines = ended["message"].as_str()?.lines().rev();
    let mut lines_again = lines.clone();
    let error = lines.find(|line| line.starts_with("error"));
    let last = || lines_again.find(|line| !line.trim().is_empty());
    error.or_else(last).map(str::to_owned)
}

/// Returns the exit code that made a Job fail: the one that the server reports, or that of the pod that led.
fn exit_code(job: &Value, pods: &[Value]) -> Option<i32> {
    let of_pod = decisive(pods).and_then(|pod| container_code(&pod));
    let reported = || {
        let failed = condition(job, "Failed").or_else(|| condition(job, "FailureTarget"));
        let message = failed?["message"].as_str()?;
        let (_, rest) = message.split_once("exit code ")?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let code = reported().or(of_pod.filter(|code| *code != 0))?;
    i32::try_from(code).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, index: &str, created: &str, status: Value) -> Value {
        json!({
            "metadata": {
                "name": name, "creationTimestamp": created,
                "annotations": { INDEX: index },
            },
            "status": status,
        })
    }

    #[test]
    fn a_failed_job_has_the_last_error_of_its_first_pod() {
        let message = |text: &str| {
            let mut status = ended(2);
            status["containerStatuses"][0]["state"]["terminated"]["message"] = text.into();
            [pod("a", "0", "t", status)]
        };
        let state =
            |text: &str| job_state(Some(&over("Failed", "")), &message(text), false).to_string();
        assert_eq!(
            state("rank 0\nerror: no such file: x\n  help: y\n"),
            "failed (exit code 2): no such file: x"
        );
        assert_eq!(state("Killed\n\n"), "failed (exit code 2): Killed");
        assert_eq!(state(""), "failed (exit code 2)");
    }

    fn ended(code: i32) -> Value {
        json!({ "phase": "Failed", "containerStatuses": [{ "state": { "terminated": { "exitCode": code } } }] })
    }

    #[test]
    fn the_newest_pod_with_index_0_decides_while_the_job_has_not_ended() {
        let job = json!({ "spec": { "suspend": false }, "status": {} });
        let unschedulable = json!({
            "phase": "Pending",
            "conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/3 nodes are available",
            }],
        });
        let pulling = json!({
            "phase": "Pending",
            "containerStatuses": [{ "state": { "waiting": { "reason": "ImagePullBackOff" } } }],
        });
        let running = || json!({ "phase": "Running" });
        let state = |pods: &[Value]| job_state(Some(&job), pods, false).to_string();
        let one = |status| [pod("a", "0", "2026-01-01T00:00:00Z", status)];
        assert_eq!(
            state(&one(unschedulable)),
            "queued (Unschedulable: 0/3 nodes are available)"
        );
        assert_eq!(state(&one(pulling)), "queued (ImagePullBackOff)");
        assert_eq!(state(&one(running())), "running");
        assert_eq!(state(&[]), "queued (its pods are created)");
        let replaced = [
            pod("b", "0", "2026-01-01T00:01:00Z", running()),
            pod("a", "0", "2026-01-01T00:00:00Z", ended(137)),
            pod("c", "1", "2026-01-01T00:02:00Z", ended(1)),
        ];
        assert_eq!(state(&replaced), "running");
        assert_eq!(
            leader(&replaced)
                .map(|pod| name(&pod).to_owned())
                .as_deref(),
            Some("b")
        );
    }

    #[test]
    fn a_pod_on_a_lost_node_does_not_lead_and_its_node_is_named() {
        let job = json!({ "spec": { "suspend": false }, "status": {} });
        let running = || json!({ "phase": "Running" });
        let mut lost = pod(
            "a",
            "0",
            "t",
            json!({
                "phase": "Running",
                "conditions": [{ "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager" }],
            }),
        );
        lost["metadata"]["deletionTimestamp"] = "2026-01-01T00:05:30Z".into();
        lost["spec"] = json!({ "nodeName": "n1" });
        let state = |pods: &[Value]| job_state(Some(&job), pods, false).to_string();
        let named = "running: node n1 of pod a does not answer; Kubernetes replaces the pod when the node is back or removed";
        assert_eq!(state(&[lost.clone()]), named);
        let others = [
            pod("c", "10", "t", running()),
            lost,
            pod("b", "2", "t", running()),
        ];
        assert_eq!(state(&others), named);
        let led = candidates(&others);
        let names: Vec<&str> = led.iter().map(name).collect();
        assert_eq!(names, ["b", "c"]);
        // Before it is removed.
        let declared = |ready: &str, containers: &str, reason: &str| {
            let status = json!({
                "phase": "Running",
                "conditions": [
                    { "type": "Ready", "status": ready, "reason": reason },
                    { "type": "ContainersReady", "status": containers },
                ],
            });
            is_on_lost_node(&pod("a", "0", "t", status))
        };
        assert!(declared("False", "True", ""));
        assert!(!declared("True", "True", "") && !declared("False", "False", ""));
        assert!(!declared("False", "True", "ReadinessGatesNotReady"));
    }

    #[test]
    fn a_pod_of_another_index_that_has_led_decides_how_the_job_ended() {
        let message = |mut status: Value| {
            status["containerStatuses"][0]["state"]["terminated"]["message"] = "error: x".into();
            status
        };
        let pods = [
            pod("a", "0", "t", ended(143)),
            pod("b", "1", "t", message(ended(3))),
            pod("c", "2", "t", ended(137)),
        ];
        let names: Vec<String> = later_leaders(&pods)
            .iter()
            .map(|pod| name(pod).to_owned())
            .collect();
        assert_eq!(names, ["b"]);
        let state = job_state(Some(&over("Failed", "")), &pods, false);
        assert_eq!(state.to_string(), "failed (exit code 3): x");
    }

    /// Returns a Job with a condition.
    fn over(kind: &str, message: &str) -> Value {
        json!({ "spec": {}, "status": { "conditions": [
            { "type": kind, "status": "True", "message": message },
        ] } })
    }

    #[test]
    fn the_end_of_a_job_has_its_exit_code() {
        let code =
            "Container ronde for pod ns/x failed with exit code 2 matching FailJob rule at index 2";
        let limit = "Job has reached the specified backoff limit";
        let of_pod = [pod("a", "0", "t", ended(3))];
        let failed = JobState::failed;
        for (job, pods, expected) in [
            (over("Complete", ""), &of_pod[..], JobState::Finished),
            (over("Failed", code), &of_pod[..], failed(2)),
            (over("Failed", limit), &of_pod[..], failed(3)),
            (over("Failed", code), &[], failed(2)),
            (over("Failed", limit), &[], JobState::Lost),
            // A pod on a lost node does not end.
            (over("FailureTarget", code), &of_pod[..], failed(2)),
            (
                over("SuccessCriteriaMet", ""),
                &of_pod[..],
                JobState::Finished,
            ),
        ] {
            assert_eq!(job_state(Some(&job), pods, false), expected, "{job:?}");
        }
        assert_eq!(job_state(None, &[], false), JobState::Lost);
    }

    #[test]
    fn a_cancelled_job_has_failed_is_suspended_or_gone() {
        let of_pod = [pod("a", "0", "t", ended(3))];
        let suspended = json!({ "spec": { "suspend": true } });
        let noted = json!({
            "metadata": { "annotations": { CANCELLED: "true" } }, "spec": { "suspend": true },
        });
        for (job, is_cancelled) in [
            (Some(over("Failed", "")), true),
            (Some(suspended), true),
            (Some(noted), false),
            (None, true),
        ] {
            let state = job_state(job.as_ref(), &of_pod, is_cancelled);
            assert_eq!(state, JobState::Cancelled, "{job:?}");
        }
    }

    #[test]
    fn events_tell_why_a_job_has_no_pod_or_its_pod_does_not_start() {
        let job =
            json!({ "metadata": { "name": "x" }, "spec": { "suspend": false }, "status": {} });
        let object = |pods: &[Value]| waiting_object(Some(&job), pods);
        let one = |status| [pod("a", "0", "t", status)];
        assert_eq!(object(&[]), Some(("Job", "x".to_owned())));
        let creating = json!({
            "phase": "Pending",
            "containerStatuses": [{ "state": { "waiting": { "reason": "ContainerCreating" } } }],
        });
        assert_eq!(object(&one(creating)), Some(("Pod", "a".to_owned())));
        let pulling = json!({ "phase": "Pending", "containerStatuses": [{ "state": {
            "waiting": { "reason": "ImagePullBackOff", "message": "back-off" },
        } }] });
        assert_eq!(object(&one(pulling)), None, "it has its reason");
        assert_eq!(object(&one(json!({ "phase": "Running" }))), None);
        let event = |kind: &str, reason: &str, time: &str| json!({ "type": kind, "reason": reason, "message": "m", "lastTimestamp": time, "eventTime": null });
        let events = [
            event("Warning", "FailedCreate", "2026-01-01T00:00:02Z"),
            event("Warning", "FailedMount", "2026-01-01T00:00:01Z"),
            event("Normal", "Scheduled", "2026-01-01T00:00:03Z"),
        ];
        let state = with_events(queued("its pods are created"), &events);
        assert_eq!(state.to_string(), "queued (FailedCreate: m)");
        assert_eq!(with_events(JobState::RUNNING, &events), JobState::RUNNING);
        assert_eq!(with_events(queued("a"), &[]), queued("a"));
    }
}
