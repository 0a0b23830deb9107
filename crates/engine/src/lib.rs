//! One rank's world: stages, models, losses and optimizers on Burn; it knows of no other rank.
//!
//! A model is a [`Chain`] of [`Stage`]s. `backward` of a stage takes the gradient of its output and
//! gives the gradient of its input and of its parameters, so nothing needs hooks inside the
//! autograd engine: data parallelism, pipelines and recomputation all stand on this one seam. Read
//! [`stage`](Stage), then [`BurnStage`], which makes a stage of any Burn module.
//!
//! # The same bits
//!
//! What a stage computes depends on its state, its input and the coordinates of its
//! [`ForwardContext`] alone: not on other shards, earlier steps or where buffers lie. `burn-flex`
//! sums in an order that depends on its thread count, so **the engine is pinned to one thread**:
//! Burn's `rayon` feature is off, and use of more cores comes from more ranks. Machines give equal
//! bits when [`engine_name`] and [`cpu_features`] are equal; losses, optimizers and learning rates
//! use no transcendental function of the system.

mod activation;
mod burn_stage;
mod chain;
mod context;
mod error;
mod flight;
mod host;
mod initial;
mod learning_rate;
mod lock_step;
mod loss;
mod models;
mod module_state;
pub mod ops;
mod optimizer;
mod recomputed;
mod rounded;
mod stage;
#[cfg(test)]
mod testing;

pub use burn;

pub use activation::Activation;
pub use burn_stage::BurnStage;
pub use chain::Chain;
pub use context::{ForwardContext, Mode};
pub use error::EngineError;
pub use host::{cpu_features, engine_name, seed_engine, training_device};
pub use learning_rate::{RateScaling, ScheduleConfig};
pub use lock_step::{LockStep, NotSummed, ShardGradient, ShardInput, ShardSums};
pub use loss::{IGNORED, Loss, LossOutput, SoftmaxCrossEntropy};
pub use models::{ModelConfig, ModelSize, Normalisation, synchronised_batch_norm};
pub use optimizer::{OptimizerConfig, WeightDecayOn};
pub use recomputed::Recomputed;
pub use ronde_kernels::GradientScale;
pub use rounded::{Precision, Rounded};
pub use stage::{Stage, StageCost};
