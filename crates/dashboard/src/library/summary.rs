//! [`RunSummary`]: the line of a run in a list of runs.

use std::collections::BTreeMap;
use std::path::Path;

use ronde_core::Event;
use ronde_tracking::RunView;
use serde::Serialize;

use super::EVENT_FILE;
use super::newest_start::NewestStart;
use crate::follow::ends;

/// Bytes at each end of an event file that are read for a summary.
const ENDS_BYTES: u64 = 64 << 10;

/// The line of a run in a list of runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunSummary {
    /// The name of the folder, which identifies the run in a library.
    pub id: String,
    /// The name of the run.
    pub name: String,
    /// Hash of the plan.
    pub plan: String,
    /// `running`, `finished`, `interrupted`, `failed` or `ended without a result`.
    pub phase: &'static str,
    /// Number of committed steps.
    pub step: u64,
    /// Number of steps in the whole run.
    pub steps: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Number of epochs.
    pub epochs: u64,
    /// Loss of the last step.
    pub loss: Option<f64>,
    /// Loss and metrics of the model that the run saves: of the best evaluation with `train.keep_best`, or else of the last one.
    pub evaluation: Option<BTreeMap<String, f64>>,
    /// Number of steps that this model was trained on.
    pub evaluated_steps: Option<u64>,
    /// The metric that is best, if the run keeps the best model.
    pub best_by: Option<String>,
    /// Recent samples per second.
    pub rate: Option<f64>,
    /// The name of samples.
    pub unit: &'static str,
    /// Seconds until the last step, while the run is under way.
    pub left_s: Option<f64>,
    /// Number of workers.
    pub world_size: u32,
    /// Number of trainable parameters.
    pub parameters: u64,
    /// Number of steps in the newest checkpoint.
    pub checkpoint: Option<u64>,
    /// blake3 of the saved model.
    pub blake3: Option<String>,
    /// The first failure.
    pub failure: Option<String>,
    /// The next action after that failure.
    pub help: Option<String>,
    /// Time of the first event in seconds since 1970.
    pub started_t: Option<f64>,
    /// Time of the last change in seconds since 1970.
    pub updated_t: f64,
    /// The part of the event file that was read for the history, 0 to 1.
    pub read_share: f64,
    /// Number of lines of the event files that could not be read.
    pub damaged_lines: u64,
    /// Why the event file cannot be read.
    pub problem: Option<String>,
    /// A number that changes with every change of the run.
    pub version: u64,
}

impl RunSummary {
    /// Reads the ends of the event file of a run. `seen`: its modification time and length. `newest_start` searches the middle
    /// for the attempt whose steps are at the end.
    pub(super) fn read(
        id: &str,
        folder: &Path,
        (seen, is_running): (Option<(f64, u64)>, bool),
        newest_start: &mut NewestStart,
    ) -> Self {
        let mut view = RunView::default();
        let mut started_t = None;
        let read = ends(
            &folder.join(EVENT_FILE),
            ENDS_BYTES,
            &mut |is_far, t, event| {
                started_t.get_or_insert(t);
                // Only these are still true at the end of the file.
                let describes_run = matches!(event, Event::RunStarted { .. } | Event::RunTotals(_));
                if !is_far || describes_run {
                    view.apply(event);
                }
            },
        );
        if let Ok(Some(Event::RunStarted {
            plan,
            steps,
            epochs,
            ..
        })) = newest_start.read(&folder.join(EVENT_FILE))
        {
            view.plan.clone_from(plan);
            (view.steps, view.epochs) = (*steps, *epochs);
        }
        // The start of this attempt was not read: its number of steps is not known.
        let committed = view.progress.map_or(0, |now| now.committed);
        if view.steps < committed {
            view.steps = 0;
        }
        let mut summary = Self {
            id: id.to_owned(),
            started_t,
            problem: read
                .err()
                .map(|error| format!("cannot read {EVENT_FILE}: {error}")),
            ..Self::default()
        };
        summary.update(&view, seen, is_running);
        summary
    }

    /// Takes over the state of a run.
    pub(super) fn update(&mut self, view: &RunView, seen: Option<(f64, u64)>, is_running: bool) {
        self.name = match view.name.as_str() {
            "" => self.id.clone(),
            name => name.to_owned(),
        };
        self.plan.clone_from(&view.plan);
        self.phase = view.phase(is_running);
        self.step = view.progress.map_or(0, |now| now.committed);
        self.steps = view.steps;
        self.epoch = view.progress.map_or(0, |now| now.epoch);
        self.epochs = view.epochs;
        self.loss = view.progress.map(|now| now.loss);
        let evaluation = view.saved_evaluation();
        self.evaluated_steps = evaluation.map(|result| result.steps);
        self.best_by = view.best.as_ref().map(|best| best.metric.clone());
        self.evaluation = evaluation.map(|result| {
            let mut values = result.metrics.clone();
            values.insert("loss".to_owned(), result.loss);
            values
        });
        self.rate = view.throughput.recent();
        self.unit = view.unit.plural();
        self.left_s = view.left_s().filter(|_| is_running);
        self.world_size = view.world_size;
        self.parameters = view.parameters;
        self.checkpoint = view.checkpoint;
        self.blake3 = view.model.as_ref().map(|model| model.blake3.clone());
        let failure = view.failure.as_ref();
        self.failure = failure.map(ToString::to_string);
        self.help = failure.and_then(|failure| failure.help.clone());
        self.updated_t = seen.map_or(self.updated_t, |(modified, _)| modified);
    }

    /// Returns why the run cannot be read or has failed, and the next action if there is one.
    pub(crate) fn trouble(&self) -> Option<(&str, Option<&str>)> {
        let problem = self.problem.as_deref().map(|problem| (problem, None));
        let failure = self.failure.as_deref().filter(|_| self.phase == "failed");
        problem.or(failure.map(|failure| (failure, self.help.as_deref())))
    }

    /// Returns whether the run is over and its event file was read to its end.
    pub(super) fn is_complete(&self) -> bool {
        self.phase != "running" && self.read_share >= 1.0
    }
}
