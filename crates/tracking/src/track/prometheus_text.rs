//! [`RunMetrics`]: the state of a run as metrics in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;

use ronde_core::Event;

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
        let mut page = MetricsPage {
            text: String::new(),
            run: escaped(&self.view.name),
        };
        for (name, help, value) in self.of_run().into_iter().chain(self.of_steps()) {
            page.one(name, help, value);
        }
        self.add_evaluation(&mut page);
        self.add_workers(&mut page);
        page.text
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

    fn add_evaluation(&self, page: &mut MetricsPage) {
        let Some(result) = &self.view.evaluation else {
            return;
        };
        page.one(
            "ronde_evaluation_loss",
            "The mean loss of the last evaluation.",
            result.loss,
        );
        page.heading("ronde_evaluation", "A metric of the last evaluation.");
        for (metric, value) in result.metrics.iter().take(EVALUATION_METRICS_MAX) {
            let label = format!(",metric=\"{}\"", escaped(metric));
            page.line("ronde_evaluation", &label, *value);
        }
    }

    fn add_workers(&self, page: &mut MetricsPage) {
        let workers = || {
            self.view
                .workers
                .iter()
                .filter(|(rank, _)| rank.0 < RANKS_MAX)
        };
        if workers().next().is_none() {
            return;
        }
        let name = "ronde_worker_phase_seconds_total";
        page.heading(name, "The time of a worker by phase of a step.");
        for (rank, worker) in workers() {
            let phases = BTreeMap::from([
                ("compute", worker.times.compute_s),
                ("communicate", worker.times.communicate_s),
                ("wait_data", worker.times.wait_data_s),
            ]);
            for (phase, seconds) in phases {
                page.line(
                    name,
                    &format!(",rank=\"{rank}\",phase=\"{phase}\""),
                    seconds,
                );
            }
        }
        let name = "ronde_worker_sent_bytes_total";
        page.heading(name, "The bytes that a worker has sent to other workers.");
        for (rank, worker) in workers() {
            page.line(name, &format!(",rank=\"{rank}\""), worker.bytes_sent as f64);
        }
    }
}

/// A metric that has one value: its name, which ends in `_total` if it is a counter, its help and its value.
type SingleMetric = (&'static str, &'static str, f64);

/// The text of all metrics so far.
struct MetricsPage {
    text: String,
    /// The value of the label `run`, escaped.
    run: String,
}

impl MetricsPage {
    fn heading(&mut self, name: &str, help: &str) {
        let kind = match name.ends_with("_total") {
            true => "counter",
            false => "gauge",
        };
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let value = match value {
            value if value.is_nan() => "NaN".to_owned(),
            f64::INFINITY => "+Inf".to_owned(),
            f64::NEG_INFINITY => "-Inf".to_owned(),
            value => value.to_string(),
        };
        let _ = writeln!(self.text, "{name}{{run=\"{}\"{labels}}} {value}", self.run);
    }

    /// Adds a metric that has one value.
    fn one(&mut self, name: &str, help: &str, value: f64) {
        self.heading(name, help);
        self.line(name, "", value);
    }
}

/// Escapes a label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests;
