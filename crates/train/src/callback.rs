//! [`Callback`]: a program's own reaction to the progress of a run, such as ending it early.

use ronde_core::{Epoch, Step};

use crate::evaluate::Evaluation;

/// A step that was applied to the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// The step.
    pub step: Step,
    /// The pass over the data that the step belongs to.
    pub epoch: Epoch,
    /// The mean loss over the global batch.
    pub loss: f64,
    /// The number of samples of the global batch.
    pub samples: u64,
    /// The learning rate.
    pub learning_rate: f64,
    /// The global norm of the gradient before clipping.
    pub gradient_norm: f64,
}

/// The actions that a callback requests. All ranks perform them after the same step: the next one, because its vote
/// carries the requests. After the last step of the run they have no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
/// Every rank calls it with the same reports, and the actions that any rank requests are performed by all ranks. A worker
/// that joins a running job, or resumes from a checkpoint, begins with the next report: decide by the reports, not by
/// their number or the time, so that every rank comes to the same decision.
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
}

/// Ends a run when a metric, or the loss, has not improved in several evaluations.
#[derive(Debug, Clone)]
pub struct EarlyStopping {
    metric: Option<String>,
    patience: u32,
    best: Option<f64>,
    without_improvement: u32,
}

impl EarlyStopping {
    /// Ends the run after `patience` evaluations in a row without a lower loss.
    #[must_use]
    pub fn on_loss(patience: u32) -> Self {
        Self {
            metric: None,
            patience,
            best: None,
            without_improvement: 0,
        }
    }

    /// Ends the run after `patience` evaluations in a row without a higher value of a metric.
    #[must_use]
    pub fn on_metric(name: impl Into<String>, patience: u32) -> Self {
        Self {
            metric: Some(name.into()),
            ..Self::on_loss(patience)
        }
    }
}

impl Callback for EarlyStopping {
    fn after_evaluation(&mut self, _: Step, evaluation: &Evaluation, actions: &mut Actions) {
        let score = match &self.metric {
            None => Some(-evaluation.loss),
            Some(name) => evaluation.metric(name),
        };
        // A metric that is not measured, or not a number, has not improved.
        let is_better =
            score.is_some_and(|score| !score.is_nan() && self.best.is_none_or(|best| score > best));
        if is_better {
            (self.best, self.without_improvement) = (score, 0);
            return;
        }
        self.without_improvement += 1;
        if self.without_improvement >= self.patience {
            actions.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops_at(mut callback: EarlyStopping, values: &[f64]) -> Option<usize> {
        values.iter().position(|value| {
            let evaluation = Evaluation {
                loss: *value,
                metrics: [("accuracy".to_owned(), *value)].into(),
                samples: 1,
            };
            let mut actions = Actions::default();
            callback.after_evaluation(Step(0), &evaluation, &mut actions);
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
        let unknown = EarlyStopping::on_metric("recall", 2);
        assert_eq!(stops_at(unknown, &[0.1, 0.2, 0.3]), Some(1));
        assert_eq!(stops_at(EarlyStopping::on_loss(1), &[f64::NAN]), Some(0));
    }
}
