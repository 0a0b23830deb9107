//! [`RunMetrics`]: the state of a run as metrics in Prometheus' text format.

use ronde_core::Event;
use ronde_core::prometheus_text::PrometheusText;

use super::RANKS_MAX;
use crate::view::RunView;

/// The largest number of metrics of an evaluation that are shown.
const EVALUATION_METRICS_MAX: usize = 64;

/// The state of a run, computed from its events, as metrics for Prometheus.
///
/// The number of series is bounded: `run` has one value, `rank` at most [`RANKS_MAX`], `phase` three, `metric` 64.
#[derive(Debug, Clone, Default)]
pub struct RunMetrics {
    view: RunView,
    world_size: u32,
    generation: u64,
    gradient_norm: Option<f64>,
    checkpoints: u64,
    checkpoint_step: u64,
    checkpoints_failed: u64,
    failures: u64,
    memberships: u64,
}

impl RunMetrics {
    /// Returns metrics that continue from the state of a run's earlier attempts.
    #[must_use]
    pub fn resumed(view: RunView) -> Self {
        Self {
            world_size: view.world_size,
            view,
            ..Self::default()
        }
    }

    /// Updates the state by an event.
    pub fn apply(&mut self, event: &Event) {
        self.view.apply(event);
        match event {
            Event::RunStarted { world_size, .. } => self.world_size = *world_size,
            // A run on this host alone begins without a change of the membership.
            Event::Resumed {
                generation,
                world_size,
                ..
            } => (self.generation, self.world_size) = (generation.0, *world_size),
            Event::StepCommitted { gradient_norm, .. } => self.gradient_norm = Some(*gradient_norm),
            Event::MembershipChanged {
                generation,
                world_size,
                ..
            } => {
                (self.generation, self.world_size) = (generation.0, *world_size);
                self.memberships += 1;
            }
            Event::CheckpointSaved { step, .. } => {
                self.checkpoints += 1;
                self.checkpoint_step = step.0;
            }
            Event::CheckpointLoaded {
                step,
                address: Some(_),
                ..
            } => self.checkpoint_step = step.0,
            Event::CheckpointFailed { .. } => self.checkpoints_failed += 1,
            Event::WorkerFailed {
                secondary: false, ..
            } => self.failures += 1,
            _ => {}
        }
    }

    /// Returns the metrics as text, version 0.0.4 of Prometheus' exposition format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut page = PrometheusText::new(&[("run", &self.view.name)]);
        for (name, help, value) in self.of_run().into_iter().chain(self.of_steps()) {
            let mut metric = match name.ends_with("_total") {
                true => page.counter(name, help),
                false => page.gauge(name, help),
            };
            metric.value(&[], value);
        }
        self.add_evaluation(&mut page);
        self.add_workers(&mut page);
        page.finish()
    }

    /// Returns the metrics that a run has from its start: name, help and value.
    fn of_run(&self) -> [SingleMetric; 10] {
        let view = &self.view;
        let finished = f64::from(u8::from(view.finished_s.is_some()));
        let samples = view.throughput.samples() as f64;
        [
            (
                "ronde_run_steps",
                "The number of steps of the whole run.",
                view.steps as f64,
            ),
            (
                "ronde_run_finished",
                "Whether the run has finished: 0 or 1.",
                finished,
            ),
            (
                "ronde_workers",
                "The number of workers.",
                self.world_size.into(),
            ),
            (
                "ronde_generation",
                "The version of the membership.",
                self.generation as f64,
            ),
            (
                "ronde_membership_changes_total",
                "The number of changes of the membership.",
                self.memberships as f64,
            ),
            (
                "ronde_worker_failures_total",
                "The number of workers that failed.",
                self.failures as f64,
            ),
            (
                "ronde_samples_total",
                "The number of samples used; those of steps that are computed again count once.",
                samples,
            ),
            (
                "ronde_checkpoints_saved_total",
                "The number of saved checkpoints.",
                self.checkpoints as f64,
            ),
            (
                "ronde_checkpoints_failed_total",
                "The number of checkpoints that could not be saved.",
                self.checkpoints_failed as f64,
            ),
            (
                "ronde_checkpoint_step",
                "The number of steps in the newest checkpoint.",
                self.checkpoint_step as f64,
            ),
        ]
    }

    /// Returns the metrics that a run has once a step is committed.
    fn of_steps(&self) -> Vec<SingleMetric> {
        let view = &self.view;
        let now = view.progress;
        let values = [
            (
                "ronde_step",
                "The number of committed steps.",
                now.map(|now| now.committed as f64),
            ),
            (
                "ronde_epoch",
                "The current pass over the data, from 0.",
                now.map(|now| now.epoch as f64),
            ),
            (
                "ronde_loss",
                "The mean loss over the last global batch.",
                now.map(|now| now.loss),
            ),
            (
                "ronde_learning_rate",
                "The learning rate of the last step.",
                now.map(|now| now.learning_rate),
            ),
            (
                "ronde_gradient_norm",
                "The global norm of the last gradient before clipping.",
                self.gradient_norm,
            ),
            (
                "ronde_samples_per_second",
                "The samples per second of the last few seconds.",
                view.throughput.recent(),
            ),
            (
                "ronde_left_seconds",
                "The estimated time until the last step.",
                view.left_s(),
            ),
        ];
        let values = values.into_iter();
        values
            .filter_map(|(name, help, value)| Some((name, help, value?)))
            .collect()
    }

    fn add_evaluation(&self, page: &mut PrometheusText) {
        let Some(result) = &self.view.evaluation else {
            return;
        };
        let help = "The mean loss of the last evaluation.";
        page.gauge("ronde_evaluation_loss", help)
            .value(&[], result.loss);
        let mut gauge = page.gauge("ronde_evaluation", "A metric of the last evaluation.");
        for (metric, value) in result.metrics.iter().take(EVALUATION_METRICS_MAX) {
            gauge.value(&[("metric", metric)], *value);
        }
    }

    fn add_workers(&self, page: &mut PrometheusText) {
        let workers = self.view.workers.iter();
        let workers: Vec<_> = workers.filter(|(rank, _)| rank.0 < RANKS_MAX).collect();
        if workers.is_empty() {
            return;
        }
        let help = "The time of a worker by phase of a step.";
        let mut seconds = page.counter("ronde_worker_phase_seconds_total", help);
        for (rank, worker) in &workers {
            for (phase, value) in [
                ("communicate", worker.times.communicate_s),
                ("compute", worker.times.compute_s),
                ("wait_data", worker.times.wait_data_s),
            ] {
                seconds.value(&[("rank", rank), ("phase", &phase)], value);
            }
        }
        let help = "The bytes that a worker has sent to other workers.";
        let mut bytes = page.counter("ronde_worker_sent_bytes_total", help);
        for (rank, worker) in &workers {
            bytes.value(&[("rank", rank)], worker.bytes_sent as f64);
        }
    }
}

/// A metric that has one value: its name, which ends in `_total` if it is a counter, its help and its value.
type SingleMetric = (&'static str, &'static str, f64);

#[cfg(test)]
mod tests;
