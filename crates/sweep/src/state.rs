//! [`Sweep`]: the trials of a sweep, their scores, and the next run. Pure; the caller starts runs and stores
//! the state.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toml::Value;

use crate::error::SweepError;
use crate::file::{Goal, SearchKind, SweepFile};
use crate::halving;

/// The format of a stored state.
const FORMAT: &str = "ronde.sweep";
/// Its version.
const VERSION: u32 = 1;

/// How a run ended, or that it has not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunOutcome {
    /// It was given to the target, or is about to be.
    Started,
    /// It has a score.
    Scored {
        /// The score.
        score: f64,
        /// The number of steps that the model with the score was trained on. States of earlier versions have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        steps: Option<u64>,
    },
    /// It failed, or has no score.
    Failed {
        /// Why.
        reason: String,
    },
}

/// The score of the model that a run has saved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunScore {
    /// The score.
    pub value: f64,
    /// The number of steps that the model was trained on, if it is known.
    pub steps: Option<u64>,
}

impl From<f64> for RunScore {
    /// Returns a score whose steps are not known.
    fn from(value: f64) -> Self {
        Self { value, steps: None }
    }
}

/// A run of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialRun {
    /// The name of its job.
    pub job: String,
    /// How it ended.
    pub outcome: RunOutcome,
}

/// A trial: values of the keys, and its runs with growing budgets. A grid and random search have one run each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// The values by key.
    pub values: BTreeMap<String, Value>,
    /// The runs, the smallest budget first.
    pub runs: Vec<TrialRun>,
}

/// A run that is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepRun {
    /// The number of the trial, from 0.
    pub trial: usize,
    /// The number of its budget, from 0.
    pub rung: usize,
    /// The name of its job.
    pub job: String,
}

/// The state of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    format: String,
    version: u32,
    /// The name of the sweep.
    pub name: String,
    /// What tells the sweep from others of the same name; the caller sets it. States of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The description.
    pub file: SweepFile,
    /// The text of the run file, without the values of trials.
    pub run_file: String,
    /// All trials by number.
    pub trials: Vec<Trial>,
}

impl Trial {
    /// Returns the number and the score of its largest budget that has one.
    #[must_use]
    pub fn score(&self) -> Option<(usize, f64)> {
        let mut scored = self.runs.iter().enumerate().rev();
        scored.find_map(|(rung, run)| match run.outcome {
            RunOutcome::Scored { score, .. } => Some((rung, score)),
            _ => None,
        })
    }

    /// Returns the number of steps that the model with [`Trial::score`] was trained on, if it is known.
    #[must_use]
    pub fn scored_steps(&self) -> Option<u64> {
        let mut scored = self.runs.iter().rev();
        scored.find_map(|run| match run.outcome {
            RunOutcome::Scored { steps, .. } => Some(steps),
            _ => None,
        })?
    }

    /// Returns whether a run of it has not ended.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        let last = self.runs.last();
        last.is_some_and(|run| run.outcome == RunOutcome::Started)
    }
}

