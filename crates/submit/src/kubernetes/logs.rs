//! The output of the launcher of a job: of all pods that have led it, one after another.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::Value;

use super::api::{ApiFailure, ClusterApi};
use super::manifest::CONTAINER;
use super::{ASK_EVERY, leading_pod, pod_state};
use crate::error::SubmitError;
use crate::interruptions::Interruptions;
use crate::skipping_writer::SkippingWriter;

/// The shown output of a pod.
#[derive(Default)]
struct ShownLog {
    bytes: u64,
    /// Whether the connection was lost before its end.
    is_cut: bool,
    is_complete: bool,
}

/// Copies the output of the launcher to `out`.
pub(super) fn of_launcher(
    api: &ClusterApi,
    job: &str,
    out: &mut dyn Write,
) -> Result<(), SubmitError> {
    copy_new(api, job, false, &mut BTreeMap::new(), out)
}

/// Copies the output of the launcher, and of pods that replace the first one, to `out` until `is_over`.
pub(super) fn follow_launcher(
    api: &ClusterApi,
    job: &str,
    interrupted: fn(&SubmitError),
    out: &mut dyn Write,
    is_over: &mut dyn FnMut() -> Result<bool, SubmitError>,
) -> Result<(), SubmitError> {
    let mut shown = BTreeMap::new();
    let mut interruptions = Interruptions::new(interrupted);
    loop {
        // Looked at before the pods, so that no output is missed.
        let over = is_over().and_then(|over| {
            copy_new(api, job, !over, &mut shown, out)?;
            // Of a log whose connection was lost, the rest follows.
            Ok(over && !shown.values().any(|log| log.is_cut))
        });
        if interruptions.pass(over)? == Some(true) {
            return Ok(());
        }
        ronde_clock::pause(ASK_EVERY);
    }
}

/// Copies the new output of all pods that lead the job.
fn copy_new(
    api: &ClusterApi,
    job: &str,
    follow: bool,
    shown: &mut BTreeMap<String, ShownLog>,
    out: &mut dyn Write,
) -> Result<(), SubmitError> {
    let pods = api.pods(job).map_err(|failure| api.failed(failure))?;
    let leading = leading_pod(api, &pods);
    let leading = leading.as_ref().map(pod_state::name);
    let is_shown = |pod: &Value| leading == Some(pod_state::name(pod));
    let mut leaders = pod_state::leaders(&pods);
    // The index is another one when a pod has replaced a leader.
    leaders.extend(pod_state::later_leaders(&pods));
    leaders.extend(pods.iter().filter(|pod| is_shown(pod)).cloned());
    leaders.dedup_by_key(|pod| pod_state::name(pod).to_owned());
    for pod in leaders
        .into_iter()
        .filter(|pod| !pod_state::is_on_lost_node(pod))
    {
        let follow = follow && is_shown(&pod);
        // A request that is sent after the end of the pod returns all of its output. One that was sent before may end
        // earlier: servers and proxies close connections.
        let has_ended = pod_state::is_over(&pod);
        let log = shown.entry(pod_state::name(&pod).to_owned()).or_default();
        if !log.is_complete && (has_ended || pod_state::is_running(&pod)) {
            copy(api, &pod, follow, log, out)?;
            log.is_complete = has_ended && !log.is_cut;
        }
    }
    Ok(())
}

fn copy(
    api: &ClusterApi,
    pod: &Value,
    follow: bool,
    shown: &mut ShownLog,
    out: &mut dyn Write,
) -> Result<(), SubmitError> {
    let mut rest = SkippingWriter::new(out, shown.bytes);
    let copied = api.log(pod_state::name(pod), CONTAINER, follow, &mut rest);
    let seen = rest.seen();
    shown.is_cut = false;
    shown.bytes = match &copied {
        // A log that is shorter than before was rotated, and its output is shown from there on.
        Ok(()) => seen,
        Err(_) => seen.max(shown.bytes),
    };
    match copied {
        // It has been deleted meanwhile.
        Ok(()) | Err(ApiFailure::Status { code: 404, .. }) => Ok(()),
        // The connection was lost: the rest follows with the next request, which reports a server that does not answer.
        Err(ApiFailure::Unreachable(_)) if follow && seen > 0 => {
            shown.is_cut = true;
            Ok(())
        }
        Err(failure) => Err(api.failed(failure)),
    }
}
