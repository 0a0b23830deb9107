//! [`RunHistory`]: everything that a display shows of a run, computed from its events in bounded memory.

use std::collections::{BTreeMap, VecDeque};

use ronde_core::{Event, Rank};
use ronde_tracking::{RunView, render};

use crate::buckets::{Buckets, SeriesBucket, ValueRange};

/// Largest number of buckets of the series of a run.
const BUCKETS_MAX: usize = 2_048;
/// Largest number of buckets of the series of a rank.
const RANK_BUCKETS_MAX: usize = 512;
/// Largest number of ranks with series.
const RANKS_MAX: usize = 256;
/// Largest number of records of a kind; the oldest ones are removed.
const RECORDS_MAX: usize = 4_096;
/// Largest number of evaluations; above it, every second one is removed.
const EVALUATIONS_MAX: usize = 2_048;
/// Largest number of classes of a confusion matrix.
const CLASSES_MAX: usize = 256;
/// Longest text of a record in bytes.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// The values of some consecutive steps.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepBucket {
    /// Time of the last step in seconds since 1970.
    pub t: f64,
    /// Losses.
    pub loss: ValueRange,
    /// Learning rates.
    pub learning_rate: ValueRange,
    /// Norms of the gradient.
    pub gradient_norm: ValueRange,
    /// Samples per second.
    pub rate: ValueRange,
    /// Number of samples.
    pub samples: u64,
    /// Sum of the durations in seconds.
    pub seconds: f64,
}

impl SeriesBucket for StepBucket {
    fn merge(&mut self, next: &Self) {
        if next.is_empty() {
            return;
        }
        self.t = next.t;
        self.loss.merge(&next.loss);
        self.learning_rate.merge(&next.learning_rate);
        self.gradient_norm.merge(&next.gradient_norm);
        self.rate.merge(&next.rate);
        self.samples += next.samples;
        self.seconds += next.seconds;
    }

    fn is_empty(&self) -> bool {
        self.loss.is_empty()
    }
}

/// The durations of a rank in some consecutive steps, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RankBucket {
    /// Number of steps.
    pub steps: u32,
    /// Computation.
    pub compute_s: f64,
    /// Communication that did not overlap with computation.
    pub communicate_s: f64,
    /// Waiting for data.
    pub wait_data_s: f64,
}

impl SeriesBucket for RankBucket {
    fn merge(&mut self, next: &Self) {
        self.steps += next.steps;
        self.compute_s += next.compute_s;
        self.communicate_s += next.communicate_s;
        self.wait_data_s += next.wait_data_s;
    }

    fn is_empty(&self) -> bool {
        self.steps == 0
    }
}

/// The memory of a rank's process.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MemoryBucket {
    /// Resident bytes.
    pub resident: ValueRange,
    /// The largest number of resident bytes since the process started.
    pub peak: u64,
}

impl SeriesBucket for MemoryBucket {
    fn merge(&mut self, next: &Self) {
        self.resident.merge(&next.resident);
        self.peak = self.peak.max(next.peak);
    }

    fn is_empty(&self) -> bool {
        self.resident.is_empty()
    }
}

/// The series of a rank.
#[derive(Debug, Clone)]
pub struct RankHistory {
    /// Durations of the phases.
    pub times: Buckets<RankBucket>,
    /// Memory.
    pub memory: Buckets<MemoryBucket>,
}

impl Default for RankHistory {
    fn default() -> Self {
        Self {
            times: Buckets::new(RANK_BUCKETS_MAX),
            memory: Buckets::new(RANK_BUCKETS_MAX),
        }
    }
}

/// An evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationRecord {
    /// Time in seconds since 1970.
    pub t: f64,
    /// The step after which the model was evaluated.
    pub step: u64,
    /// Mean loss.
    pub loss: f64,
    /// The values of the metrics by name.
    pub metrics: BTreeMap<String, f64>,
}

/// The classes that the model predicts after the last step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfusionRecord {
    /// The step after which the model was evaluated.
    pub step: u64,
    /// For each true class, how often each class was predicted.
    pub rows: Vec<Vec<u64>>,
    /// The names of the classes; empty if they have none.
    pub classes: Vec<String>,
}

/// A checkpoint that was saved, loaded, or could not be saved.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointRecord {
    /// Time in seconds since 1970.
    pub t: f64,
    /// `saved`, `loaded` or `failed`.
    pub outcome: &'static str,
    /// Number of steps in the checkpoint.
    pub step: u64,
    /// Bytes of all slices.
    pub bytes: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Seconds for which training paused.
    pub held_up_s: f64,
    /// The address, or the reason of a failure.
    pub text: String,
}

/// A change of the membership.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberRecord {
    /// Time in seconds since 1970.
    pub t: f64,
    /// The generation, if it is known.
    pub generation: Option<u64>,
    /// Number of members, if it is known.
    pub world_size: Option<u32>,
    /// The reason, or a description of the event.
    pub text: String,
}

