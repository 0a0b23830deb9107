//! [`StepRequest`]: the properties of a step that all layouts have in common.

use ronde_schedule::Algorithm;

use crate::cluster::ClusterShape;
use crate::collective_times::CollectiveTimes;
use crate::costs::{LinkCosts, WorkerCosts};

/// The properties of a step that all layouts have in common.
#[derive(Debug, Clone)]
pub struct StepRequest<'a> {
    /// The measured costs of a worker.
    pub worker: &'a WorkerCosts,
    /// The costs of the links.
    pub links: &'a LinkCosts,
    /// The times of collectives with these links.
    pub collectives: &'a CollectiveTimes,
    /// The algorithm of sums, if the run names one.
    pub algorithm: Option<Algorithm>,
    /// The machines.
    pub cluster: ClusterShape,
    /// The computing threads of a worker.
    pub threads: u32,
    /// Whether all shards of a worker pass through a layer before the next one.
    pub in_lock_step: bool,
    /// The number of sums over all shards within the passes of a step.
    pub sums_in_passes: u32,
    /// Whether the update needs sums that are gathered before it.
    pub has_trust_ratios: bool,
    /// The number of steps over which all weights are compared.
    pub hash_parts: u64,
    /// The seconds that a step of several workers takes besides what its parts take, if they use all cores of their hosts.
    pub crowded_s: f64,
}
