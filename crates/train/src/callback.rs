//! [`Callback`]: a program's own reaction to the progress of a run, such as ending it early.
//!
//! A callback is called on every rank with the same reports, and its requests travel with the vote (`VoteRequests`). So all ranks
//! stop, evaluate or save after the same step, also if rank 0 was replaced meanwhile. The requests of the last vote belong to the
//! session, so a member that missed the outcome or copied the state knows that the run is complete.

use ronde_core::{Epoch, Step};
use serde::{Deserialize, Serialize};

use crate::evaluate::{Evaluation, LOSS};
use crate::improvement::Improvement;

/// A step that was applied to the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// The step.
    pub step: Step,
    /// The pass over the data that the step belongs to.
    pub epoch: Epoch,
    /// The mean loss over the counted targets of the global batch; NaN without any.
    pub loss: f64,
    /// The number of samples of the global batch.
    pub samples: u64,
    /// The learning rate.
    pub learning_rate: f64,
    /// The global norm of the gradient before clipping; NaN without counted targets.
    pub gradient_norm: f64,
}

/// The actions that a callback requests. All ranks perform them after the same step: the next one, because its vote
/// carries the requests. After the last step of the run they have no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Actions {
    pub(crate) complete: bool,
    pub(crate) evaluate: bool,
    pub(crate) save: bool,
}

impl Actions {
    /// Ends the run as if it had reached its planned length: the model is evaluated and returned.
    pub fn stop(&mut self) {
        self.complete = true;
    }

    /// Evaluates the model on the test set.
    pub fn evaluate(&mut self) {
        self.evaluate = true;
    }

    /// Saves a checkpoint. Without a checkpoint folder, a notice is recorded instead.
    pub fn save(&mut self) {
        self.save = true;
    }
}

/// A program's own reaction to the progress of a run.
///
/// Every rank calls it with the same reports, and the actions that any rank requests are performed by all ranks. A callback
/// that counts or remembers reports returns its state from [`Callback::state`]: a worker that joins a running job, or resumes
/// from a checkpoint, restores it and continues with the next report. Decide by the reports, not by the time, so that every
/// rank makes the same decision.
///
/// ```
/// use ronde_train::callback::{Actions, Callback, StepReport};
///
/// /// Ends the run when the loss is low enough.
/// struct TargetLoss(f64);
///
/// impl Callback for TargetLoss {
///     fn after_step(&mut self, report: &StepReport, actions: &mut Actions) {
///         if report.loss < self.0 {
///             actions.stop();
///         }
///     }
/// }
/// ```
pub trait Callback: Send {
    /// Called after a step was applied.
    fn after_step(&mut self, report: &StepReport, actions: &mut Actions) {
        let _ = (report, actions);
    }

    /// Called after an evaluation of the weights after `step`.
    fn after_evaluation(&mut self, step: Step, evaluation: &Evaluation, actions: &mut Actions) {
        let _ = (step, evaluation, actions);
    }

    /// Returns the state to be saved in checkpoints and sent to workers that join, as text; by default none. It must be
    /// small, because it is sent as a whole.
    fn state(&self) -> String {
        String::new()
    }

    /// Restores a state of [`Callback::state`]. Not called for an empty state, which is that of a new callback.
    ///
    /// # Errors
    /// The text is not a state of this callback; the message is the cause.
    fn restore(&mut self, state: &str) -> Result<(), String> {
        let _ = state;
        Err("this callback has no state".to_owned())
    }
}

/// Ends a run when a metric, or the loss, has not improved in several evaluations. Its state is saved in checkpoints.
#[derive(Debug, Clone)]
pub struct EarlyStopping {
    metric: String,
    patience: u32,
    min_delta: f64,
    improvement: Improvement,
}

impl EarlyStopping {
    /// Ends the run after `patience` evaluations in a row without a lower loss.
    #[must_use]
    pub fn on_loss(patience: u32) -> Self {
        Self::on_metric(LOSS, patience)
    }

    /// Ends the run after `patience` evaluations in a row without a better value of a metric:
    /// [`ronde_engine::Metric::is_lower_better`] returns which values are better.
    #[must_use]
    pub fn on_metric(name: impl Into<String>, patience: u32) -> Self {
        Self {
            metric: name.into(),
            patience,
            min_delta: 0.0,
            improvement: Improvement::default(),
        }
    }

    /// Counts a value only if it is better than the best one by more than `min_delta`.
    #[must_use]
    pub fn min_delta(mut self, min_delta: f64) -> Self {
        self.min_delta = min_delta;
        self
    }
}

impl Callback for EarlyStopping {
    fn after_evaluation(&mut self, _: Step, evaluation: &Evaluation, actions: &mut Actions) {
        // A metric that is not measured, or not a number, has not improved.
        let score = evaluation.score(&self.metric);
        self.improvement.observe(score, self.min_delta);
        if self.improvement.without >= self.patience {
            actions.stop();
        }
    }

    fn state(&self) -> String {
        // Numbers and text always serialise.
        serde_json::to_string(&self.improvement).unwrap_or_default()
    }

    fn restore(&mut self, state: &str) -> Result<(), String> {
        self.improvement = serde_json::from_str(state).map_err(|error| error.to_string())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(value: f64) -> Evaluation {
        Evaluation {
            loss: value,
            metrics: ["accuracy", "error"]
                .map(|name| (name.to_owned(), value))
                .into(),
            samples: 1,
            confusion: None,
            lower_is_better: ["error".to_owned()].into(),
        }
    }

    fn stops_at(mut callback: EarlyStopping, values: &[f64]) -> Option<usize> {
        values.iter().position(|value| {
            let mut actions = Actions::default();
            callback.after_evaluation(Step(0), &evaluation(*value), &mut actions);
            actions.complete
        })
    }

    #[test]
    fn a_run_ends_after_several_evaluations_without_improvement() {
        let values = [3.0, 2.0, 2.5, 2.0, 1.0];
        assert_eq!(stops_at(EarlyStopping::on_loss(2), &values), Some(3));
        assert_eq!(stops_at(EarlyStopping::on_loss(3), &values), None);
        let accuracy = EarlyStopping::on_metric("accuracy", 1);
        assert_eq!(stops_at(accuracy, &[0.1, 0.2, 0.2]), Some(2));
        let error = EarlyStopping::on_metric("error", 1);
        assert_eq!(stops_at(error, &[0.3, 0.2, 0.4]), Some(2));
        let small = EarlyStopping::on_metric("accuracy", 2).min_delta(0.25);
        assert_eq!(stops_at(small, &[0.1, 0.2, 0.3, 0.4]), Some(2));
        let unknown = EarlyStopping::on_metric("recall", 2);
        assert_eq!(stops_at(unknown, &[0.1, 0.2, 0.3]), Some(1));
        assert_eq!(stops_at(EarlyStopping::on_loss(1), &[f64::NAN]), Some(0));
    }

    #[test]
    fn a_restored_callback_continues_to_count() {
        let mut callback = EarlyStopping::on_loss(3);
        for loss in [2.0, 2.5, 2.5] {
            callback.after_evaluation(Step(0), &evaluation(loss), &mut Actions::default());
        }
        let mut restored = EarlyStopping::on_loss(3);
        restored.restore(&callback.state()).unwrap();
        assert_eq!(stops_at(restored, &[2.1]), Some(0));
        assert!(EarlyStopping::on_loss(3).restore("{").is_err());
    }
}
