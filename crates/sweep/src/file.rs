//! [`SweepFile`]: the description of a sweep, `sweep.toml`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ronde_core::philox::Stream;
use serde::{Deserialize, Serialize};
use toml::Value;

use crate::error::SweepError;
use crate::space::KeySpace;

/// The version of the format.
const VERSION: u32 = 1;
/// The largest number of trials.
const TRIALS_MAX: usize = 10_000;

/// How values are searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchKind {
    /// Every combination of the values.
    Grid,
    /// Random combinations.
    Random,
    /// Random combinations with a small budget, the best continue with a larger one (ASHA).
    Halving,
}

/// Whether a larger score is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// The largest score is the best.
    Maximise,
    /// The smallest score is the best.
    Minimise,
}

/// The budgets of successive halving.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HalvingSettings {
    /// The key of the run file that is the budget.
    #[serde(default = "epochs")]
    pub key: String,
    /// The smallest budget.
    pub from: u64,
    /// The largest budget.
    pub to: u64,
    /// The factor between two budgets; one in this number of trials continues.
    #[serde(default = "three")]
    pub factor: u32,
}

fn epochs() -> String {
    "train.epochs".to_owned()
}

fn three() -> u32 {
    3
}

fn one() -> u32 {
    1
}

/// The description of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepFile {
    /// The version of this format: 1.
    pub version: u32,
    /// The name of the sweep, for its folder and its jobs; by default that of the file.
    pub name: Option<String>,
    /// The run file, relative to this file; by default the embedded example.
    pub run: Option<PathBuf>,
    /// How values are searched.
    pub search: SearchKind,
    /// The number of trials, which a grid determines itself.
    pub trials: Option<u32>,
    /// The seed of random values.
    #[serde(default)]
    pub seed: u64,
    /// The score of a run: the name of a metric of the evaluation of its saved model, or `loss`.
    pub metric: String,
    /// Whether a larger score is better; by default yes, and no for `loss`.
    pub goal: Option<Goal>,
    /// The largest number of runs at the same time.
    #[serde(default = "one")]
    pub side_by_side: u32,
    /// The number of workers of each run.
    #[serde(default = "one")]
    pub workers: u32,
    /// Values of the run file that are the same for all trials.
    #[serde(default)]
    pub set: BTreeMap<String, Value>,
    /// The keys of the run file to search over, with their values.
    pub keys: BTreeMap<String, KeySpace>,
    /// The budgets of successive halving.
    pub halving: Option<HalvingSettings>,
}

