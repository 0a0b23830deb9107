//! Why a strategy could not do its part of a step.

use ronde_core::{CollectiveError, Recovery, Shard};
use ronde_engine::EngineError;

/// Why a strategy could not do its part of a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// The tensor engine failed on a shard.
    #[error("shard {shard}: {source}")]
    Engine {
        /// Which shard.
        shard: Shard,
        /// The engine's error.
        source: EngineError,
    },
    /// A collective failed.
    #[error("bucket {bucket} of {buckets} ({tensors}): {source}")]
    Collective {
        /// Which bucket, from 1.
        bucket: usize,
        /// Buckets in all.
        buckets: usize,
        /// First and last tensor of the bucket.
        tensors: String,
        /// The collective's error.
        source: CollectiveError,
    },
    /// A sum over all shards failed that a layer needs in the middle of a pass.
    #[error("layer {layer}, sum over all shards: {source}")]
    LayerSum {
        /// Name of the layer.
        layer: String,
        /// The collective's error.
        source: CollectiveError,
    },
    /// Shards came in another order than the plan's, or a step is not complete.
    #[error("{problem}")]
    OutOfOrder {
        /// What happened.
        problem: String,
    },
    /// The gradient is infinite or not a number.
    #[error("the gradient of {tensor} is not finite")]
    NotFinite {
        /// First tensor, in the order of the model's state, whose gradient is not finite.
        tensor: String,
    },
}

impl ParallelError {
    /// What to do about it.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Engine { source, .. } => source.recovery(),
            Self::Collective { source, .. } | Self::LayerSum { source, .. } => source.recovery(),
            Self::OutOfOrder { .. } | Self::NotFinite { .. } => Recovery::Abort,
        }
    }
}
