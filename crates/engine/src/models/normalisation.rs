//! [`Normalisation`]: how the channels of images are normalised.

use serde::{Deserialize, Serialize};

/// The normalisation of a convolution's channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Normalisation {
    /// By the mean and variance of a channel over the samples of a logical shard. Source: Ioffe and
    /// Szegedy, ICML 2015.
    #[default]
    Batch,
    /// By the mean and variance of a channel over all samples of a step, on all workers. The shards
    /// of a worker then run together, which keeps the activations of all of them; each
    /// normalisation waits for all workers, in forward and in backward.
    SynchronisedBatch,
    /// By the mean and variance of 32 groups of channels of each sample, independent of the shard.
    /// Source: Wu and He, ECCV 2018.
    Group,
}