impl Sweep {
    /// Begins a sweep. `run_file` is the text of its run file.
    #[must_use]
    pub fn new(name: String, file: SweepFile, run_file: String) -> Self {
        let trial = |values| Trial {
            values,
            runs: Vec::new(),
        };
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            name,
            id: None,
            trials: file.trials().into_iter().map(trial).collect(),
            file,
            run_file,
        }
    }

    /// Reads a stored state.
    ///
    /// # Errors
    /// It is damaged, or of another version.
    pub fn decode(text: &str) -> Result<Self, SweepError> {
        let damaged = |problem: String| SweepError::State { problem };
        let sweep: Self = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
        if (sweep.format.as_str(), sweep.version) != (FORMAT, VERSION) {
            let found = format!("{} {}", sweep.format, sweep.version);
            return Err(damaged(format!("expected {FORMAT} {VERSION}, not {found}")));
        }
        if sweep.trials.len() != sweep.file.trials().len() {
            return Err(damaged(
                "it has another number of trials than its file".to_owned(),
            ));
        }
        Ok(sweep)
    }

    /// Returns the text to store.
    ///
    /// # Errors
    /// A value cannot be written as JSON.
    pub fn encode(&self) -> Result<String, SweepError> {
        serde_json::to_string_pretty(self).map_err(|error| SweepError::State {
            problem: error.to_string(),
        })
    }

    /// Checks that a stored state belongs to a description and a run file, and takes over what may change: the number of
    /// runs side by side.
    ///
    /// # Errors
    /// Something else has changed.
    pub fn resume(&mut self, file: &SweepFile, run_file: &str) -> Result<(), SweepError> {
        let same = SweepFile {
            side_by_side: self.file.side_by_side,
            ..file.clone()
        };
        let what = match (same == self.file, run_file == self.run_file) {
            (true, true) => {
                self.file.side_by_side = file.side_by_side;
                return Ok(());
            }
            (false, _) => "the trials, the score or the settings of the runs",
            (true, false) => "the run file",
        };
        Err(SweepError::Changed {
            what: what.to_owned(),
        })
    }

    /// Returns the number of runs that have not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.trials
            .iter()
            .filter(|trial| trial.is_under_way())
            .count()
    }

    /// Returns the next run, if there is one that can start now, whatever the limit of runs side by side.
    #[must_use]
    pub fn next(&self) -> Option<SweepRun> {
        let promoted = match self.file.search {
            SearchKind::Halving => halving::promotion(self),
            _ => None,
        };
        let new = || {
            let trial = self.trials.iter().position(|trial| trial.runs.is_empty())?;
            Some((trial, 0))
        };
        let (trial, rung) = promoted.or_else(new)?;
        Some(SweepRun {
            trial,
            rung,
            job: self.job(trial, rung),
        })
    }

    /// Returns whether all runs have ended and none follows.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.under_way() == 0 && self.next().is_none()
    }

    /// Returns the name of the job of a run.
    fn job(&self, trial: usize, rung: usize) -> String {
        match rung {
            0 => format!("{}-{trial:04}", self.name),
            rung => format!("{}-{trial:04}-{rung}", self.name),
        }
    }

    /// Notes that a run is about to start.
    pub fn start(&mut self, run: &SweepRun) {
        if let Some(trial) = self.trials.get_mut(run.trial) {
            trial.runs.push(TrialRun {
                job: run.job.clone(),
                outcome: RunOutcome::Started,
            });
        }
    }

    /// Returns the runs that have not ended, as (number of the trial, number of the budget, job).
    #[must_use]
    pub fn started(&self) -> Vec<SweepRun> {
        let under_way = self.trials.iter().enumerate();
        let under_way = under_way.filter(|(_, trial)| trial.is_under_way());
        let run = |(trial, runs): (usize, &Trial)| SweepRun {
            trial,
            rung: runs.runs.len() - 1,
            job: self.job(trial, runs.runs.len() - 1),
        };
        under_way.map(run).collect()
    }

    /// Notes how a run ended. A score that is not a number counts as a failure.
    pub fn finish(&mut self, run: &SweepRun, outcome: Result<RunScore, String>) {
        let outcome = match outcome {
            Ok(RunScore { value, steps }) if value.is_finite() => RunOutcome::Scored {
                score: value,
                steps,
            },
            Ok(_) => RunOutcome::Failed {
                reason: "its score is not a number".to_owned(),
            },
            Err(reason) => RunOutcome::Failed { reason },
        };
        let trial = self.trials.get_mut(run.trial);
        if let Some(found) = trial.and_then(|trial| trial.runs.get_mut(run.rung)) {
            found.outcome = outcome;
        }
    }

    /// Removes a run that has not ended, so that it starts again.
    pub fn withdraw(&mut self, run: &SweepRun) {
        if let Some(trial) = self.trials.get_mut(run.trial)
            && trial.is_under_way()
        {
            trial.runs.pop();
        }
    }

    /// Lets failed runs start again.
    pub fn retry(&mut self) {
        for trial in &mut self.trials {
            let is_failed = |run: &TrialRun| matches!(run.outcome, RunOutcome::Failed { .. });
            if trial.runs.last().is_some_and(is_failed) {
                trial.runs.pop();
            }
        }
    }

    /// Returns whether the first score is better than the second one.
    #[must_use]
    pub fn is_better(&self, score: f64, than: f64) -> bool {
        match self.file.goal() {
            Goal::Maximise => score > than,
            Goal::Minimise => score < than,
        }
    }

    /// Returns the trials with a score, the best one first: those with a larger budget before others, and of equal scores
    /// the lower number.
    #[must_use]
    pub fn ranking(&self) -> Vec<usize> {
        let mut scored: Vec<(usize, usize, f64)> = self
            .trials
            .iter()
            .enumerate()
            .filter_map(|(number, trial)| trial.score().map(|(rung, score)| (number, rung, score)))
            .collect();
        scored.sort_by(|a, b| {
            let by_score = match self.file.goal() {
                Goal::Maximise => b.2.total_cmp(&a.2),
                Goal::Minimise => a.2.total_cmp(&b.2),
            };
            b.1.cmp(&a.1).then(by_score).then(a.0.cmp(&b.0))
        });
        scored.into_iter().map(|(number, ..)| number).collect()
    }

    /// Returns the overrides of the run file for a run: the values of its trial, those of all trials, and its budget.
    #[must_use]
    pub fn sets(&self, trial: usize, rung: usize) -> Vec<String> {
        let own = self.trials.get(trial).map(|trial| &trial.values);
        let own = own.into_iter().flatten();
        let budget = self.file.halving.as_ref().and_then(|halving| {
            let budget = *self.file.budgets().get(rung)?;
            Some(format!("{}={budget}", halving.key))
        });
        let sets = self.file.set.iter().chain(own);
        let sets = sets.map(|(key, value)| format!("{key}={value}"));
        sets.chain(budget).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(text: &str) -> Sweep {
        let file = SweepFile::parse(text).unwrap();
        Sweep::new("lr".to_owned(), file, "run".to_owned())
    }

    pub(crate) const GRID: &str = "version = 1\nsearch = \"grid\"\nmetric = \"accuracy\"\n[set]\n\"train.epochs\" = 2\n\
        [keys]\n\"train.learning_rate\" = [0.1, 0.01, 0.001]\n";

    #[test]
    fn trials_start_in_order_and_are_ranked() {
        let mut sweep = sweep(GRID);
        let scores = [Ok(0.5), Ok(f64::NAN), Ok(0.7)];
        for (number, score) in scores.into_iter().enumerate() {
            let run = sweep.next().unwrap();
            assert_eq!((run.trial, run.rung), (number, 0));
            assert_eq!(run.job, format!("lr-000{number}"));
            sweep.start(&run);
            assert_eq!(sweep.started(), std::slice::from_ref(&run));
            sweep.finish(&run, score.map(RunScore::from));
        }
        assert!(sweep.is_over());
        assert_eq!(sweep.ranking(), [2, 0]);
        assert_eq!(
            sweep.sets(1, 0),
            ["train.epochs=2", "train.learning_rate=0.01"]
        );
        sweep.retry();
        let run = sweep.next().unwrap();
        assert_eq!(run.trial, 1);
        sweep.start(&run);
        assert_eq!(sweep.next(), None);
        sweep.withdraw(&run);
        assert_eq!(sweep.next(), Some(run));
    }

    #[test]
    fn a_stored_state_continues_with_the_same_file_only() {
        let mut first = sweep(GRID);
        first.id = Some("one".to_owned());
        let run = first.next().unwrap();
        first.start(&run);
        let mut again = Sweep::decode(&first.encode().unwrap()).unwrap();
        assert_eq!(again, first);
        let parallel = GRID.replace("[set]", "side_by_side = 3\n[set]");
        again
            .resume(&SweepFile::parse(&parallel).unwrap(), "run")
            .unwrap();
        assert_eq!((again.file.side_by_side, again.started()), (3, vec![run]));
        let other = SweepFile::parse(&GRID.replace("0.001", "0.002")).unwrap();
        assert!(again.resume(&other, "run").is_err());
        let same = SweepFile::parse(GRID).unwrap();
        let error = again.resume(&same, "other").unwrap_err().to_string();
        assert!(error.contains("the run file"), "{error}");
        for text in [
            "{}",
            "",
            &first.encode().unwrap().replace("ronde.sweep", "x"),
        ] {
            assert!(Sweep::decode(text).is_err());
        }
    }
}
