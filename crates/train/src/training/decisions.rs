//! [`Decisions`]: the decisions of evaluations and callbacks about a run.

use ronde_core::Step;

use crate::callback::{Actions, Callback, StepReport};
use crate::config::TrainSection;
use crate::error::TrainError;
use crate::evaluate::Evaluation;
use crate::progress::RunProgress;

/// The decisions of evaluations and callbacks. Equal on all ranks that have the state.
#[derive(Default)]
pub(super) struct Decisions {
    progress: RunProgress,
    callbacks: Vec<Box<dyn Callback>>,
}

impl Decisions {
    /// Replaces the callbacks.
    pub(super) fn set_callbacks(&mut self, callbacks: Vec<Box<dyn Callback>>) {
        self.callbacks = callbacks;
    }

    /// Returns the decisions so far.
    pub(super) fn progress(&self) -> &RunProgress {
        &self.progress
    }

    /// Returns the requests of the callbacks since the last step.
    pub(super) fn actions(&self) -> Actions {
        self.progress.actions
    }

    /// Calls the callbacks after a step, whose vote has carried the earlier requests.
    pub(super) fn after_step(&mut self, report: &StepReport) {
        self.progress.actions = Actions::default();
        for callback in &mut self.callbacks {
            callback.after_step(report, &mut self.progress.actions);
        }
    }

    /// Takes an evaluation into account. Returns whether it has reduced the learning rate; `None` if it was known.
    pub(super) fn observe(
        &mut self,
        step: Step,
        evaluation: &Evaluation,
        section: &TrainSection,
    ) -> Option<bool> {
        let reductions = self.progress.reductions();
        if !self.progress.observe(step, evaluation, section) {
            return None;
        }
        for callback in &mut self.callbacks {
            callback.after_evaluation(step, evaluation, &mut self.progress.actions);
        }
        Some(self.progress.reductions() > reductions)
    }

    /// Encodes the decisions and the states of the callbacks.
    pub(super) fn encode(&self) -> String {
        self.progress.encode(&self.callbacks)
    }

    /// Restores the result of [`Decisions::encode`].
    ///
    /// # Errors
    /// The text is invalid, or a callback does not accept its state.
    pub(super) fn restore(&mut self, text: &str) -> Result<(), TrainError> {
        self.progress = RunProgress::decode(text, &mut self.callbacks)?;
        Ok(())
    }

    /// Restores the decisions of a checkpoint, which may have none.
    ///
    /// # Errors
    /// As [`Decisions::restore`].
    pub(super) fn load(&mut self, text: Option<&str>) -> Result<(), TrainError> {
        match text {
            Some(text) => self.restore(text),
            None => {
                self.progress = RunProgress::default();
                Ok(())
            }
        }
    }

    /// Continues a run that early stopping has ended.
    pub(super) fn extend(&mut self) {
        self.progress.extend();
    }
}
