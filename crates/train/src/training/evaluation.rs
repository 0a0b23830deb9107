//! The evaluations of a [`Training`], and their decisions: the end of the run, and the trained model.

use ronde_core::spans::SpanKind;
use ronde_core::{Event, Rank, Step};

use super::Training;
use crate::error::TrainError;
use crate::evaluate::{Evaluation, evaluate};
use crate::progress::BestModel;

impl Training {
    /// Returns whether all steps are committed: those of the plan, or fewer after early stopping or a callback's request to
    /// stop.
    pub(crate) fn is_complete(&self) -> bool {
        self.session.next_step().0 >= self.plan.steps
            || self.session.last_requests().complete
            || self.decisions.progress().is_stopped()
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
        let Some(test) = self.data.split.test.clone() else {
            return Ok(None);
        };
        let settings = self.data.settings(&*test);
        let spans = self.reports.recorder.background.clone();
        let span = self.reports.begin_span();
        let evaluation = self.evaluate_average(step, |this| {
            evaluate(
                &*this.member.group,
                this.policy.method().model(),
                &test,
                &this.plan.objective,
                (settings, spans),
            )
        });
        self.reports.end_span(span, SpanKind::Evaluation, step);
        let evaluation = evaluation?;
        let evaluated = Event::Evaluated {
            step,
            loss: evaluation.loss,
            samples: evaluation.samples,
            metrics: evaluation.metrics.clone(),
        };
        self.reports.push_and_report(evaluated, &self.member);
        let section = &self.plan.config.train;
        if let Some(has_reduced) = self.decisions.observe(step, &evaluation, section) {
            self.report_decisions(step, has_reduced);
        }
        self.report_best(step);
        if self.is_complete() {
            self.report_confusion(step, &evaluation);
        }
        Ok(Some(evaluation))
    }

    /// Records the best model after the evaluation of a step, if the run keeps one: when it is a new one, and at the end of the run.
    fn report_best(&mut self, step: Step) {
        let best = self.best_model();
        let Some(best) = best.filter(|best| best.step == step || self.is_complete()) else {
            return;
        };
        let evaluation = best.evaluation;
        let best = Event::BestModel {
            step: best.step,
            metric: best.metric,
            loss: evaluation.loss,
            samples: evaluation.samples,
            metrics: evaluation.metrics,
        };
        self.reports.push_and_report(best, &self.member);
    }

    /// Records the confusion matrix of the model that the run saves: the best one, or that of the last step.
    fn report_confusion(&mut self, step: Step, last: &Evaluation) {
        let section = &self.plan.config.train;
        let best = section.keep_best.as_ref();
        let best = best.and_then(|metric| self.decisions.progress().best(metric));
        let (step, saved) = match &best {
            Some(best) => (best.step, &best.evaluation),
            None => (step, last),
        };
        let Some(matrix) = &saved.confusion else {
            return;
        };
        let rows = matrix.rows().to_vec();
        let classes = self.plan.signature.class_labels(rows.len());
        let measured = Event::ConfusionMeasured {
            step,
            rows,
            classes,
        };
        self.reports.push_and_report(measured, &self.member);
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
        let is_stopped = self.decisions.progress().is_stopped();
        if let (true, Some(stopping)) = (is_stopped, &section.early_stopping) {
            notice(format!(
                "the run ends early after step {step}: `{}` has not improved in {} evaluations",
                stopping.metric, stopping.patience,
            ));
        }
    }

    /// Evaluates with the moving average of the weights, if there is one, and keeps the weights.
    fn evaluate_average(
        &mut self,
        step: Step,
        evaluate: impl FnOnce(&mut Self) -> Result<Evaluation, TrainError>,
    ) -> Result<Evaluation, TrainError> {
        let Some(average) = self.copies.average_mut() else {
            return evaluate(self);
        };
        let mut model = self.policy.method().model();
        model.swap_weights(average);
        self.gathered = None;
        let gathered = model.gather(0, Some(step));
        let gathered = gathered.map_err(|source| TrainError::of_step(step, source));
        let evaluation = gathered.and_then(|()| evaluate(self));
        // Also after a lost peer: the state is then still that of the last step.
        let mut model = self.policy.method().model();
        if let Some(average) = self.copies.average_mut() {
            model.swap_weights(average);
        }
        model.reload();
        let evaluation = evaluation?;
        let gathered = model.gather(0, Some(step));
        gathered.map_err(|source| TrainError::of_step(step, source))?;
        self.gathered = Some(step);
        Ok(evaluation)
    }

    /// Returns the best model, if the run keeps it and has evaluated one.
    pub(super) fn best_model(&self) -> Option<BestModel> {
        let metric = self.plan.config.train.keep_best.as_ref()?;
        self.decisions.progress().best(metric)
    }

    /// Copies the model before step `next` as the best one, if its evaluation was the best.
    pub(super) fn keep_best(&mut self, next: Step) {
        if self.decisions.progress().best_step().map(Step::next) == Some(next) {
            self.copies.keep_best(self.policy.state().held_weights());
        }
    }

    /// Exchanges the weights and those of the model that the run has chosen: the best one, or the average, or else the
    /// weights themselves. Returns whether they are others.
    pub(super) fn swap_chosen_model(&mut self) -> bool {
        let next = self.session.next_step();
        let is_earlier = self
            .best_model()
            .is_some_and(|best| best.step.next() != next);
        let chosen = match is_earlier {
            true => self.copies.best_mut(),
            false => self.copies.average_mut(),
        };
        match chosen {
            Some(chosen) => {
                self.policy.method().model().swap_weights(chosen);
                true
            }
            None => false,
        }
    }
}
