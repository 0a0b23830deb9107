//! One rank's world: layers, models, losses and optimizers on Burn; it knows of no other rank.
//!
//! A model is a [`Chain`] of [`Layer`]s. `backward` of a layer takes the gradient of its output and
//! gives the gradient of its input and of its parameters, so nothing needs hooks inside the
//! autograd engine: data parallelism, pipelines and recomputation all stand on this one seam. Read
//! [`layer`](Layer), then [`BurnLayer`], which makes a layer of any Burn module.
//!
//! # The same bits
//!
//! What a layer computes depends on its state, its input and the coordinates of its
//! [`ForwardContext`] alone: not on other shards, earlier steps or where buffers lie. `burn-flex`
//! sums in an order that depends on its thread count, so **the engine is pinned to one thread**:
//! Burn's `rayon` feature is off, and use of more cores comes from more ranks. Machines give equal
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
mod models;
mod module_state;
pub mod ops;
mod optimizer;
mod pending_shards;
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
pub use learning_rate::{RateScaling, ScheduleConfig};
pub use lock_step::{LockStep, NotSummed, ShardGradient, ShardInput, ShardSums};
pub use loss::{IGNORED, Loss, LossOutput, SoftmaxCrossEntropy};
pub use models::{ModelConfig, ModelSize, Normalisation, synchronised_batch_norm};
pub use optimizer::{OptimizerConfig, WeightDecayOn};
pub use recomputed::Recomputed;
pub use ronde_kernels::GradientScale;
pub use rounded::{Precision, Rounded};
