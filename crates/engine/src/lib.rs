//! One rank's part of training: layers, models, losses and optimizers. This crate does not know
//! that other ranks exist.
//!
//! A model is a [`Chain`] of [`Layer`]s. `backward` of a layer takes the gradient of its output and
//! returns the gradients of its input and of its parameters, so no autograd graph is needed: data
//! parallelism, pipelines and recomputation are all built on this interface. Read [`Layer`] first,
//! then [`GraphBuilder`], which makes a layer of explicit operations.
//!
//! # Reproducible bits
//!
//! The result of a layer depends only on its state, its input and the coordinates of its
//! [`ForwardContext`], not on other shards, earlier steps or memory addresses. Every sum has a
//! fixed order. Machines compute equal bits when [`engine_name`] and [`cpu_features`] are equal;
//! losses, optimizers and learning rates use no transcendental function of the system.

mod activation;
mod blocks;
mod chain;
mod context;
mod detection;
pub mod device;
mod error;
mod evaluation_size;
mod graph;
mod host;
mod initial;
mod layer;
mod learning_rate;
mod lock_step;
mod loss;
mod memory;
mod metric;
mod models;
mod operations;
mod optimizer;
mod pending_shards;
mod precision;
mod predictions;
mod recomputation;
mod recomputed;
mod shard_map;
mod shared_state;
mod step_memory;
#[cfg(test)]
mod testing;

pub use activation::Activation;
pub use chain::Chain;
pub use context::{ForwardContext, Mode, first_word};
pub use detection::{DetectedImages, DetectedObject};
pub use device::{
    ComputeEngine, Device, DeviceBuffer, DeviceSlice, DeviceSliceMut, ForeignMemory, HostDevice,
    KernelCall, KernelObserver, ObservedDevice, PlanningDevice, ProductMethod, check_device,
    check_kernel,
};
pub use error::EngineError;
pub use evaluation_size::EvaluationSize;
pub use graph::{
    Attended, BatchNormValues, Computation, GraphBuilder, GraphLayer, GraphOutline, GraphValue,
    KeptText, OperationOutline, PartExchange, PartPlace, PassEnds, TokenShares,
};
pub use host::{cpu_features, engine_name};
pub use initial::{Initial, fill_tensor};
pub use layer::{
    BackwardPart, BackwardPass, DiscardedShards, GradientForm, Layer, LayerCost, LayerExt,
    LayerFacts, LayerSetting, OnlyF32, SavedValues, ShardPasses, StateChange,
};
pub use learning_rate::{LearningRate, RateScaling, ScheduleConfig};
pub use lock_step::{NotSummed, ShardGradient, ShardInput, ShardSums};
pub use loss::{
    BinaryCrossEntropy, CrossEntropy, DetectionLoss, DiceLoss, IGNORED, Loss, LossInParts,
    LossOutput, NearestDistance, SmoothL1, SquaredError, ValueLoss,
};
pub use memory::{HostValues, MemoryUse, host_memory, release_free_memory};
pub use metric::{
    ConfusionCounts, ConfusionMatrix, Inertia, IntersectionOverUnion, MacroF1, MeanAbsoluteError,
    MeanAveragePrecision, Metric, Perplexity, TopAccuracy,
};
pub use models::{ModelConfig, ModelSize, Normalisation};
pub use operations::{AfterNorm, SourcePadding, TiedTable};
pub use optimizer::{
    OptimizerConfig, ParameterGroup, ParameterRule, TrustSquares, TrustTree, WeightDecayOn,
    matches_pattern,
};
pub use pending_shards::PendingShards;
pub use precision::Precision;
pub use predictions::Predictions;
pub use recomputation::Recomputation;
pub use recomputed::Recomputed;
pub use ronde_kernels::{
    ActivationFunction, Attention, AverageAreas, BatchNorm, GradientScale, GroupNorm,
    GroupedConvolution, ShortFormat, SlidingWindow, add_column_products, sum_of_squares,
    times_columns, transposed_times_columns,
};
pub use shared_state::{SharedState, SharedValues};
pub use step_memory::StepShape;
