//! `[elastic]`: recovery from lost workers.

use ronde_protocol::SuccessionPolicy;
use serde::{Deserialize, Serialize};

use super::{TIMEOUT_S_MAX, at_least_one};
use crate::config::ConfigProblem;

/// The shortest silence after which a worker can be considered lost. A busy machine causes shorter ones.
const SILENCE_S_MIN: f64 = 0.2;
/// The shortest lease. With a shorter one, a coordinator loses its lease when the disk is briefly busy.
const LEASE_S_MIN: f64 = 0.5;

/// `[elastic]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ElasticSection {
    /// Whether training continues when a worker is lost; default true.
    pub enabled: bool,
    /// The smallest number of workers that train; fewer wait for more. Default 1.
    pub min_workers: u32,
    /// The largest number of workers that the job can be scaled to while it runs; default 0: the number of
    /// logical shards, times `parallel.pipeline` and `parallel.tensor`.
    pub max_workers: u32,
    /// How often a failed worker is restarted within `restart_window_s` before the job continues without it;
    /// default 5. 0: no restarts.
    pub max_restarts: u32,
    /// Failures longer ago are not counted; default 600 seconds. The delay before a restart doubles with each
    /// failure within this window, from half a second to a minute.
    pub restart_window_s: f64,
    /// A worker that sends no heartbeat for this long is considered lost; default 1 second.
    pub silence_s: f64,
    /// How long a failed coordinator's lease prevents another one from taking over; default 3 seconds.
    pub lease_s: f64,
    /// Which workers continue when others are unreachable; default `lease`. With `majority`, two halves that
    /// cannot reach each other both wait.
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "super::words::<SuccessionPolicy>")
    )]
    pub succession: SuccessionPolicy,
    /// How long the job waits for `min_workers` before it ends; default 600 seconds.
    pub wait_s: f64,
    /// How long workers that have only parts of the state wait for silent ones that may have the others, before they return to a
    /// checkpoint or to the beginning; default 30 seconds.
    pub state_wait_s: f64,
    /// With several hosts: how long a host trains without contact to any coordinator before its workers end; default
    /// 600 seconds.
    pub contact_s: f64,
    /// The number of steps after which each worker copies its state, also after the first one, and sends the parts that no other worker has to another one; default 0:
    /// never. Such parts are the residuals of compressed gradients and what replicas of local SGD keep. After a loss, all workers return to
    /// the newest copy instead of a checkpoint.
    #[serde(skip_serializing_if = "is_zero")]
    #[cfg_attr(feature = "schema", schemars(extend("examples" = [10])))]
    pub copy_steps: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Default for ElasticSection {
    fn default() -> Self {
        Self {
            enabled: true,
            min_workers: 1,
            max_workers: 0,
            max_restarts: 5,
            restart_window_s: 600.0,
            silence_s: 1.0,
            lease_s: 3.0,
            succession: SuccessionPolicy::Lease,
            wait_s: 600.0,
            state_wait_s: 30.0,
            contact_s: 600.0,
            copy_steps: 0,
        }
    }
}

impl ElasticSection {
    /// Adds the problems of the section in a run of `count` workers, of which at most `most` can compute because of the key `limit`.
    pub(in crate::config) fn check(
        &self,
        count: u32,
        (most, limit): (u32, &str),
        problems: &mut Vec<ConfigProblem>,
    ) {
        at_least_one("elastic.min_workers", self.min_workers.into(), problems);
        if self.min_workers > count {
            let message = format!(
                "`elastic.min_workers` is {}, but the run has {count} worker{}",
                self.min_workers,
                if count == 1 { "" } else { "s" }
            );
            problems.push(ConfigProblem::error("elastic.min_workers", message));
        }
        if self.max_workers > most || (1..count).contains(&self.max_workers) {
            let message = format!(
                "`elastic.max_workers` is {}, but must be 0, or between {count} (workers.count) and {most} ({limit})",
                self.max_workers,
            );
            problems.push(ConfigProblem::error("elastic.max_workers", message));
        }
        for (path, value, least) in [
            ("elastic.silence_s", self.silence_s, SILENCE_S_MIN),
            ("elastic.lease_s", self.lease_s, LEASE_S_MIN),
            ("elastic.restart_window_s", self.restart_window_s, 0.0),
            ("elastic.wait_s", self.wait_s, 0.0),
            ("elastic.state_wait_s", self.state_wait_s, 0.0),
            (
                "elastic.contact_s",
                self.contact_s,
                self.silence_s + self.lease_s,
            ),
        ] {
            if !(value >= least && value <= TIMEOUT_S_MAX) {
                let message =
                    format!("`{path}` is {value}, but must be {least} to {TIMEOUT_S_MAX} seconds");
                problems.push(ConfigProblem::error(path, message));
            }
        }
    }
}
