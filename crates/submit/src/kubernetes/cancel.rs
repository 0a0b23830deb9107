//! Ends a job: its launcher saves a checkpoint if it can; then the Job is suspended, which ends its pods and keeps its record.
//! A missing right is reported, and another way is used.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::{ApiFailure, ClusterApi};
use super::manifest::grace_of_pods;
use super::{ASK_EVERY, KubernetesSettings, POD_FOLDER, exec, leading_pod, pod_state};
use crate::error::SubmitError;

/// Time limit for all processes of a cancelled job to end.
const END_MAX: Duration = Duration::from_secs(90);

/// Time limit for Kubernetes to notice that a pod has ended.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

/// A job that is being cancelled.
pub(super) struct JobCancellation<'a> {
    pub(super) api: &'a ClusterApi,
    pub(super) settings: &'a KubernetesSettings,
    /// The name of the Job.
    pub(super) name: &'a str,
    /// Whether the job has ended.
    pub(super) is_over: &'a dyn Fn() -> bool,
    /// Receives the other way, and the reason.
    pub(super) report: fn(&str),
}

impl JobCancellation<'_> {
    /// Ends the job.
    pub(super) fn run(&self, grace: Duration) -> Result<(), SubmitError> {
        if (self.is_over)() {
            return Ok(());
        }
        if !grace.is_zero() && self.end_gracefully(grace)? {
            return Ok(());
        }
        self.suspend()?;
        let limit = match self.delete_pods()? {
            true => END_MAX,
            // Kubernetes ends them, with the time that they have for it.
            false => END_MAX + Duration::from_secs(grace_of_pods(self.settings).into()),
        };
        let is_empty = || (self.is_over)() && !self.has_running_pods();
        match ronde_clock::wait_until_every(limit, ASK_EVERY, is_empty) {
            true => Ok(()),
            false => Err(self.api.problem(format!(
                "the pods of Job {} have not ended within {} s",
                self.name,
                limit.as_secs()
            ))),
        }
    }

    fn pods(&self) -> Result<Vec<Value>, SubmitError> {
        let pods = self.api.pods(self.name);
        pods.map_err(|failure| self.api.failed(failure))
    }

    /// Returns whether pods of the job run. A server that does not answer reports none that has ended.
    fn has_running_pods(&self) -> bool {
        let pods = self.api.pods(self.name);
        pods.map_or(true, |pods| pods.iter().any(pod_state::is_running))
    }

    /// Ends the launcher after a last checkpoint, which makes the Job fail. Without the right to run a command in its pod, the pod
    /// is deleted with this time to end, and the Job is suspended, which without the right to delete pods has the same effect with the
    /// time that the target allows: the launcher gets SIGTERM. Returns whether the job has ended by itself.
    fn end_gracefully(&self, grace: Duration) -> Result<bool, SubmitError> {
        let Some(pod) = leading_pod(self.api, &self.pods()?).filter(pod_state::is_running) else {
            return Ok(false);
        };
        let pod = pod_state::name(&pod);
        let seconds = grace.as_secs().to_string();
        let words = [
            "ronde",
            "__job",
            "pod-cancel",
            "--grace",
            &seconds,
            POD_FOLDER,
        ];
        let words = words.map(str::to_owned);
        let ended = exec::start(self.api, pod, &words);
        let refused = match ended {
            Err(refused @ ApiFailure::Status { .. }) if !(self.is_over)() => refused,
            Err(ApiFailure::Status { .. }) => return Ok(true),
            // The connection may break when the pod ends, as requested.
            ended => {
                let is_noticed = ronde_clock::wait_until_every(
                    grace.min(NOTICED_WITHIN),
                    ASK_EVERY,
                    self.is_over,
                );
                if let Err(lost) = ended
                    && !is_noticed
                {
                    (self.report)(&format!(
                        "the connection to pod {pod} was lost: {lost}; waiting up to {seconds} s for the end of the job"
                    ));
                }
                return Ok(ronde_clock::wait_until_every(
                    grace,
                    ASK_EVERY,
                    self.is_over,
                ));
            }
        };
        (self.report)(&format!(
            "cannot run a command in pod {pod}: {refused}; deleting the pod, so that its processes get SIGTERM and {seconds} s \
             for a last checkpoint"
        ));
        let seconds = u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
        if let Err(refused) = self.api.delete_pod(pod, seconds) {
            (self.report)(&format!(
                "cannot delete pod {pod}: {refused}; suspending the Job, so that Kubernetes ends its pods with SIGTERM"
            ));
        }
        // At once: the Job would replace the pod. The other pods get SIGTERM too, and stay as long as their run stops.
        self.suspend()?;
        ronde_clock::wait_until_every(grace, ASK_EVERY, || !self.has_running_pods());
        Ok(false)
    }

    /// Suspends the Job, which ends its pods. The note is for readers of its output.
    fn suspend(&self) -> Result<(), SubmitError> {
        let suspend = json!({
            "metadata": { "annotations": { pod_state::CANCELLED: "true" } }, "spec": { "suspend": true },
        });
        let patched = self.api.patch_job(self.name, &suspend);
        patched
            .map(|_| ())
            .map_err(|failure| self.api.failed(failure))
    }

    /// Deletes the remaining pods at once. Returns whether the user may do that.
    fn delete_pods(&self) -> Result<bool, SubmitError> {
        for pod in self.pods()? {
            match self.api.delete_pod(pod_state::name(&pod), 0) {
                Ok(()) => {}
                Err(refused @ ApiFailure::Status { code: 403, .. }) => {
                    (self.report)(&format!(
                        "cannot delete pods: {refused}; Kubernetes ends them, within {} s",
                        grace_of_pods(self.settings)
                    ));
                    return Ok(false);
                }
                Err(failure) => return Err(self.api.failed(failure)),
            }
        }
        Ok(true)
    }
}
