//! `[workers]`: the number of processes and of logical shards.

use ronde_core::WorldSize;
use ronde_core::shards::ShardPlan;
use serde::{Deserialize, Serialize};

use super::{ParallelSection, at_least_one, is_default};
use crate::config::ConfigProblem;

/// The largest number of logical shards.
const LOGICAL_SHARDS_MAX: u32 = 65_536;
/// The largest number of computing threads of a worker.
const THREADS_MAX: u32 = 1_024;

/// `[workers]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct WorkersSection {
    /// The number of worker processes; default 1. The trained bits do not depend on it.
    #[serde(serialize_with = "ronde_core::outside_identity")]
    pub count: u32,
    /// The number of parts of each global batch, at least one per worker; default 8.
    pub logical_shards: u32,
    /// The number of threads that compute in each worker; default 1. The trained bits do not depend on it.
    #[serde(serialize_with = "ronde_core::outside_identity")]
    pub threads: u32,
    /// Whether each worker's computing threads get dedicated cores and its other threads share the rest, if the
    /// host has a core more for each of its workers; default false. For hosts that run nothing else. The trained bits do
    /// not depend on it.
    #[serde(
        skip_serializing_if = "is_default",
        serialize_with = "ronde_core::outside_identity"
    )]
    #[cfg_attr(feature = "schema", schemars(extend("default" = false)))]
    pub pin_cores: bool,
    /// How logical shards are divided among workers; default `equal`. The trained bits do not depend on it.
    #[serde(
        skip_serializing_if = "is_default",
        serialize_with = "ronde_core::outside_identity"
    )]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "equal")))]
    pub balance: BalanceMode,
}

/// How logical shards are divided among workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BalanceMode {
    /// Every worker has the same number of shards, or one more or less.
    #[default]
    Equal,
    /// Faster workers have more shards, according to their measured speeds.
    Measured,
}

impl Default for WorkersSection {
    fn default() -> Self {
        Self {
            count: 1,
            logical_shards: 8,
            threads: 1,
            pin_cores: false,
            balance: BalanceMode::Equal,
        }
    }
}

impl WorkersSection {
    /// Adds the problems of the section, in a run whose workers divide the model like this, or compute whole replicas.
    pub(in crate::config) fn check(
        &self,
        parallel: &ParallelSection,
        has_replicas: bool,
        problems: &mut Vec<ConfigProblem>,
    ) {
        let WorkersSection {
            count,
            logical_shards,
            threads,
            ..
        } = *self;
        at_least_one("workers.count", count.into(), problems);
        at_least_one("workers.logical_shards", logical_shards.into(), problems);
        at_least_one("workers.threads", threads.into(), problems);
        if threads > THREADS_MAX {
            let message =
                format!("`workers.threads` is {threads}, but must be at most {THREADS_MAX}");
            problems.push(ConfigProblem::error("workers.threads", message));
        }
        if logical_shards > LOGICAL_SHARDS_MAX {
            let message = format!(
                "`workers.logical_shards` is {logical_shards}, but must be at most {LOGICAL_SHARDS_MAX}"
            );
            problems.push(ConfigProblem::error("workers.logical_shards", message));
        }
        if count == 0 || logical_shards == 0 || has_replicas {
            return;
        }
        let (count, each) = match parallel.model_workers() {
            0 | 1 if parallel.servers > 0 => {
                (count - parallel.servers_among(count), "computing workers")
            }
            0 | 1 => (count, "workers"),
            together => ((count / together).max(1), "copies of the model"),
        };
        let plan = WorldSize::new(count).and_then(|size| ShardPlan::new(logical_shards, size));
        let Some(plan) = plan else {
            let message = format!(
                "{logical_shards} logical shards are fewer than {count} {each}, so some {each} would be idle"
            );
            let hint =
                format!("set `workers.logical_shards` to {count} or more, or use fewer workers");
            problems.push(ConfigProblem::error("workers.count", message).hint(hint));
            return;
        };
        if self.balance == BalanceMode::Measured {
            if count > 1 && logical_shards < 2 * count {
                let message = format!(
                    "{count} {each} share {logical_shards} logical shards, so `workers.balance` has too few shards to move"
                );
                let hint = "set `workers.logical_shards` to four times the number of workers or more; this changes the trained bits";
                problems.push(ConfigProblem::notice("workers.balance", message).hint(hint));
            }
        } else if plan.efficiency() < 1.0 {
            let message = format!(
                "{count} {each} share {logical_shards} logical shards unevenly: they are busy {:.0} % of the time",
                100.0 * plan.efficiency()
            );
            // With a power of two for each worker, each sends a single subtree, which is the fewest bytes.
            let multiple =
                u64::from(logical_shards.div_ceil(count)).next_power_of_two() * u64::from(count);
            let hint = format!(
                "`workers.logical_shards` = {multiple} keeps all {each} busy, but changes the trained bits"
            );
            problems.push(ConfigProblem::notice("workers.count", message).hint(hint));
        }
    }
}
