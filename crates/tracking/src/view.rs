//! [`RunView`]: the state of a run, computed from its events.

use std::collections::BTreeMap;

use ronde_core::event::{PhaseTimes, RunTotals, SampleUnit, StepPhase, WorkerTotals};
use ronde_core::staleness::StalenessTally;
use ronde_core::{Event, Rank, SkippedUpdates};

use crate::consensus::ConsensusTally;
use crate::throughput::Throughput;
use crate::time_left::TimeLeft;

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
    /// The newest stragglers, the last one last; at most eight.
    pub stragglers: Vec<StragglerView>,
    /// The shares of workers of different speed; `None`: they are equal.
    pub shares: Option<SharesView>,
    /// The staleness of the gradients of all rounds, in a run with parameter servers.
    pub staleness: StalenessTally,
    /// The distances and exchanges of replicas that average in pairs.
    pub consensus: ConsensusTally,
    /// The cosine and the relative error of each predictor of gradients in the last round: see `Event::GradientsPredicted`.
    pub predictions: Vec<(f64, f64)>,
    /// The last finished epoch.
    pub epoch: Option<EpochView>,
    /// The last evaluation.
    pub evaluation: Option<EvaluationView>,
    /// The best model so far, which the run saves at its end; `None`: it saves that of the last step.
    pub best: Option<BestModelView>,
    /// The saved model.
    pub model: Option<ModelView>,
    /// Duration of the run in seconds, once it has finished.
    pub finished_s: Option<f64>,
    /// Number of the current attempt; 0 and 1: the first.
    pub attempt: u32,
    /// Duration of the earlier attempts in seconds.
    pub earlier_s: f64,
    /// Number of records that were skipped because they cannot be read.
    pub skipped: u64,
    /// Number of steps that have updated no parameter.
    pub skipped_updates: SkippedUpdates,
    /// How often the run began again with its first step.
    pub restarts: u64,
    time_left: TimeLeft,
    /// The number of samples of an epoch.
    samples: u64,
    /// The first step of the current epoch and the number of samples of its largest step.
    epoch_begun: (u64, u64),
    /// Number of committed steps that are counted in the totals.
    counted: u64,
    /// Steps below this number are in the totals already when they are committed again.
    counted_until: u64,
    /// The newest events that describe the state of the run, for [`RunView::totals`].
    last: BTreeMap<&'static str, Event>,
    /// Number of workers that failed first-hand, not counting those that only noticed a peer's failure.
    pub failures: u64,
    /// The first failure of the current attempt.
    pub failure: Option<FailureView>,
    /// Whether the run has stopped after a step on request.
    pub is_stopped: bool,
    /// Number of steps in the newest checkpoint.
    pub checkpoint: Option<u64>,
    /// Host and process id of the newest process of each worker slot.
    pub processes: BTreeMap<u32, (String, u32)>,
}

/// The first failure of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureView {
    /// The worker.
    pub rank: Rank,
    /// The first line of its message.
    pub cause: String,
    /// The next action for the user, if the message has one.
    pub help: Option<String>,
}

impl FailureView {
    /// Parses the message of a worker: the cause, then indented lines, whose last ones may start with `help: `.
    fn parse(rank: Rank, message: &str) -> Self {
        let mut lines = message.lines().map(str::trim);
        let cause = lines.next().unwrap_or_default().to_owned();
        let first = lines.find_map(|line| line.strip_prefix("help: "));
        let help = first.map(|first| {
            let all: Vec<&str> = std::iter::once(first).chain(lines).collect();
            all.join(" ").trim_end().to_owned()
        });
        Self { rank, cause, help }
    }
}

impl std::fmt::Display for FailureView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {}: {}", self.rank, self.cause)
    }
}

/// The last committed step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepView {
    /// Number of steps committed since step 0.
    pub committed: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Mean loss over the counted targets of the global batch; NaN without any.
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
    /// Bytes sent by this attempt's process, which are part of `bytes_sent`.
    of_process: u64,
}

impl WorkerView {
    fn of(totals: &WorkerTotals) -> Self {
        Self {
            times: totals.times,
            bytes_sent: totals.bytes_sent,
            of_process: totals.bytes_sent_by_process,
        }
    }

    /// Adds the bytes that the process has sent since the last report; its counter starts at zero.
    fn add_bytes(&mut self, of_process: u64) {
        let before = if of_process < self.of_process {
            0
        } else {
            self.of_process
        };
        self.bytes_sent += of_process - before;
        self.of_process = of_process;
    }

