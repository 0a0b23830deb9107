//! Modules shared by several models, built on [`crate::ops`].

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, GroupNorm, GroupNormConfig, LayerNorm, LayerNormConfig, Linear,
    LinearConfig, PaddingConfig2d,
};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::ops::{self, AfterNorm, SlidingWindow};

/// The number of groups of a group normalisation: the paper's choice.
pub(super) const GROUPS: usize = 32;

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

/// A normalisation within one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PerShardNorm {
    /// [`Normalisation::Batch`].
    Batch,
    /// [`Normalisation::Group`].
    Group,
}

impl Normalisation {
    /// Returns the normalisation if it needs only one shard.
    pub(super) fn per_shard(self) -> Option<PerShardNorm> {
        match self {
            Self::Batch => Some(PerShardNorm::Batch),
            Self::Group => Some(PerShardNorm::Group),
            Self::SynchronisedBatch => None,
        }
    }
}

/// Builds a convolution.
pub(super) fn convolution(
    from: usize,
    to: usize,
    window: SlidingWindow,
    bias: bool,
    device: &Device,
) -> Conv2d {
    let around = window.padding;
    Conv2dConfig::new([from, to], [window.side, window.side])
        .with_stride([window.stride, window.stride])
        .with_padding(PaddingConfig2d::Explicit(around, around, around, around))
        .with_bias(bias)
        .init(device)
}

/// A normalisation of channels within one shard; its kind is not part of its tensors' names.
#[derive(Module, Debug)]
pub(super) enum ChannelNorm {
    /// Over the samples.
    Batch(BatchNorm),
    /// Over groups of channels.
    Group(GroupNorm),
}

impl ChannelNorm {
    pub(super) fn new(kind: PerShardNorm, channels: usize, device: &Device) -> Self {
        match kind {
            PerShardNorm::Batch => Self::Batch(BatchNormConfig::new(channels).init(device)),
            PerShardNorm::Group => Self::Group(GroupNormConfig::new(GROUPS, channels).init(device)),
        }
    }

    /// Normalises, adds and rectifies: see [`ops::batch_norm`].
    pub(super) fn forward(
        &self,
        x: Tensor<4>,
        added: Option<Tensor<4>>,
        after: AfterNorm,
    ) -> Tensor<4> {
        match self {
            Self::Batch(norm) => ops::batch_norm(norm, x, added, after),
            Self::Group(norm) => {
                let y = match (&norm.gamma, &norm.beta) {
                    (Some(gamma), Some(beta)) => {
                        ops::group_norm(x, gamma.val(), beta.val(), norm.num_groups, norm.epsilon)
                    }
                    _ => norm.forward(x),
                };
                ops::finish(y, added, after)
            }
        }
    }
}

/// Builds a linear module.
pub(super) fn linear_module(from: usize, to: usize, bias: bool, device: &Device) -> Linear {
    LinearConfig::new(from, to).with_bias(bias).init(device)
}

/// Builds a normalisation of the last dimension.
pub(super) fn row_norm(width: usize, device: &Device) -> LayerNorm {
    LayerNormConfig::new(width).init(device)
}

/// Runs a normalisation of the last dimension.
pub(super) fn normalise<const D: usize>(norm: &LayerNorm, x: Tensor<D>) -> Tensor<D> {
    match &norm.beta {
        Some(beta) => ops::layer_norm(x, norm.gamma.val(), beta.val(), 1e-5),
        None => norm.forward(x),
    }
}