/// A message of a run or of one of its ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageRecord {
    /// Time in seconds since 1970.
    pub t: f64,
    /// The rank that sent it, if any.
    pub rank: Option<Rank>,
    /// Whether it reports a problem.
    pub is_warning: bool,
    /// The text.
    pub text: String,
}

/// Everything that a display shows of a run. Its memory is bounded: at most about 0.4 MB for the run and 80 kB for each
/// rank, besides texts.
#[derive(Debug, Clone)]
pub struct RunHistory {
    /// The state of the run.
    pub view: RunView,
    /// Times of the first and of the last event in seconds since 1970.
    pub times: Option<(f64, f64)>,
    /// Loss, learning rate, gradient norm and throughput.
    pub steps: Buckets<StepBucket>,
    /// The series of each rank.
    pub ranks: BTreeMap<Rank, RankHistory>,
    /// The evaluations.
    pub evaluations: Vec<EvaluationRecord>,
    /// The confusion matrix, if the run measured it.
    pub confusion: Option<ConfusionRecord>,
    /// The checkpoints.
    pub checkpoints: VecDeque<CheckpointRecord>,
    /// The changes of the membership.
    pub members: VecDeque<MemberRecord>,
    /// The messages.
    pub messages: VecDeque<MessageRecord>,
}

impl Default for RunHistory {
    fn default() -> Self {
        Self {
            view: RunView::default(),
            times: None,
            steps: Buckets::new(BUCKETS_MAX),
            ranks: BTreeMap::new(),
            evaluations: Vec::new(),
            confusion: None,
            checkpoints: VecDeque::new(),
            members: VecDeque::new(),
            messages: VecDeque::new(),
        }
    }
}

impl RunHistory {
    /// Adds an event. `t`: its time in seconds since 1970.
    pub fn apply(&mut self, t: f64, event: &Event) {
        self.view.apply(event);
        let (first, last) = self.times.unwrap_or((t, t));
        self.times = Some((first.min(t), last.max(t)));
        match event {
            Event::StepCommitted {
                step,
                loss,
                samples,
                learning_rate,
                gradient_norm,
                duration_s,
                ..
            } => {
                let bucket = self.steps.of_step(step.0);
                bucket.t = t;
                bucket.loss.add(*loss);
                bucket.learning_rate.add(*learning_rate);
                bucket.gradient_norm.add(*gradient_norm);
                if *duration_s > 0.0 {
                    bucket.rate.add(*samples as f64 / duration_s);
                    bucket.samples += samples;
                    bucket.seconds += duration_s;
                }
            }
            Event::StepTimes {
                rank, step, times, ..
            } => {
                if let Some(history) = self.rank(*rank) {
                    history.times.of_step(step.0).merge(&RankBucket {
                        steps: 1,
                        compute_s: times.compute_s,
                        communicate_s: times.communicate_s,
                        wait_data_s: times.wait_data_s,
                    });
                }
            }
            Event::MemoryUsed {
                rank,
                step,
                resident_bytes,
                peak_bytes,
            } => {
                if let Some(history) = self.rank(*rank) {
                    let bucket = history.memory.of_step(step.0);
                    bucket.resident.add(*resident_bytes as f64);
                    bucket.peak = bucket.peak.max(*peak_bytes);
                }
            }
            _ => self.apply_rare(t, event),
        }
    }

    fn rank(&mut self, rank: Rank) -> Option<&mut RankHistory> {
        let is_full = self.ranks.len() >= RANKS_MAX && !self.ranks.contains_key(&rank);
        (!is_full).then(|| self.ranks.entry(rank).or_default())
    }

    /// Handles the events that are rare.
    fn apply_rare(&mut self, t: f64, event: &Event) {
        match event {
            Event::Evaluated {
                step,
                loss,
                metrics,
                ..
            } => {
                self.evaluations.push(EvaluationRecord {
                    t,
                    step: step.0,
                    loss: *loss,
                    metrics: metrics.clone(),
                });
                if self.evaluations.len() > EVALUATIONS_MAX {
                    let mut at = 0;
                    self.evaluations.retain(|_| {
                        at += 1;
                        at % 2 == 1
                    });
                }
            }
            Event::ConfusionMeasured {
                step,
                rows,
                classes,
            } if rows.len() <= CLASSES_MAX => {
                self.confusion = Some(ConfusionRecord {
                    step: step.0,
                    rows: rows.clone(),
                    classes: classes.clone(),
                });
            }
            Event::CheckpointSaved { .. }
            | Event::CheckpointLoaded { .. }
            | Event::CheckpointFailed { .. } => self.apply_checkpoint(t, event),
            Event::StragglerDetected { .. }
            | Event::StragglerRecovered { .. }
            | Event::SharesChanged { .. }
            | Event::WorkerStarted { .. }
            | Event::MembershipChanged { .. }
            | Event::Resumed { .. }
            | Event::Recovered { .. }
            | Event::AttemptStarted { .. }
            | Event::RunExtended { .. }
            | Event::RunRestarted { .. }
            | Event::WorkerFailed { .. } => self.apply_member(t, event),
            Event::Notice { rank, message } => {
                let is_warning = render::is_warning(event);
                self.message(t, *rank, is_warning, message);
            }
            _ => {}
        }
    }

