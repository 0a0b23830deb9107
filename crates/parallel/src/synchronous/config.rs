//! [`SynchronousConfig`]: the settings of a step.
//!
//! Weights that a program has loaded into its layers cannot be drawn again when a generation without a step divides the layers in
//! another way, so each rank keeps them ([`SynchronousConfig::may_reset`]).

use std::sync::Arc;

use ronde_core::weight_hash::WeightHash;
use ronde_engine::{Loss, OptimizerConfig, ParameterGroup, WeightDecayOn};
use ronde_schedule::{PipelineSchedule, ShardOrder};

use crate::compression::CompressionConfig;
use crate::loss_scale::{LossScaling, fixed_factor};
use crate::zero::ZeroLevel;

/// The settings of a step.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SynchronousConfig {
    /// The update rule.
    pub optimizer: OptimizerConfig,
    /// The parameters to which weight decay applies.
    pub weight_decay_on: WeightDecayOn,
    /// Parameters with separate settings; a parameter belongs to the first group that contains it.
    pub parameter_groups: Vec<ParameterGroup>,
    /// The global gradient norm above which the gradient is clipped.
    pub clip_norm: Option<f64>,
    /// Layers share a bucket up to this many bytes.
    pub bucket_bytes_max: usize,
    /// The loss function.
    pub loss: Arc<dyn Loss>,
    /// Loss scaling, which keeps gradients in the range of `f16`.
    pub loss_scaling: Option<LossScaling>,
    /// The parts of the state that are divided among the ranks.
    pub zero: ZeroLevel,
    /// The number of ranks that hold each slice of a divided state, 1 or 2; `None`: 2 with more than two ranks, otherwise 1.
    /// The second one updates its copy from the same gradient, so the state survives the loss of either.
    pub copies: Option<u32>,
    /// The order in which the ranks of a pipeline compute the shards.
    pub schedule: PipelineSchedule,
    /// The order of shards and layers without a pipeline. Layers that need sums over all shards run in lock step in any case.
    pub order: ShardOrder,
    /// The number of shards of a rank that pass through the layers together, at least 1: those that a layer
    /// [joins](ronde_engine::LayerFacts::joins_shards) cost less together, and the values of all of them are in memory. In a pipeline
    /// each shard passes alone. The bits are the same.
    pub together: u32,
    /// The short form in which gradients are sent; `None`: as they are.
    pub compression: Option<CompressionConfig>,
    /// The parts of the weights that are hashed after each step.
    pub hashing: WeightHash,
    /// The shape of one sample, which the borders of a pipeline and the memory of evaluations follow from.
    pub sample_shape: Vec<usize>,
    /// The number of targets of one sample. Samples may count fewer of them.
    pub targets_per_sample: usize,
    /// The most samples of a shard.
    pub shard_samples_max: usize,
    /// Whether only the parts of tables are exchanged whose gradient is not zero, where that sends fewer bytes; `None`: between
    /// hosts. The bits are the same.
    pub sparse_tables: Option<bool>,
    /// Whether [`StateEdit::reset`](crate::StateEdit::reset) may be called. A model whose weights were loaded before is then kept.
    pub may_reset: bool,
}

impl SynchronousConfig {
    /// Creates settings with weight decay on all parameters, no clipping and buckets of 4 MiB.
    #[must_use]
    pub fn new(optimizer: OptimizerConfig, loss: Arc<dyn Loss>) -> Self {
        Self {
            optimizer,
            weight_decay_on: WeightDecayOn::default(),
            parameter_groups: Vec::new(),
            clip_norm: None,
            bucket_bytes_max: 4 << 20,
            loss,
            loss_scaling: None,
            zero: ZeroLevel::Off,
            copies: None,
            schedule: PipelineSchedule::default(),
            order: ShardOrder::default(),
            together: 1,
            compression: None,
            hashing: WeightHash {
                parts: 1,
                full_every: 0,
            },
            sample_shape: Vec::new(),
            targets_per_sample: 1,
            shard_samples_max: 0,
            sparse_tables: None,
            may_reset: false,
        }
    }

    /// Returns the factor of the gradient of the loss that does not change in training; updates undo it.
    pub(crate) fn fixed_factor(&self) -> f32 {
        fixed_factor(&*self.loss, self.targets_per_sample)
    }

    /// Returns whether gradients of tables are exchanged without zeros among ranks on these hosts.
    #[must_use]
    pub fn sums_sparsely(&self, hosts: &[usize]) -> bool {
        // Within a host, dense values are read in the memory of the other ranks.
        let spans_hosts = hosts.iter().any(|host| Some(host) != hosts.first());
        self.sparse_tables.unwrap_or(spans_hosts)
    }

    /// Returns how many of `ranks` ranks hold each slice of a divided state, if the setting is `copies`.
    #[must_use]
    pub fn copies_among(copies: Option<u32>, ranks: usize) -> u32 {
        copies.unwrap_or(if ranks > 2 { 2 } else { 1 })
    }
}
