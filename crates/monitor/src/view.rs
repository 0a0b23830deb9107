//! [`RunView`]: the state of a run as far as its events tell it.

use std::collections::BTreeMap;

use ronde_core::event::{PhaseTimes, SampleUnit};
use ronde_core::{Event, Rank};

use crate::throughput::Throughput;

/// All that a display needs, folded from events.
#[derive(Debug, Clone, Default)]
pub struct RunView {
    /// The run's name.
    pub name: String,
    /// Hash of the plan.
    pub plan: String,
    /// Workers.
    pub world_size: u32,
    /// Logical shards of the global batch.
    pub logical_shards: u32,
    /// Trainable parameters.
    pub parameters: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// What a sample is.
    pub unit: SampleUnit,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// The last commit.
    pub progress: Option<Progress>,
    /// Samples per second.
    pub throughput: Throughput,
    /// What the workers do with their time, by rank.
    pub workers: BTreeMap<Rank, WorkerView>,
    /// The last finished epoch.
    pub epoch: Option<EpochView>,
    /// The last evaluation.
    pub evaluation: Option<EvaluationView>,
    /// The saved model.
    pub model: Option<ModelView>,
    /// Seconds that the run took, once it is over.
    pub finished_s: Option<f64>,
    /// Workers that failed, without those that only saw another one fail.
    pub failures: u64,
}

/// The last commit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Steps committed since step 0.
    pub committed: u64,
    /// Pass over the data, from 0.
    pub epoch: u64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Learning rate that was applied.
    pub learning_rate: f64,
}

/// Where a worker's time went so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WorkerView {
    /// Seconds by phase, over all steps.
    pub times: PhaseTimes,
    /// Bytes sent to others.
    pub bytes_sent: u64,
}

/// The account of an epoch's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochView {
    /// Which, from 0.
    pub epoch: u64,
    /// Samples used exactly once.
    pub used_once: u64,
    /// Samples not used.
    pub missing: u64,
    /// Samples used more than once.
    pub repeated: u64,
}

/// The result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvaluationView {
    /// Mean loss.
    pub loss: f64,
    /// Share of right answers, 0 to 1.
    pub accuracy: f64,
    /// Share of targets among the five likeliest answers, where that was told.
    pub accuracy_top5: Option<f64>,
    /// `exp` of the mean loss, for texts.
    pub perplexity: Option<f64>,
    /// Samples tried.
    pub samples: u64,
}

/// Where the model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelView {
    /// Weights.
    pub path: String,
    /// Configuration.
    pub config_path: String,
    /// blake3 of the weights file.
    pub blake3: String,
}

impl RunView {
    /// Takes an event in.
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
                self.progress = Some(Progress {
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

    /// The events that are rare.
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
            Event::RunFinished { duration_s, .. } => self.finished_s = Some(*duration_s),
            _ => {}
        }
    }

    /// Seconds until the last step at the speed of late.
    #[must_use]
    pub fn left_s(&self) -> Option<f64> {
        let committed = self.progress?.committed;
        let left = self.steps.checked_sub(committed)?;
        Some(left as f64 / self.throughput.steps()?)
    }
}