    /// Drops the steps from this one on, because they are computed again.
    fn truncate(&mut self, step: u64) {
        self.steps.truncate(step);
        for history in self.ranks.values_mut() {
            history.times.truncate(step);
            history.memory.truncate(step);
        }
        self.evaluations.retain(|earlier| earlier.step < step);
    }

    fn apply_checkpoint(&mut self, t: f64, event: &Event) {
        let record = |outcome, step, bytes, seconds, held_up_s, text: &str| CheckpointRecord {
            t,
            outcome,
            step,
            bytes,
            seconds,
            held_up_s,
            text: shortened(text),
        };
        let record = match event {
            Event::CheckpointSaved {
                step,
                bytes,
                held_up_s,
                total_s,
                address,
                ..
            } => record("saved", step.0, *bytes, *total_s, *held_up_s, address),
            Event::CheckpointLoaded {
                step,
                bytes,
                duration_s,
                address,
                ..
            } => {
                self.truncate(step.0);
                let from = address.as_deref().unwrap_or("the memory of the workers");
                record("loaded", step.0, *bytes, *duration_s, 0.0, from)
            }
            Event::CheckpointFailed {
                step,
                rank,
                message,
                ..
            } => {
                self.message(t, Some(*rank), true, message);
                record("failed", step.0, 0, 0.0, 0.0, message)
            }
            _ => return,
        };
        push(&mut self.checkpoints, record);
    }

    fn apply_member(&mut self, t: f64, event: &Event) {
        let record = |generation: Option<u64>, world_size, text: String| MemberRecord {
            t,
            generation,
            world_size,
            text: shortened(&text),
        };
        let record = match event {
            Event::WorkerStarted { place, host, pid } => {
                let text = format!("worker {place} started on {host} (pid {pid})");
                record(None, None, text)
            }
            Event::MembershipChanged {
                generation,
                world_size,
                reason,
            } => record(Some(generation.0), Some(*world_size), reason.clone()),
            Event::Resumed {
                generation,
                world_size,
                step,
                healed,
                ..
            } => {
                let copied = match healed {
                    0 => String::new(),
                    n => format!("; {n} of them copied the state"),
                };
                let text = format!(
                    "training from step {} with {world_size} workers{copied}",
                    step.0
                );
                record(Some(generation.0), Some(*world_size), text)
            }
            Event::Recovered {
                generation,
                step,
                duration_s,
            } => {
                let after = render::duration(*duration_s);
                let text = format!(
                    "recovered: step {} committed {after} after the loss",
                    step.0
                );
                record(Some(generation.0), None, text)
            }
            Event::StragglerDetected { .. }
            | Event::StragglerRecovered { .. }
            | Event::SharesChanged { .. } => match self.speed_text(event) {
                Some(text) => record(None, None, text),
                None => return,
            },
            Event::WorkerFailed { rank, message, .. } => {
                self.message(t, Some(*rank), true, message);
                let cause = message.lines().next().unwrap_or_default();
                record(None, None, format!("worker {rank} failed: {cause}"))
            }
            _ => match self.beginning_text(event) {
                Some(text) => record(None, None, text),
                None => return,
            },
        };
        push(&mut self.members, record);
    }

    /// Returns the sentence about an event with which a run begins or continues.
    fn beginning_text(&mut self, event: &Event) -> Option<String> {
        match event {
            Event::RunRestarted { lost, .. } => {
                self.truncate(0);
                let steps = lost.0;
                Some(format!(
                    "run started again from its first step; {steps} steps lost"
                ))
            }
            Event::AttemptStarted { attempt } => {
                Some(format!("attempt {attempt} of the run started"))
            }
            Event::RunExtended { step, changes, .. } => {
                Some(format!("run extended from step {}: {changes}", step.0))
            }
            _ => None,
        }
    }

    /// Returns the sentence about an event that concerns the speed of ranks.
    fn speed_text(&self, event: &Event) -> Option<String> {
        match event {
            Event::StragglerDetected { .. } => self.view.straggler().map(render::straggler),
            Event::StragglerRecovered { rank, .. } => {
                Some(format!("rank {rank} no longer delays the other ranks"))
            }
            _ => {
                let shares = render::shares(self.view.shares.as_ref()?);
                Some(format!("shards divided by speed: {shares}"))
            }
        }
    }

    fn message(&mut self, t: f64, rank: Option<Rank>, is_warning: bool, text: &str) {
        let text = shortened(text);
        push(
            &mut self.messages,
            MessageRecord {
                t,
                rank,
                is_warning,
                text,
            },
        );
    }
}

/// Appends a record and removes the oldest one if there are too many.
fn push<T>(records: &mut VecDeque<T>, record: T) {
    if records.len() >= RECORDS_MAX {
        records.pop_front();
    }
    records.push_back(record);
}

fn shortened(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
