//! [`RunFileText`]: the run file of a measurement, with its plan for one worker and its data.

use std::path::{Path, PathBuf};

use ronde::environment;
use ronde_core::WorldSize;
use ronde_data::Split;
use ronde_train::config::{Document, Override};
use ronde_train::{Plan, TrainError};

use crate::command::data::progress;
use crate::command::run::train::read_run_file;

/// The text of a run file.
pub(super) struct RunFileText {
    pub(super) text: String,
    /// The name in messages.
    pub(super) name: String,
    /// The folder to which paths of the file are relative.
    pub(super) base: PathBuf,
}

impl RunFileText {
    /// Reads a run file, or the embedded example.
    pub(super) fn read(file: Option<&Path>) -> Result<Self, String> {
        let (text, name, base) = read_run_file(file)?;
        Ok(Self { text, name, base })
    }

    /// Opens the data and resolves the plan of one worker. Progress is shown unless `is_quiet`.
    pub(super) fn open(&self, sets: &[String], is_quiet: bool) -> Result<(Plan, Split), String> {
        let sets: Vec<Override> = sets.iter().cloned().map(Override::Set).collect();
        let (config, _) = Document::load(&self.text, &self.name, &environment::all(), &sets)
            .map_err(|e| e.render(false))?;
        let failed = |error: TrainError| format!("error: {error}");
        let progress = progress::show(is_quiet);
        let base = config.run.base_folder(&self.base);
        let base = base.canonicalize().unwrap_or(base);
        let opening = environment::surroundings().opening(&base, config.run.seed, progress);
        let split = ronde_data::open(&config.data, &opening).map_err(|e| failed(e.into()))?;
        let plan = Plan::resolve(&config, WorldSize::ONE, &*split.train).map_err(failed)?;
        Ok((plan, split))
    }
}