impl SweepFile {
    /// Reads and checks a description.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse(text: &str) -> Result<Self, SweepError> {
        let file: Self = toml::from_str(text).map_err(|error| SweepError::Syntax {
            problem: error.to_string(),
        })?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), SweepError> {
        if self.version != VERSION {
            let problem = format!("expected {VERSION}, not {}", self.version);
            return Err(SweepError::value("version", problem));
        }
        if self.keys.is_empty() {
            return Err(SweepError::value(
                "keys",
                "expected at least one key of the run file",
            ));
        }
        let is_grid = self.search == SearchKind::Grid;
        for (key, space) in &self.keys {
            space.check(key, is_grid)?;
            if self.set.contains_key(key) {
                return Err(SweepError::value(
                    format!("set.\"{key}\""),
                    "it is among `keys`, too",
                ));
            }
        }
        for (key, value) in [
            ("side_by_side", self.side_by_side),
            ("workers", self.workers),
        ] {
            if value == 0 {
                return Err(SweepError::value(key, "expected at least 1"));
            }
        }
        match (is_grid, self.trials) {
            (true, Some(_)) => {
                return Err(SweepError::value(
                    "trials",
                    "a grid has as many trials as combinations",
                ));
            }
            (false, None | Some(0)) => {
                return Err(SweepError::value("trials", "expected the number of trials"));
            }
            _ => {}
        }
        self.check_halving()?;
        let trials = self.trial_count();
        if trials > TRIALS_MAX {
            let problem = format!("{trials} combinations are more than {TRIALS_MAX}");
            return Err(SweepError::value("keys", problem));
        }
        Ok(())
    }

    fn check_halving(&self) -> Result<(), SweepError> {
        let invalid = |problem: &str| Err(SweepError::value("halving", problem));
        match (&self.halving, self.search == SearchKind::Halving) {
            (None, false) => Ok(()),
            (None, true) => invalid("expected the section `[halving]` with `from` and `to`"),
            (Some(_), false) => invalid("it is for `search = \"halving\"` only"),
            (Some(halving), true) => {
                if halving.from == 0 || halving.from >= halving.to {
                    return invalid("expected `from` above 0 and less than `to`");
                }
                if halving.factor < 2 {
                    return invalid("expected a `factor` of at least 2");
                }
                if self.keys.contains_key(&halving.key) || self.set.contains_key(&halving.key) {
                    return invalid("its key cannot be among `keys` or `set`");
                }
                Ok(())
            }
        }
    }

    /// Returns whether a larger score is better.
    #[must_use]
    pub fn goal(&self) -> Goal {
        self.goal.unwrap_or(match self.metric.as_str() {
            "loss" => Goal::Minimise,
            _ => Goal::Maximise,
        })
    }

    /// Returns the number of trials.
    fn trial_count(&self) -> usize {
        match self.search {
            SearchKind::Grid => self
                .keys
                .values()
                .map(|space| space.grid().len())
                .fold(1, usize::saturating_mul),
            _ => self.trials.unwrap_or(0) as usize,
        }
    }

    /// Returns the values of all trials, in the order in which they start. They depend on this file only.
    #[must_use]
    pub fn trials(&self) -> Vec<BTreeMap<String, Value>> {
        match self.search {
            SearchKind::Grid => self.combinations(),
            _ => (0..self.trial_count() as u64)
                .map(|trial| self.random_trial(trial))
                .collect(),
        }
    }

    /// Returns all combinations; the last key changes fastest.
    fn combinations(&self) -> Vec<BTreeMap<String, Value>> {
        let mut trials = vec![BTreeMap::new()];
        for (key, space) in &self.keys {
            let values = space.grid();
            let extend = |trial: &BTreeMap<String, Value>| {
                let with = |value: &Value| {
                    let mut extended = trial.clone();
                    extended.insert(key.clone(), value.clone());
                    extended
                };
                values.iter().map(with).collect::<Vec<_>>()
            };
            trials = trials.iter().flat_map(extend).collect();
        }
        trials
    }

    fn random_trial(&self, trial: u64) -> BTreeMap<String, Value> {
        let draw = |(key, space): (&String, &KeySpace)| {
            let mut hasher = blake3::Hasher::new_derive_key("ronde sweep, version 1");
            hasher.update(&self.seed.to_le_bytes());
            hasher.update(&trial.to_le_bytes());
            hasher.update(key.as_bytes());
            let hash = hasher.finalize();
            let word = |i: usize| {
                let bytes = &hash.as_bytes()[4 * i..4 * i + 4];
                u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
            };
            let stream = Stream::new([word(0), word(1), word(2), word(3)]);
            (key.clone(), space.draw(&stream))
        };
        self.keys.iter().map(draw).collect()
    }

    /// Returns the budgets of successive halving, the smallest first; none for the other kinds of search.
    #[must_use]
    pub fn budgets(&self) -> Vec<u64> {
        let Some(halving) = &self.halving else {
            return Vec::new();
        };
        let factor = u64::from(halving.factor);
        let mut budgets: Vec<u64> =
            std::iter::successors(Some(halving.from), |budget| budget.checked_mul(factor))
                .take_while(|budget| *budget < halving.to)
                .collect();
        budgets.push(halving.to);
        budgets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: &str = "version = 1\nsearch = \"grid\"\nmetric = \"accuracy\"\n\
        [keys]\n\"train.learning_rate\" = [0.1, 0.01]\n\"model.hidden\" = [[8], [16, 8], [4]]\n";
    const RANDOM: &str = "version = 1\nsearch = \"random\"\ntrials = 4\nmetric = \"loss\"\nseed = 7\n\
        [keys]\n\"train.learning_rate\" = { from = 1e-4, to = 1.0, scale = \"log\" }\n\
        \"run.seed\" = { from = 0, to = 1000 }\n";

    #[test]
    fn a_grid_has_every_combination_once() {
        let file = SweepFile::parse(GRID).unwrap();
        let trials = file.trials();
        assert_eq!(trials.len(), 6);
        let mut texts: Vec<String> = trials.iter().map(|trial| format!("{trial:?}")).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), 6);
        assert_eq!(file.goal(), Goal::Maximise);
    }

    #[test]
    fn random_trials_depend_on_the_seed_and_their_number_only() {
        let file = SweepFile::parse(RANDOM).unwrap();
        let trials = file.trials();
        assert_eq!(trials, file.trials());
        let more = SweepFile::parse(&RANDOM.replace("trials = 4", "trials = 9")).unwrap();
        assert_eq!(more.trials()[..4], trials[..]);
        let other = SweepFile::parse(&RANDOM.replace("seed = 7", "seed = 8")).unwrap();
        assert!(trials.iter().zip(other.trials()).all(|(a, b)| *a != b));
        // A change of these values would change the trials of a sweep that resumes.
        let shown: Vec<String> = trials
            .iter()
            .map(|trial| format!("{} {}", trial["run.seed"], trial["train.learning_rate"]))
            .collect();
        assert_eq!(shown, RANDOM_TRIALS);
        assert_eq!(file.goal(), Goal::Minimise);
    }

    const RANDOM_TRIALS: [&str; 4] = ["403 0.3305", "805 0.001154", "878 0.5505", "132 0.0005036"];

    #[test]
    fn budgets_grow_by_the_factor_up_to_the_largest() {
        let text = RANDOM.replace("random", "halving");
        let parse = |section: &str| SweepFile::parse(&format!("{text}[halving]\n{section}"));
        assert_eq!(parse("from = 1\nto = 27").unwrap().budgets(), [1, 3, 9, 27]);
        assert_eq!(
            parse("from = 2\nto = 10\nfactor = 2").unwrap().budgets(),
            [2, 4, 8, 10]
        );
        for (section, problem) in [
            ("from = 3\nto = 3", "less than `to`"),
            ("from = 1\nto = 3\nfactor = 1", "at least 2"),
            (
                "from = 1\nto = 3\nkey = \"run.seed\"",
                "cannot be among `keys`",
            ),
        ] {
            let error = parse(section).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, problem) in [
            ("version = 1", "version = 2", "expected 1, not 2"),
            (
                "search = \"grid\"",
                "search = \"best\"",
                "unknown variant `best`",
            ),
            ("metric", "metrics", "unknown field `metrics`"),
            (
                "metric = \"accuracy\"",
                "metric = \"a\"\ntrials = 3",
                "as many trials as combinations",
            ),
            (
                "metric = \"accuracy\"",
                "metric = \"a\"\nworkers = 0",
                "invalid workers",
            ),
            (
                "[keys]",
                "[set]\n\"model.hidden\" = [1]\n[keys]",
                "it is among `keys`, too",
            ),
            (
                "[0.1, 0.01]",
                "{ from = 1, to = 100000, points = 9999 }",
                "29997 combinations",
            ),
        ] {
            let error = SweepFile::parse(&GRID.replace(from, to))
                .unwrap_err()
                .to_string();
            assert!(error.contains(problem), "{problem:?} in {error}");
        }
    }
}
