//! `RunProgress`: the decisions that the evaluations of a run have led to. It is saved in checkpoints and sent to workers
//! that join, so an interrupted run decides like one that was not interrupted.
//!
//! All ranks evaluate to the same bits, so they decide alike without a vote. A loss may interrupt an evaluation on some members
//! only: all repeat it, and those that have recorded the step ignore the repetition.

use std::collections::{BTreeMap, BTreeSet};

use ronde_core::Step;
use ronde_engine::ConfusionMatrix;
use serde::{Deserialize, Serialize};

use crate::callback::{Actions, Callback};
use crate::config::TrainSection;
use crate::error::TrainError;
use crate::evaluate::Evaluation;
use crate::improvement::{ExactNumber, Improvement};
use crate::plan::Plan;

/// The best model of a run, by `train.keep_best`.
#[derive(Debug, Clone, PartialEq)]
pub struct BestModel {
    /// The metric that chose the model, or `loss`.
    pub metric: String,
    /// The last step that the model was trained on.
    pub step: Step,
    /// The result of the model on the test set.
    pub evaluation: Evaluation,
}

/// The decisions of evaluations, and the numbers that they depend on. Equal on all members that have evaluated the same steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunProgress {
    /// The last step whose evaluation was taken into account.
    evaluated: Option<Step>,
    /// The actions that the callbacks have requested since the last applied step.
    pub(crate) actions: Actions,
    best: Option<SavedEvaluation>,
    /// The scores of `train.early_stopping`.
    early_stopping: Improvement,
    /// The scores of `train.reduce_on_plateau` since the last reduction.
    plateau: Improvement,
    /// The number of reductions of the learning rate.
    reductions: u32,
    /// Whether the run ends after the evaluated step.
    is_stopped: bool,
    /// The states of the callbacks, in their order. Present only while the progress is saved or sent.
    callbacks: Vec<String>,
}

impl RunProgress {
    /// Takes an evaluation into account. Returns false if it was before: an evaluation that was interrupted on some members
    /// is repeated on all of them.
    pub(crate) fn observe(
        &mut self,
        step: Step,
        evaluation: &Evaluation,
        section: &TrainSection,
    ) -> bool {
        if self.evaluated.replace(step) == Some(step) {
            return false;
        }
        if let Some(metric) = &section.keep_best {
            let best = self.best.as_ref().map(SavedEvaluation::evaluation);
            let best = best.and_then(|best| best.score(metric));
            let score = evaluation.score(metric);
            if score.is_some_and(|score| best.is_none_or(|best| score > best)) {
                self.best = Some(SavedEvaluation::new(step, evaluation));
            }
        }
        if let Some(stopping) = &section.early_stopping {
            let score = evaluation.score(&stopping.metric);
            self.early_stopping.observe(score, stopping.min_delta);
            self.is_stopped |= self.early_stopping.without >= stopping.patience;
        }
        if let Some(plateau) = &section.reduce_on_plateau {
            let score = evaluation.score(&plateau.metric);
            self.plateau.observe(score, plateau.min_delta);
            if self.plateau.without >= plateau.patience {
                self.plateau.without = 0;
                self.reductions = self.reductions.saturating_add(1);
            }
        }
        true
    }

    /// Returns the learning rate of a step whose schedule has `rate`.
    fn reduced(&self, rate: f64, section: &TrainSection) -> f64 {
        let Some(plateau) = section.reduce_on_plateau.as_ref() else {
            return rate;
        };
        let lowest = plateau.min_learning_rate.min(rate);
        let reduce = |rate: f64, _| (rate * plateau.factor).max(lowest);
        (0..self.reductions).fold(rate, reduce)
    }

    /// Returns the learning rate of a step, of those that the schedule counts.
    ///
    /// # Errors
    /// The schedule of a program returns a number that is not one.
    pub(crate) fn learning_rate(&self, plan: &Plan, step: Step) -> Result<f64, TrainError> {
        let rate = self.reduced(plan.learning_rate.at(step), &plan.config.train);
        if rate.is_finite() && rate >= 0.0 {
            return Ok(rate);
        }
        Err(TrainError::LearningRate {
            step,
            name: plan.learning_rate.name().to_owned(),
            rate,
        })
    }

    /// Returns the number of reductions of the learning rate.
    pub(crate) fn reductions(&self) -> u32 {
        self.reductions
    }

    /// Returns whether early stopping ends the run after the evaluated step.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Continues in an extension of the run: early stopping counts evaluations without an improvement from zero, also if it
    /// has ended the run. The best score stays.
    pub(crate) fn extend(&mut self) {
        self.is_stopped = false;
        self.early_stopping.without = 0;
    }

    /// Returns the last step of the best model, if there is one.
    pub(crate) fn best_step(&self) -> Option<Step> {
        self.best.as_ref().map(|best| best.step)
    }

    /// Returns the best model, chosen by a metric.
    pub(crate) fn best(&self, metric: &str) -> Option<BestModel> {
        self.best.as_ref().map(|best| BestModel {
            metric: metric.to_owned(),
            step: best.step,
            evaluation: best.evaluation(),
        })
    }

    /// Encodes the progress and the states of the callbacks.
    pub(crate) fn encode(&self, callbacks: &[Box<dyn Callback>]) -> String {
        let progress = Self {
            callbacks: callbacks.iter().map(|callback| callback.state()).collect(),
            ..self.clone()
        };
        // Numbers and text always serialise.
        serde_json::to_string(&progress).unwrap_or_default()
    }

