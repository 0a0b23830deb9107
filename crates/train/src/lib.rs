//! From a run file to a trained model: [`config`] to [`plan`] to the step loop in [`training`].
//!
//! Read [`worker`] first: it shows the course of a run on one screen.

#![forbid(unsafe_code)]

mod balance;
mod batch_norms;
pub mod callback;
pub mod checkpoints;
mod clock_alignment;
pub mod config;
pub mod connector;
mod core_pinning;
pub mod divergence;
pub mod error;
pub mod evaluate;
mod event_history;
pub mod export;
pub mod extension;
pub mod finished_model;
mod first_part;
pub mod flight_records;
mod improvement;
pub mod initial_names;
mod initial_state;
pub mod initial_weights;
pub mod job_group;
pub mod link_times;
mod local_ranks;
mod mask_targets;
pub mod memory;
mod micro_batch;
mod model_copies;
pub mod model_parts;
pub mod objective;
pub mod plan;
pub mod predicted_stages;
mod process_memory;
pub mod progress;
pub mod recording;
pub mod results;
mod run_files;
pub mod session;
mod state_transfer;
pub mod step_loop;
mod step_timing;
mod sync_policy;
pub mod task;
mod timed_layer;
mod token_texts;
pub mod training;
mod training_data;
mod units_of_data;
pub mod worker;

pub use batch_norms::check_planned_batch_norms;
pub use callback::Callback;
pub use config::RunConfig;
pub use connector::GenerationConnector;
pub use error::TrainError;
pub use extension::Extension;
pub use finished_model::FinishedModel;
pub use job_group::JobGroup;
pub use link_times::LinkTimes;
pub use model_parts::ModelParts;
pub use objective::Objective;
pub use plan::Plan;
pub use predicted_stages::PredictedStages;
pub use step_loop::{StepAction, StepLoop, StepLoopPlan};
pub use sync_policy::check_planned_fragments;
pub use task::{WorkerTask, text_path};
pub use token_texts::check_tokens;
pub use training::{
    LayerTimes, PartTimes, Training, TrainingResult, WorkerTimes, rehearsed_step_s,
};
