//! [`Pending`]: a step whose outcome is open, or that is not recorded yet.

use ronde_clock::Stopwatch;
use ronde_core::Step;
use ronde_core::spans::SpanStart;
use ronde_parallel::{ReducedGradient, UpdateReport};
use ronde_protocol::transaction::CommittedStep;

use crate::step_timing::StepTiming;

/// The step of a worker that is not over. It survives the end of a generation.
#[derive(Default)]
pub(super) enum Pending {
    #[default]
    Nothing,
    /// The gradient of a step whose vote failed; other members may have committed the step.
    InDoubt(Step, ReducedGradient),
    /// A step that was applied, until the weights of all slices have been gathered.
    Unrecorded(Box<UnrecordedStep>),
}

/// An update whose weights are not up to date on all ranks yet.
pub(super) struct AppliedStep {
    pub(super) update: UpdateReport,
    pub(super) learning_rate: f64,
    pub(super) updating: Stopwatch,
    /// The begin of the optimizer, for a recording.
    pub(super) span: SpanStart,
}

/// A step that was applied and is not recorded yet.
pub(super) struct UnrecordedStep {
    pub(super) committed: CommittedStep,
    pub(super) applied: AppliedStep,
    pub(super) timing: StepTiming,
}

impl Pending {
    /// Returns whether this is the reduced gradient of a step.
    pub(super) fn holds_gradient(&self, step: Step) -> bool {
        matches!(self, Self::InDoubt(held, _) if *held == step)
    }

    /// Removes and returns the gradient of a step in doubt.
    pub(super) fn take_gradient(&mut self) -> Option<ReducedGradient> {
        match std::mem::take(self) {
            Self::InDoubt(_, reduced) => Some(reduced),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Removes and returns a step that is not recorded.
    pub(super) fn take_unrecorded(&mut self) -> Option<UnrecordedStep> {
        match std::mem::take(self) {
            Self::Unrecorded(step) => Some(*step),
            other => {
                *self = other;
                None
            }
        }
    }
}