    /// Decodes [`RunProgress::encode`], and restores the states of the callbacks. States of callbacks that the program no
    /// longer has are ignored.
    ///
    /// # Errors
    /// The text is invalid, or a callback does not accept its state.
    pub(crate) fn decode(
        text: &str,
        callbacks: &mut [Box<dyn Callback>],
    ) -> Result<Self, TrainError> {
        let wrong = |problem: String| TrainError::Impossible {
            problem,
            hint: "pass the same callbacks in the same order as the program that began the run"
                .to_owned(),
        };
        let mut progress: Self = serde_json::from_str(text)
            .map_err(|error| wrong(format!("cannot read the progress of the run: {error}")))?;
        let states = std::mem::take(&mut progress.callbacks);
        for (number, (callback, state)) in (1..).zip(callbacks.iter_mut().zip(states)) {
            if state.is_empty() {
                continue;
            }
            callback.restore(&state).map_err(|cause| {
                wrong(format!(
                    "cannot restore the state of callback {number}: {cause}"
                ))
            })?;
        }
        Ok(progress)
    }
}

/// An [`Evaluation`] as it is saved, with all bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SavedEvaluation {
    step: Step,
    loss: ExactNumber,
    metrics: BTreeMap<String, ExactNumber>,
    samples: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    confusion: Option<Vec<Vec<u64>>>,
    lower_is_better: BTreeSet<String>,
}

impl SavedEvaluation {
    fn new(step: Step, evaluation: &Evaluation) -> Self {
        let metrics = evaluation.metrics.iter();
        Self {
            step,
            loss: ExactNumber(evaluation.loss),
            metrics: metrics
                .map(|(name, value)| (name.clone(), ExactNumber(*value)))
                .collect(),
            samples: evaluation.samples,
            confusion: evaluation
                .confusion
                .as_ref()
                .map(|matrix| matrix.rows().to_vec()),
            lower_is_better: evaluation.lower_is_better.clone(),
        }
    }

    fn evaluation(&self) -> Evaluation {
        let metrics = self.metrics.iter();
        Evaluation {
            loss: self.loss.0,
            metrics: metrics
                .map(|(name, value)| (name.clone(), value.0))
                .collect(),
            samples: self.samples,
            confusion: self.confusion.clone().map(ConfusionMatrix::new),
            lower_is_better: self.lower_is_better.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callback::EarlyStopping;
    use crate::config::{EarlyStoppingSection, PlateauSection};

    fn section() -> TrainSection {
        TrainSection {
            keep_best: Some("loss".to_owned()),
            early_stopping: Some(EarlyStoppingSection {
                metric: "loss".to_owned(),
                patience: 4,
                min_delta: 0.0,
            }),
            reduce_on_plateau: Some(PlateauSection {
                metric: "loss".to_owned(),
                factor: 0.5,
                patience: 2,
                min_delta: 0.0,
                min_learning_rate: 0.3,
            }),
            ..TrainSection::default()
        }
    }

    fn evaluation(loss: f64) -> Evaluation {
        Evaluation {
            loss,
            metrics: [("f1".to_owned(), f64::NAN)].into(),
            samples: 3,
            confusion: Some(ConfusionMatrix::new(vec![vec![1, 2], vec![0, loss as u64]])),
            ..Evaluation::default()
        }
    }

    #[test]
    fn evaluations_choose_the_best_reduce_the_rate_and_end_the_run() {
        let section = section();
        let mut progress = RunProgress::default();
        let mut seen = Vec::new();
        for (step, loss) in (0..).zip([3.0, 2.0, 2.5, 2.0, f64::NAN, 2.1]) {
            assert!(progress.observe(Step(step), &evaluation(loss), &section));
            let rate = progress.reduced(1.0, &section);
            seen.push((progress.best_step().unwrap().0, rate, progress.is_stopped()));
        }
        let expected = [
            (0, 1.0, false),
            (1, 1.0, false),
            (1, 1.0, false),
            (1, 0.5, false),
            (1, 0.5, false),
            (1, 0.3, true),
        ];
        assert_eq!(seen, expected);
        assert_eq!(progress.reductions(), 2);
        assert_eq!(
            progress.reduced(0.2, &section),
            0.2,
            "below the minimum already"
        );
    }

    #[test]
    fn a_repeated_evaluation_counts_once() {
        let section = section();
        let mut progress = RunProgress::default();
        progress.observe(Step(4), &evaluation(3.0), &section);
        progress.observe(Step(9), &evaluation(3.0), &section);
        let before = progress.encode(&[]);
        assert!(!progress.observe(Step(9), &evaluation(3.0), &section));
        assert_eq!(progress.encode(&[]), before);
    }

    #[test]
    fn the_progress_and_the_states_of_callbacks_round_trip() {
        let section = section();
        let mut progress = RunProgress::default();
        progress.observe(Step(4), &evaluation(f64::INFINITY), &section);
        progress.observe(Step(5), &evaluation(0.1 + 0.2), &section);
        let callbacks = || -> Vec<Box<dyn Callback>> { vec![Box::new(EarlyStopping::on_loss(2))] };
        let mut saved = callbacks();
        saved[0].after_evaluation(Step(5), &evaluation(0.3), &mut Actions::default());
        let text = progress.encode(&saved);
        let mut restored = callbacks();
        let decoded = RunProgress::decode(&text, &mut restored).unwrap();
        assert_eq!(decoded.encode(&restored), text);
        let best = decoded.best("loss").unwrap();
        assert_eq!(best.evaluation.loss.to_bits(), (0.1_f64 + 0.2).to_bits());
        assert!(best.evaluation.metric("f1").unwrap().is_nan());
        let matrix = best.evaluation.confusion.unwrap();
        assert_eq!(matrix.rows(), [[1, 2], [0, 0]]);
        assert!(RunProgress::decode(&text, &mut []).is_ok());
        assert!(RunProgress::decode("{", &mut []).is_err());
    }
}
