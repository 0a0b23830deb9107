//! [`ParallelError`]: errors of a strategy.

use ronde_core::{CollectiveError, Recovery, Shard};
use ronde_engine::EngineError;

/// An error of a strategy during a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// The tensor engine failed on a shard.
    #[error("shard {shard}: {source}")]
    Engine {
        /// The shard.
        shard: Shard,
        /// The engine's error.
        source: EngineError,
    },
    /// A collective failed.
    #[error("bucket {bucket} of {buckets} ({tensors}): {source}")]
    Collective {
        /// The number of the bucket, from 1.
        bucket: usize,
        /// The total number of buckets.
        buckets: usize,
        /// The first and the last tensor of the bucket.
        tensors: String,
        /// The collective's error.
        source: CollectiveError,
    },
    /// A sum over all shards that a layer needs within its pass failed.
    #[error("layer {layer}, sum over all shards: {source}")]
    LayerSum {
        /// The name of the layer.
        layer: String,
        /// The collective's error.
        source: CollectiveError,
    },
    /// Another exchange with other ranks failed.
    #[error("cannot {action}: {source}")]
    Exchange {
        /// The rank's action, such as `receive the values of shard 3 before layer 5`.
        action: String,
        /// The error of the group.
        source: CollectiveError,
    },
    /// The batches are not those of the planned shards, or a step is incomplete.
    #[error("{problem}")]
    OutOfOrder {
        /// The problem.
        problem: String,
    },
    /// The gradient is infinite or not a number.
    #[error("the gradient of {tensor} is not finite")]
    NotFinite {
        /// The first tensor, in the order of the model's state, whose gradient is not finite.
        tensor: String,
    },
}

impl ParallelError {
    /// Returns whether the cause is the user's model, data or function, not ronde or the cluster.
    #[must_use]
    pub fn is_user_error(&self) -> bool {
        matches!(self, Self::Engine { source, .. } if source.is_user_error())
    }

    /// Returns how to recover from the error.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Engine { source, .. } => source.recovery(),
            Self::Collective { source, .. }
            | Self::LayerSum { source, .. }
            | Self::Exchange { source, .. } => source.recovery(),
            Self::OutOfOrder { .. } | Self::NotFinite { .. } => Recovery::Abort,
        }
    }
}