    /// Continues with a new process.
    fn restart(&mut self) {
        self.of_process = 0;
    }
}

/// A rank that the others waited for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StragglerView {
    /// The rank.
    pub rank: Rank,
    /// The first step since which it delayed the others.
    pub since: u64,
    /// The step from which it no longer did; `None`: it still does.
    pub until: Option<u64>,
    /// The phase in which it took longer than the others.
    pub phase: StepPhase,
    /// The mean delay of a step in seconds when it was detected.
    pub delay_s: f64,
    /// The share of the time that the delays took, from 0 to 1.
    pub share: f64,
}

/// The shards of workers of different speed.
#[derive(Debug, Clone, PartialEq)]
pub struct SharesView {
    /// The first step with these shares.
    pub since: u64,
    /// The number of shards and the measured seconds for one shard, by rank.
    pub ranks: Vec<(u32, f64)>,
}

/// The number of stragglers that a view keeps.
const STRAGGLERS_MAX: usize = 8;

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

/// The model with the best evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct BestModelView {
    /// The metric that is best, or `loss`.
    pub metric: String,
    /// Its evaluation.
    pub evaluation: EvaluationView,
}

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationView {
    /// Number of steps that the evaluated model was trained on.
    pub steps: u64,
    /// Mean loss.
    pub loss: f64,
    /// The values of the metrics by name.
    pub metrics: BTreeMap<String, f64>,
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
    /// Returns the evaluation of the model that the run saves: the best one, or the last one.
    #[must_use]
    pub fn saved_evaluation(&self) -> Option<&EvaluationView> {
        let best = self.best.as_ref().map(|best| &best.evaluation);
        best.or(self.evaluation.as_ref())
    }

    /// Updates the state by a committed step.
    fn apply_step(&mut self, event: &Event) {
        let Event::StepCommitted {
            step,
            epoch,
            generation,
            loss,
            samples,
            skipped,
            learning_rate,
            skipped_update,
            duration_s,
            ..
        } = event
        else {
            return;
        };
        self.time_left.add(*generation, *epoch, *duration_s);
        self.note_epoch(step.0, epoch.0, *samples);
        self.progress = Some(StepView {
            committed: step.0.saturating_add(1),
            epoch: epoch.0,
            loss: *loss,
            learning_rate: *learning_rate,
        });
        self.remember("step", event);
        if step.0 < self.counted_until {
            self.throughput.add_again(*samples, *duration_s);
        } else {
            self.throughput.add(*samples, *duration_s);
            self.skipped += skipped;
            skipped_update.map(|skipped| self.skipped_updates.add(skipped));
            self.counted = self.counted.max(step.0.saturating_add(1));
        }
    }

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
                samples,
                unit,
            } => {
                (self.samples, self.unit) = (*samples, *unit);
                self.remember("run", event);
                (self.failure, self.is_stopped) = (None, false);
                (self.name, self.plan) = (name.clone(), plan.clone());
                (self.world_size, self.logical_shards) = (*world_size, *logical_shards);
                self.parameters = *parameters;
                (self.steps, self.epochs) = (*steps, *epochs);
                self.end_straggler(None);
                self.shares = None;
            }
            Event::StepCommitted { .. } => self.apply_step(event),
            Event::StepTimes {
                rank,
                step,
                times,
                bytes_sent,
                ..
            } => {
                let worker = self.workers.entry(*rank).or_default();
                if step.0 >= self.counted_until {
                    worker.times.add(times);
                }
                worker.add_bytes(*bytes_sent);
            }
            Event::AttemptStarted { .. }
            | Event::RunTotals(_)
            | Event::CheckpointLoaded { .. }
            | Event::RunRestarted { .. } => self.apply_restart(event),
            _ => self.apply_result(event),
        }
    }

    /// Handles the events after which steps may be computed again.
    fn apply_restart(&mut self, event: &Event) {
        match event {
            Event::AttemptStarted { attempt } => {
                self.attempt = *attempt;
                self.time_left.restart();
                self.counted_until = self.counted;
                self.throughput
                    .set_totals(self.throughput.samples(), self.throughput.seconds());
                self.workers.values_mut().for_each(WorkerView::restart);
                (self.failures, self.finished_s, self.model) = (0, None, None);
                self.last.remove("model");
                self.last.remove("finished");
            }
            Event::CheckpointLoaded { step, address, .. } => {
                self.counted_until = self.counted;
                if address.is_some() {
                    self.checkpoint = Some(step.0);
                }
                if let Some(progress) = &mut self.progress {
                    progress.committed = step.0;
                }
            }
            Event::RunRestarted { .. } => {
                self.restarts += 1;
                self.counted_until = self.counted;
                if let Some(progress) = &mut self.progress {
                    progress.committed = 0;
                }
            }
            Event::RunTotals(totals) => {
                totals.last.iter().for_each(|event| self.apply(event));
                self.attempt = totals.attempt;
                self.earlier_s = totals.elapsed_s;
                self.skipped = totals.skipped;
                self.skipped_updates = totals.skipped_updates;
                self.restarts = totals.restarts;
                self.failures = totals.failures;
                self.counted = totals.steps;
                self.counted_until = totals.counted_until;
                self.throughput.set_totals(totals.samples, totals.steps_s);
                self.workers = totals
                    .workers
                    .iter()
                    .map(|worker| (worker.rank, WorkerView::of(worker)))
                    .collect();
            }
            _ => {}
        }
    }

    /// Keeps the newest event of a kind for [`RunView::totals`].
    fn remember(&mut self, kind: &'static str, event: &Event) {
        self.last.insert(kind, event.clone());
    }

    /// Returns the totals of all events so far, from which [`RunView::apply`] restores them. `elapsed_s` is the
    /// duration of the run so far.
    #[must_use]
    pub fn totals(&self, elapsed_s: f64) -> RunTotals {
        RunTotals {
            attempt: self.attempt,
            elapsed_s,
            steps: self.counted,
            counted_until: self.counted_until,
            samples: self.throughput.samples(),
            skipped: self.skipped,
            skipped_updates: self.skipped_updates,
            restarts: self.restarts,
            steps_s: self.throughput.seconds(),
            workers: self
                .workers
                .iter()
                .map(|(rank, worker)| WorkerTotals {
                    rank: *rank,
                    times: worker.times,
                    bytes_sent: worker.bytes_sent,
                    bytes_sent_by_process: worker.of_process,
                })
                .collect(),
            failures: self.failures,
            last: self.last.values().cloned().collect(),
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
                self.remember("epoch", event);
                self.epoch = Some(EpochView {
                    epoch: epoch.0,
                    used_once: *used_once,
                    missing: *missing,
                    repeated: *repeated,
                });
            }
            Event::Evaluated { .. } | Event::BestModel { .. } => self.apply_evaluation(event),
            Event::ModelSaved {
                path,
                config_path,
                blake3,
            } => {
                self.remember("model", event);
                self.model = Some(ModelView {
                    path: path.clone(),
                    config_path: config_path.clone(),
                    blake3: blake3.clone(),
                });
            }
            Event::CheckpointSaved { step, .. } => self.checkpoint = Some(step.0),
            Event::RunStopped { step, .. } => {
                self.is_stopped = true;
                // Not every step is recorded.
                if let Some(progress) = &mut self.progress {
                    progress.committed = progress.committed.max(step.0);
                }
            }
            Event::RunFinished {
                duration_s,
                skipped,
                ..
            } => {
                self.remember("finished", event);
                self.finished_s = Some(*duration_s);
                self.skipped = *skipped;
            }
            _ => self.apply_member(event),
        }
    }

    /// Handles the events about evaluations.
    fn apply_evaluation(&mut self, event: &Event) {
        let (Event::Evaluated {
            step,
            loss,
            metrics,
            samples,
        }
        | Event::BestModel {
            step,
            loss,
            metrics,
            samples,
            ..
        }) = event
        else {
            return;
        };
        let evaluation = EvaluationView {
            steps: step.0.saturating_add(1),
            loss: *loss,
            metrics: metrics.clone(),
            samples: *samples,
        };
        if let Event::BestModel { metric, .. } = event {
            self.remember("best", event);
            self.best = Some(BestModelView {
                metric: metric.clone(),
                evaluation,
            });
        } else {
            self.remember("evaluation", event);
            self.evaluation = Some(evaluation);
        }
    }

    /// Handles the event about predicted gradients.
    fn apply_predictions(&mut self, event: &Event) {
        if let Event::GradientsPredicted {
            cosines, errors, ..
        } = event
        {
            let pairs = cosines.iter().copied().zip(errors.iter().copied());
            self.predictions = pairs.collect();
        }
    }

    /// Handles the events about single workers and their membership.
    fn apply_member(&mut self, event: &Event) {
        match event {
            Event::WorkerFailed {
                rank,
                message,
                secondary: false,
                ..
            } => {
                self.failures += 1;
                self.failure
                    .get_or_insert_with(|| FailureView::parse(*rank, message));
            }
            Event::WorkerStarted { place, host, pid } => {
                self.processes.insert(*place, (host.clone(), *pid));
            }
            Event::StragglerDetected {
                rank,
                step,
                phase,
                delay_s,
                share,
            } => {
                if self.stragglers.len() >= STRAGGLERS_MAX {
                    self.stragglers.remove(0);
                }
                self.stragglers.push(StragglerView {
                    rank: *rank,
                    since: step.0,
                    until: None,
                    phase: *phase,
                    delay_s: *delay_s,
                    share: *share,
                });
            }
            Event::StragglerRecovered { step, .. } => self.end_straggler(Some(step.0)),
            Event::SharesChanged {
                step,
                shares,
                shard_s,
            } => {
                let ranks = shares.iter().copied().zip(shard_s.iter().copied());
                self.shares = Some(SharesView {
                    since: step.0,
                    ranks: ranks.collect(),
                });
            }
            Event::Staleness { workers, .. } => self.staleness.merge(workers),
            Event::ReplicasAveraged {
                distance,
                exchanges,
                missed,
                exchanged_bytes,
                ..
            } => self
                .consensus
                .add(*distance, (*exchanges, *missed), *exchanged_bytes),
            Event::GradientsPredicted { .. } => self.apply_predictions(event),
            // Ranks change.
            Event::MembershipChanged { .. } => {
                self.end_straggler(None);
                self.shares = None;
            }
            _ => {}
        }
    }

    /// Returns the rank that the others wait for at present.
    #[must_use]
    pub fn straggler(&self) -> Option<&StragglerView> {
        let newest = self.stragglers.last();
        newest.filter(|straggler| straggler.until.is_none() && self.finished_s.is_none())
    }

    /// Ends the present straggler at a step; `None`: after the last committed one.
    fn end_straggler(&mut self, step: Option<u64>) {
        let committed = self.progress.map_or(0, |now| now.committed);
        if let Some(straggler) = self.stragglers.last_mut() {
            straggler.until.get_or_insert(step.unwrap_or(committed));
        }
    }

    /// Returns the phase of the run in one word or two; `is_running`: whether a run holds the lock of its folder.
    #[must_use]
    pub fn phase(&self, is_running: bool) -> &'static str {
        match () {
            () if is_running => "running",
            () if self.finished_s.is_some() => "finished",
            () if self.is_stopped => "interrupted",
            () if self.failure.is_some() => "failed",
            () => "ended without a result",
        }
    }

    /// Notes the first step of an epoch. After a restart within an epoch, its first step follows from its number.
    fn note_epoch(&mut self, step: u64, epoch: u64, samples: u64) {
        let largest = self.epoch_begun.1.max(samples);
        let begun = match self.progress {
            Some(now) if now.epoch == epoch => self.epoch_begun.0,
            Some(now) if now.epoch.saturating_add(1) == epoch => step,
            _ => epoch.saturating_mul(self.samples.div_ceil(largest.max(1))),
        };
        self.epoch_begun = (begun.min(step), largest);
    }

    /// Returns the share of the current epoch whose steps are committed, from 0 to 1, once a step is committed.
    #[must_use]
    pub fn epoch_share(&self) -> Option<f64> {
        let now = self.progress?;
        let (begun, largest) = self.epoch_begun;
        let steps = self.samples.div_ceil(largest.max(1)).max(1);
        Some((now.committed.saturating_sub(begun) as f64 / steps as f64).clamp(0.0, 1.0))
    }

    /// Returns the estimated seconds until the last step, from the recent half of the steps that the present workers
    /// have committed.
    #[must_use]
    pub fn left_s(&self) -> Option<f64> {
        let now = self.progress?;
        let steps = self.steps.checked_sub(now.committed);
        // The time of a finished run is known.
        let steps = steps.filter(|steps| *steps > 0)?;
        let epochs = self.epochs.saturating_sub(now.epoch.saturating_add(1));
        self.time_left.seconds(steps, epochs)
    }
}
