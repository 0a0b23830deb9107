//! The strategies: how one step of a model is distributed over a process group.
//!
//! A strategy sees the group through [`ronde_core::Collectives`] and the model through
//! [`ronde_engine::Layer`]: no socket, no thread; a clock only where one is handed in. Read [`bucket`],
//! then [`synchronous`].

#![forbid(unsafe_code)]

pub mod bucket;
pub mod compression;
pub mod distributed;
pub mod error;
pub mod gossip;
pub mod inner_losses;
pub mod local_rounds;
pub mod loss_scale;
pub mod parameter_servers;
mod sparse_sum;
pub mod state;
pub mod state_view;
pub mod step_method;
pub mod synchronous;
pub mod synthetic_gradients;
mod update_sums;
pub mod zero;

pub use compression::{Codec, CompressionConfig, encode_once};
pub use distributed::DistributedVector;
pub use error::ParallelError;
pub use gossip::{Gossip, GossipConfig, GossipPeer, GossipSummary, GossipTally};
pub use inner_losses::InnerLosses;
pub use local_rounds::{
    InnerState, LocalRounds, LocalRoundsConfig, StreamingConfig, fragments_max,
};
pub use loss_scale::LossScaling;
pub use parameter_servers::{
    AbortOnPanic, ParameterServers, ParameterServersConfig, RoundClient, RoundRole, RoundServer,
    RoundStart, RoundTally, ServedUpdate,
};
pub use state::{ModelState, TensorRange, remap};
pub use state_view::{
    EvaluationPart, HeldVector, HeldVectorMut, ModelHandle, StateEdit, StateView, VectorKind,
};
pub use step_method::{
    CommittedUpdate, LocalStep, MicroBatch, ReducedGradient, StepMethod, UpdateReport,
};
pub use synchronous::{
    ComputeClock, ComputeTimes, SynchronousConfig, SynchronousStrategy, evaluate_guarded,
};
pub use synthetic_gradients::{
    BorderTally, PredictorTargets, SyntheticGradients, SyntheticGradientsConfig,
};
pub use zero::ZeroLevel;
