//! The output of the launcher of a job: of all pods with index 0, one after another.

use std::collections::BTreeSet;
use std::io::Write;

use serde_json::Value;

use super::api::{ApiFailure, ClusterApi};
use super::manifest::CONTAINER;
use super::{ASK_EVERY, pod_state};
use crate::clock;
use crate::error::SubmitError;

/// Copies the output of the launcher to `out`; with `follow` also that of pods that replace the first one, until `is_over`.
pub(super) fn of_launcher(
    api: &ClusterApi,
    job: &str,
    follow: bool,
    out: &mut dyn Write,
    is_over: &mut dyn FnMut() -> Result<bool, SubmitError>,
) -> Result<(), SubmitError> {
    let mut shown = BTreeSet::new();
    loop {
        // Looked at before the pods, so that no output is missed.
        let over = !follow || is_over()?;
        let pods = api.pods(job).map_err(|failure| api.failed(failure))?;
        for pod in pod_state::leaders(&pods) {
            let name = pod_state::name(&pod).to_owned();
            let has_begun = pod_state::is_running(&pod) || pod_state::is_over(&pod);
            if has_begun && !shown.contains(&name) {
                copy(api, &pod, follow, out)?;
                shown.insert(name);
            }
        }
        if over {
            return Ok(());
        }
        clock::pause(ASK_EVERY);
    }
}

fn copy(
    api: &ClusterApi,
    pod: &Value,
    follow: bool,
    out: &mut dyn Write,
) -> Result<(), SubmitError> {
    match api.log(pod_state::name(pod), CONTAINER, follow, out) {
        // It has been deleted meanwhile.
        Ok(()) | Err(ApiFailure::Status { code: 404, .. }) => Ok(()),
        Err(failure) => Err(api.failed(failure)),
    }
}
