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
            Event::CheckpointLoaded { step, .. } => self.checkpoint_step = step.0,
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
        let view = &self.view;
        let mut page = MetricsPage {
            text: String::new(),
            run: escaped(&view.name),
        };
        page.one(
            "ronde_run_steps",
            "The number of steps of the whole run.",
            Kind::Gauge,
            view.steps as f64,
        );
        page.one(
            "ronde_run_finished",
            "Whether the run has finished: 0 or 1.",
            Kind::Gauge,
            f64::from(u8::from(view.finished_s.is_some())),
        );
        page.one(
            "ronde_workers",
            "The number of workers.",
            Kind::Gauge,
            self.world_size.into(),
        );
        page.one(
            "ronde_generation",
            "The version of the membership.",
            Kind::Gauge,
            self.generation as f64,
        );
        page.one(
            "ronde_membership_changes_total",
            "The number of changes of the membership.",
            Kind::Counter,
            self.memberships as f64,
        );
        page.one(
            "ronde_worker_failures_total",
            "The number of workers that failed.",
            Kind::Counter,
            self.failures as f64,
        );
        page.one(
            "ronde_samples_total",
            "The number of samples used; those of steps that are computed again count once.",
            Kind::Counter,
            view.throughput.samples() as f64,
        );
        page.one(
            "ronde_checkpoints_saved_total",
            "The number of saved checkpoints.",
            Kind::Counter,
            self.checkpoints as f64,
        );
        page.one(
            "ronde_checkpoints_failed_total",
            "The number of checkpoints that could not be saved.",
            Kind::Counter,
            self.checkpoints_failed as f64,
        );
        page.one(
            "ronde_checkpoint_step",
            "The number of steps in the newest checkpoint.",
            Kind::Gauge,
            self.checkpoint_step as f64,
        );
        if let Some(now) = view.progress {
            page.one(
                "ronde_step",
                "The number of committed steps.",
                Kind::Gauge,
                now.committed as f64,
            );
            page.one(
                "ronde_epoch",
                "The current pass over the data, from 0.",
                Kind::Gauge,
                now.epoch as f64,
            );
            page.one(
                "ronde_loss",
                "The mean loss over the last global batch.",
                Kind::Gauge,
                now.loss,
            );
            page.one(
                "ronde_learning_rate",
                "The learning rate of the last step.",
                Kind::Gauge,
                now.learning_rate,
            );
        }
        if let Some(norm) = self.gradient_norm {
            page.one(
                "ronde_gradient_norm",
                "The global norm of the last gradient before clipping.",
                Kind::Gauge,
                norm,
            );
        }
        if let Some(speed) = view.throughput.recent() {
            page.one(
                "ronde_samples_per_second",
                "The samples per second of the last few seconds.",
                Kind::Gauge,
                speed,
            );
        }
        if let Some(left) = view.left_s() {
            page.one(
                "ronde_left_seconds",
                "The estimated time until the last step.",
                Kind::Gauge,
                left,
            );
        }
        self.add_evaluation(&mut page);
        self.add_workers(&mut page);
        page.text
    }

    fn add_evaluation(&self, page: &mut MetricsPage) {
        let Some(result) = &self.view.evaluation else {
            return;
        };
        page.one(
            "ronde_evaluation_loss",
            "The mean loss of the last evaluation.",
            Kind::Gauge,
            result.loss,
        );
        page.heading(
            "ronde_evaluation",
            "A metric of the last evaluation.",
            Kind::Gauge,
        );
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
        page.heading(
            name,
            "The time of a worker by phase of a step.",
            Kind::Counter,
        );
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
        page.heading(
            name,
            "The bytes that a worker has sent to other workers.",
            Kind::Counter,
        );
        for (rank, worker) in workers() {
            page.line(name, &format!(",rank=\"{rank}\""), worker.bytes_sent as f64);
        }
    }
}

/// The type of a metric.
#[derive(Clone, Copy)]
enum Kind {
    Gauge,
    Counter,
}

/// The text of all metrics so far.
struct MetricsPage {
    text: String,
    /// The value of the label `run`, escaped.
    run: String,
}

impl MetricsPage {
    fn heading(&mut self, name: &str, help: &str, kind: Kind) {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
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
    fn one(&mut self, name: &str, help: &str, kind: Kind, value: f64) {
        self.heading(name, help, kind);
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
