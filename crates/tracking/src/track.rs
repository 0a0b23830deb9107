//! Trackers for other tools: TensorBoard event files, CSV files, a Prometheus endpoint and MLflow.

mod csv;
mod every_steps;
mod mlflow;
mod prometheus;
mod prometheus_text;
mod scalar;
mod tensorboard;
mod tensorboard_record;

pub use csv::CsvFiles;
pub use every_steps::EverySteps;
pub use mlflow::{MlflowConnection, MlflowError, MlflowSender, MlflowSpool, MlflowThread};
pub use prometheus::PrometheusEndpoint;
pub use prometheus_text::RunMetrics;
pub use scalar::{RANKS_MAX, ScalarPoint, scalars};
pub use tensorboard::{RunDescription, TensorboardFiles};

/// Returns the number of committed steps after an event from which a run continues with that many, if the event
/// means that later steps are computed again.
fn restart(event: &ronde_core::Event) -> Option<u64> {
    match event {
        ronde_core::Event::CheckpointLoaded { step, .. } => Some(step.0),
        ronde_core::Event::RunRestarted { .. } => Some(0),
        _ => None,
    }
}

/// Returns the number of committed steps at an event.
fn committed(step: ronde_core::Step) -> u64 {
    step.0.saturating_add(1)
}
