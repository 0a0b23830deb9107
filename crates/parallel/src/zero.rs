//! [`ZeroLevel`]: how much of the state each rank holds. Source: Rajbhandari et al., "ZeRO", SC 2020.
//!
//! A divided state is an option of `SynchronousStrategy` and not a strategy around it, so that buckets, overlap and memory have one
//! owner. Each bucket is scattered along the exact sum. The owner of a slice updates its weights, and all ranks gather them. Norms
//! are sums over fixed blocks (`ronde_core::norm`) that travel with the vote, so no rank waits for another one between the vote and
//! the end of the update.
//!
//! At level 3, the program of a step gathers the weights of a bucket one pass ahead and releases them after it. Ranks with fewer
//! shards gather as often as the others (`ProgramShape::gather_rounds`). After the update, only those weights are gathered whose
//! hash the next vote compares. `ronde_protocol::holdings` decides which rank sends which elements when workers are lost or join.

/// The parts of the state that are divided among the ranks instead of being held by all. The trained bits do not depend on
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ZeroLevel {
    /// Nothing: plain data parallelism.
    #[default]
    Off,
    /// The states of the optimizer. A rank updates the weights whose states it holds, and sends them to the others.
    OptimizerStates,
    /// Also the reduced gradients: the memory of a bucket is released as soon as its sum has been scattered.
    Gradients,
    /// Also the weights: those of a bucket are gathered for each of its passes, and released after it.
    Weights,
}

impl ZeroLevel {
    /// Returns the level of a number; `None` above 3.
    #[must_use]
    pub fn new(level: u32) -> Option<Self> {
        match level {
            0 => Some(Self::Off),
            1 => Some(Self::OptimizerStates),
            2 => Some(Self::Gradients),
            3 => Some(Self::Weights),
            _ => None,
        }
    }

    /// Returns whether ranks hold parts of the state only.
    #[must_use]
    pub fn is_sharded(self) -> bool {
        self > Self::Off
    }
}
