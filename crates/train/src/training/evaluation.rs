//! The evaluations of a [`Training`], and what they decide: when the run ends, and which model is the trained one.

use std::sync::Arc;

use ronde_core::spans::SpanKind;
use ronde_core::{Event, Rank, Step};

use super::Training;
use crate::TrainError;
use crate::evaluate::{Evaluation, evaluate};
use crate::progress::BestModel;

impl Training {
    /// Returns whether all steps are committed: those of the plan, or fewer after early stopping or a callback's request to
    /// stop.
    pub(crate) fn is_complete(&self) -> bool {
        self.session.next_step().0 >= self.plan.steps
            || self.session.last_requests().complete
            || self.progress.is_stopped()
    }

    /// Evaluates if an evaluation is due after the last committed step.
    pub(super) fn evaluate_if_due(&mut self) -> Result<Option<Evaluation>, TrainError> {
        let next = self.session.next_step().0;
        match next.checked_sub(1).map(Step) {
            Some(last) if self.is_evaluation_due() => self.evaluate(last),
            _ => Ok(None),
        }
    }

    /// Returns whether an evaluation is due before the next step.
    pub(super) fn is_evaluation_due(&self) -> bool {
        let next = self.session.next_step().0;
        let Some(last) = next.checked_sub(1).map(Step) else {
            return false;
        };
        let batch = self.plan.batches.batch(last);
        let every = self.plan.config.train.evaluate_every_epochs;
        let is_due = batch.ends_epoch
            && every.is_some_and(|every| every > 0 && (batch.epoch.0 + 1).is_multiple_of(every));
        is_due || self.session.last_requests().evaluate || self.is_complete()
    }

    /// Evaluates the model after `step`, its average if there is one, and takes the result into account.
    pub(super) fn evaluate(&mut self, step: Step) -> Result<Option<Evaluation>, TrainError> {
        let Some(test) = self.split.test.clone() else {
            return Ok(None);
        };
        let settings = self.loader_settings(&*test);
        self.swap_average();
        let span = self.recorder.spans.begin();
        let evaluation = evaluate(
            &*self.member.group,
            &mut *self.strategy,
            &test,
            &self.plan.objective,
            settings,
        );
        self.swap_average();
        self.recorder.spans.end(span, SpanKind::Evaluation, step.0);
        let evaluation = evaluation?;
        self.history.push(Event::Evaluated {
            step,
            loss: evaluation.loss,
            samples: evaluation.samples,
            metrics: evaluation.metrics.clone(),
        });
        self.report_history();
        let reductions = self.progress.reductions();
        let section = &self.plan.config.train;
        if self.progress.observe(step, &evaluation, section) {
            for callback in &mut self.callbacks {
                callback.after_evaluation(step, &evaluation, &mut self.progress.actions);
            }
            self.report_decisions(step, self.progress.reductions() > reductions);
        }
        if let (true, Some(matrix)) = (self.is_complete(), &evaluation.confusion) {
            self.history.push(Event::ConfusionMeasured {
                step,
                rows: matrix.rows().to_vec(),
            });
            self.report_history();
        }
        Ok(Some(evaluation))
    }

    /// Records on rank 0 that an evaluation has ended the run or reduced the learning rate.
    fn report_decisions(&self, step: Step, has_reduced: bool) {
        let section = &self.plan.config.train;
        let notice = |message| {
            if self.member.rank == Rank(0) {
                let rank = Some(self.member.rank);
                self.member.tracker.record(Event::Notice { rank, message });
            }
        };
        if let (true, Some(plateau)) = (has_reduced, &section.reduce_on_plateau) {
            notice(format!(
                "after step {step}: `{}` has not improved in {} evaluations; the learning rate is multiplied by {} from now on",
                plateau.metric, plateau.patience, plateau.factor,
            ));
        }
        if let (true, Some(stopping)) = (self.progress.is_stopped(), &section.early_stopping) {
            notice(format!(
                "the run ends early after step {step}: `{}` has not improved in {} evaluations",
                stopping.metric, stopping.patience,
            ));
        }
    }

    /// Exchanges the weights and their moving average, if there is one.
    fn swap_average(&mut self) {
        if let Some(average) = self.copies.average_mut() {
            self.strategy.state_mut().swap_values(average);
            self.strategy.reload();
        }
    }

    /// Returns the best model, if the run keeps it and has evaluated one.
    pub(super) fn best_model(&self) -> Option<BestModel> {
        let metric = self.plan.config.train.keep_best.as_ref()?;
        self.progress.best(metric)
    }

    /// Exchanges the weights and those of the model that the run has chosen: the best one, or the average, or else the
    /// weights themselves.
    pub(super) fn swap_chosen_model(&mut self) {
        let next = self.session.next_step();
        let is_earlier = self
            .best_model()
            .is_some_and(|best| best.step.next() != next);
        let chosen: Option<&mut Arc<Vec<f32>>> = match is_earlier {
            true => self.copies.best_mut(),
            false => self.copies.average_mut(),
        };
        if let Some(chosen) = chosen {
            self.strategy.state_mut().swap_values(chosen);
            self.strategy.reload();
        }
    }
}
