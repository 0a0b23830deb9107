//! One rank's part of training: layers, models, losses and optimizers on Burn. This crate does not
//! know that other ranks exist.
//!
//! A model is a [`Chain`] of [`Layer`]s. `backward` of a layer takes the gradient of its output and
//! returns the gradients of its input and of its parameters, so no hooks in the autograd engine are
//! needed: data parallelism, pipelines and recomputation are all built on this interface. Read
//! [`Layer`] first, then [`BurnLayer`], which makes a layer of any Burn module.
//!
//! # Reproducible bits
//!
//! The result of a layer depends only on its state, its input and the coordinates of its
//! [`ForwardContext`], not on other shards, earlier steps or memory addresses. `burn-flex` sums in
//! an order that depends on its number of threads, so **the engine is pinned to one thread**:
//! Burn's `rayon` feature is off, and more cores are used by more ranks. Machines compute equal
//! bits when [`engine_name`] and [`cpu_features`] are equal; losses, optimizers and learning rates
//! use no transcendental function of the system.

mod activation;
mod burn_layer;
mod chain;
mod context;
mod error;
mod host;
mod initial;
mod layer;
mod learning_rate;
mod lock_step;
mod loss;
mod metric;
mod models;
mod module_state;
pub mod ops;
mod optimizer;
mod pending_shards;
mod predictions;
mod recomputed;
mod rounded;
#[cfg(test)]
mod testing;

pub use burn;

pub use activation::Activation;
pub use burn_layer::BurnLayer;
pub use chain::Chain;
pub use context::{ForwardContext, Mode};
pub use error::EngineError;
pub use host::{cpu_features, engine_name, seed_engine, training_device};
pub use layer::{Layer, LayerCost};
pub use learning_rate::{LearningRate, RateScaling, ScheduleConfig};
pub use lock_step::{LockStep, NotSummed, ShardGradient, ShardInput, ShardSums};
pub use loss::{CrossEntropy, IGNORED, Loss, LossOutput, SquaredError};
pub use metric::{Metric, Perplexity, TopAccuracy};
pub use models::{ModelConfig, ModelSize, Normalisation, synchronised_batch_norm};
pub use optimizer::{OptimizerConfig, ParameterGroup, ParameterRule, WeightDecayOn};
pub use predictions::Predictions;
pub use recomputed::Recomputed;
pub use ronde_kernels::GradientScale;
pub use rounded::{Precision, Rounded};
