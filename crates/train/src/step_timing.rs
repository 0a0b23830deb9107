//! [`StepTiming`]: the measured times of a step.

use ronde_core::event::PhaseTimes;

/// The measured times of a step.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepTiming {
    pub(crate) times: PhaseTimes,
    /// When this worker arrived at the last gradient reduction, on the clock of rank 0.
    pub(crate) arrived_s: Option<f64>,
}
