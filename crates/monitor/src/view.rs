//! [`RunView`]: the state of a run, computed from its events.

use std::collections::BTreeMap;

use ronde_core::event::{PhaseTimes, SampleUnit};
use ronde_core::{Event, Rank};

use crate::throughput::Throughput;

/// The state that a display needs, computed from the events so far.
#[derive(Debug, Clone, Default)]
pub struct RunView {
    /// The run's name.
    pub name: String,
    /// Hash of the plan.
    pub plan: String,
    /// Number of workers.
    pub world_size: u32,
    /// Number of logical shards in a global batch.
    pub logical_shards: u32,
    /// Number of trainable parameters.
    pub parameters: u64,
    /// Number of steps in the whole run.
    pub steps: u64,
    /// Unit in which samples are counted.
    pub unit: SampleUnit,
    /// Number of epochs in the whole run.
    pub epochs: u64,
    /// The last committed step.
    pub progress: Option<StepView>,
    /// Samples per second.
    pub throughput: Throughput,
    /// Time of each worker by phase, by rank.
    pub workers: BTreeMap<Rank, WorkerView>,
    /// The last finished epoch.
    pub epoch: Option<EpochView>,
    /// The last evaluation.
    pub evaluation: Option<EvaluationView>,
    /// The saved model.
    pub model: Option<ModelView>,
    /// Duration of the run in seconds, once it has finished.
    pub finished_s: Option<f64>,
    /// The number of skipped records of a finished run.
    pub skipped: u64,
    /// Number of workers that failed first-hand, not counting those that only noticed a peer's failure.
    pub failures: u64,
}

/// The last committed step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepView {
    /// Number of steps committed since step 0.
    pub committed: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Learning rate of the step.
    pub learning_rate: f64,
}

/// Time that a worker has spent in each phase.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WorkerView {
    /// Seconds by phase, over all steps.
    pub times: PhaseTimes,
    /// Bytes sent to other workers.
    pub bytes_sent: u64,
}

/// How often the samples of an epoch were used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochView {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Number of samples used exactly once.
    pub used_once: u64,
    /// Number of samples not used.
    pub missing: u64,
    /// Number of samples used more than once.
    pub repeated: u64,
}

/// The result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvaluationView {
    /// Mean loss.
    pub loss: f64,
    /// Fraction of correct predictions, 0 to 1.
    pub accuracy: f64,
    /// Fraction of targets among the five most likely predictions, where it was measured.
    pub accuracy_top5: Option<f64>,
    /// Perplexity, `exp` of the mean loss, for language models.
    pub perplexity: Option<f64>,
    /// Number of samples evaluated.
    pub samples: u64,
}

/// Files of the saved model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelView {
    /// Path of the weights.
    pub path: String,
    /// Path of the configuration.
    pub config_path: String,
    /// blake3 of the weights file.
    pub blake3: String,
}

impl RunView {
    /// Updates the state by an event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::RunStarted {
                name,
                plan,
                world_size,
                logical_shards,
                parameters,
                steps,
                epochs,
                unit,
                ..
            } => {
                self.unit = *unit;
                self.name.clone_from(name);
                self.plan.clone_from(plan);
                self.world_size = *world_size;
                self.logical_shards = *logical_shards;
                self.parameters = *parameters;
                self.steps = *steps;
                self.epochs = *epochs;
            }
            Event::StepCommitted {
                step,
                epoch,
                loss,
                samples,
                learning_rate,
                duration_s,
                ..
            } => {
                self.progress = Some(StepView {
                    committed: step.0.saturating_add(1),
                    epoch: epoch.0,
                    loss: *loss,
                    learning_rate: *learning_rate,
                });
                self.throughput.add(*samples, *duration_s);
            }
            Event::StepTimes {
                rank,
                times,
                bytes_sent,
                ..
            } => {
                let worker = self.workers.entry(*rank).or_default();
                worker.times.add(times);
                worker.bytes_sent = *bytes_sent;
            }
            _ => self.apply_result(event),
        }
    }

    /// Handles the events that are rare.
    fn apply_result(&mut self, event: &Event) {
        match event {
            Event::EpochFinished {
                epoch,
                used_once,
                missing,
                repeated,
            } => {
                self.epoch = Some(EpochView {
                    epoch: epoch.0,
                    used_once: *used_once,
                    missing: *missing,
                    repeated: *repeated,
                });
            }
            Event::Evaluated {
                loss,
                accuracy,
                accuracy_top5,
                perplexity,
                samples,
                ..
            } => {
                self.evaluation = Some(EvaluationView {
                    loss: *loss,
                    accuracy: *accuracy,
                    accuracy_top5: *accuracy_top5,
                    perplexity: *perplexity,
                    samples: *samples,
                });
            }
            Event::ModelSaved {
                path,
                config_path,
                blake3,
            } => {
                self.model = Some(ModelView {
                    path: path.clone(),
                    config_path: config_path.clone(),
                    blake3: blake3.clone(),
                });
            }
            Event::WorkerFailed {
                secondary: false, ..
            } => self.failures += 1,
            Event::RunFinished {
                duration_s,
                skipped,
                ..
            } => {
                self.finished_s = Some(*duration_s);
                self.skipped = *skipped;
            }
            _ => {}
        }
    }

    /// Returns the seconds until the last step at the recent speed.
    #[must_use]
    pub fn left_s(&self) -> Option<f64> {
        let committed = self.progress?.committed;
        let left = self.steps.checked_sub(committed)?;
        Some(left as f64 / self.throughput.steps()?)
    }
}
