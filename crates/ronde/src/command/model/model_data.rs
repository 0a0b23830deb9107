//! A saved model and the data on which a command uses it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use clap::Args;
use ronde::environment;
use ronde_data::{Dataset, Split};
use ronde_saved_model::{ModelManifest, SavedModel};
use ronde_serve::DataForm;
use ronde_train::config::{Document, LoaderSection, Override, RunConfig};

use crate::command::data::progress;
use crate::command::model::model_names;
use crate::command::run::resume::is_override;
use crate::command::run::run_base;
use crate::command::run::train::read_run_file;

/// Arguments that name a saved model and its data.
#[derive(Args, Clone)]
pub(crate) struct ModelDataArguments {
    /// Folder of a finished run, or its model.safetensors.
    model: PathBuf,
    /// Run file whose test data and settings are used [default: run.toml beside the model].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Override a value of the run file, such as `--set data.test=more.csv`; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

/// A saved model and the data on which it is used.
pub(crate) struct ModelData {
    pub(crate) saved: SavedModel,
    pub(crate) config: RunConfig,
    /// The test data, with the names and the units of the model.
    pub(crate) test: Arc<dyn Dataset>,
    /// What was changed so that the data fits the model, and what cannot be compared.
    pub(crate) notes: Vec<String>,
    /// How the data differs from that of the run, as messages.
    pub(crate) differences: Vec<String>,
}

/// A saved model, what its outputs and tokens mean, and its test data where they are used.
pub(crate) struct UsedModel {
    pub(crate) saved: SavedModel,
    pub(crate) form: DataForm,
    pub(crate) loader: LoaderSection,
    pub(crate) test: Option<Arc<dyn Dataset>>,
    /// As in [`ModelData`].
    pub(crate) notes: Vec<String>,
    /// How the data differs from that of the run, as messages.
    pub(crate) differences: Vec<String>,
}

impl ModelDataArguments {
    /// Opens the model without its data, which it needs only if `--data` or `--set` name other data, or if an earlier release
    /// has written the model.
    ///
    /// # Errors
    /// As [`ModelDataArguments::open`].
    pub(crate) fn open_alone(&self, quiet: bool) -> Result<UsedModel, String> {
        if self.data.is_none() && self.sets.is_empty() {
            let saved = self.open_saved()?;
            let form = DataForm::of(&saved).map_err(|error| format!("error: {error}"))?;
            if let Some(form) = form {
                return Ok(UsedModel {
                    saved,
                    form,
                    loader: LoaderSection::default(),
                    test: None,
                    notes: Vec::new(),
                    differences: Vec::new(),
                });
            }
        }
        self.open_with_data(quiet)
    }

    /// Opens the model and its test data.
    ///
    /// # Errors
    /// As [`ModelDataArguments::open`].
    pub(crate) fn open_with_data(&self, quiet: bool) -> Result<UsedModel, String> {
        let ModelData {
            saved,
            config,
            test,
            notes,
            differences,
        } = self.open(quiet)?;
        Ok(UsedModel {
            saved,
            form: DataForm::of_data(test.description()),
            loader: config.loader,
            test: Some(test),
            notes,
            differences,
        })
    }

    /// Opens and checks the model.
    fn open_saved(&self) -> Result<SavedModel, String> {
        let saved = SavedModel::open(&self.model).map_err(|error| format!("error: {error}"))?;
        saved.check().map_err(|error| format!("error: {error}"))?;
        Ok(saved)
    }

    /// Opens the model and its test data. With `quiet`, no progress is printed.
    ///
    /// # Errors
    /// A message if one of them cannot be opened, or they do not fit.
    pub(crate) fn open(&self, quiet: bool) -> Result<ModelData, String> {
        let saved = self.open_saved()?;
        let beside = saved.weights().path().with_file_name("run.toml");
        let file = self.data.as_ref().unwrap_or(&beside);
        if self.data.is_none() && !file.exists() {
            return Err(format!(
                "error: there is no run file beside the model: {}\n  help: name one with --data",
                file.display()
            ));
        }
        let (text, name, folder) = read_run_file(Some(file))?;
        let sets: Vec<Override> = self.sets.iter().cloned().map(Override::Set).collect();
        let (config, document) = Document::load(&text, &name, &environment::all(), &sets)
            .map_err(|error| error.render(false))?;
        let (base, is_other) = self.base_folder(&config, &document, &folder)?;
        let base = base.canonicalize().unwrap_or(base);
        let progress = progress::show(quiet);
        let opening = environment::surroundings().opening(&base, config.run.seed, progress);
        let (split, notes) = model_names::open_for(&saved, &config.data, &opening)
            .map_err(|error| format!("error: cannot use the model on {name}: {error}"))?;
        let is_of_run = self.data.is_none() && has_own_data(&document);
        let differences = match is_of_run {
            true => differences(saved.manifest(), &split, &base),
            false => Vec::new(),
        };
        if is_other && !differences.is_empty() {
            return Err(format!(
                "{}\n{}",
                run_base::not_found(&config, &[config.run.base_folder(&folder)]),
                differences.join("\n")
            ));
        }
        let Some(test) = split.test else {
            return Err(format!(
                "error: {name} has no test data\n  help: add `data.test`, or name it with --set data.test=FILE"
            ));
        };
        let (manifest, found) = (saved.manifest(), test.description());
        if (&manifest.input_shape, manifest.classes) != (&found.shape, found.classes) {
            return Err(format!(
                "error: cannot use the model on {name}: the model was trained on samples of shape {:?} with {} classes or \
                 values, but the test data has shape {:?} with {}\n  help: name the run file of suitable data with --data",
                manifest.input_shape, manifest.classes, found.shape, found.classes
            ));
        }
        Ok(ModelData {
            saved,
            config,
            test,
            notes,
            differences,
        })
    }

    /// Returns the folder that relative paths of a run file start from, and whether it is the current folder in place of that of the
    /// run, where the data is not: results that were copied from another host. `folder` is that of the file.
    fn base_folder(
        &self,
        config: &RunConfig,
        document: &Document,
        folder: &Path,
    ) -> Result<(PathBuf, bool), String> {
        if let Some(named) = run_base::named(config, document) {
            return Ok((named, false));
        }
        let base = config.run.base_folder(folder);
        if self.data.is_some() {
            return Ok((base, false));
        }
        let here = PathBuf::from(".");
        match config.run.base {
            Some(_) if !run_base::has_data(config, &base) && run_base::has_data(config, &here) => {
                Ok((here, true))
            }
            Some(_) => Ok((run_base::find(config, &[base])?, false)),
            // Earlier releases did not save where paths start, and used the current folder.
            None => Ok((run_base::find(config, &[here])?, false)),
        }
    }

    /// Adds these arguments to the command line of a process that this command starts.
    pub(crate) fn pass_to(&self, command: &mut Command) {
        if let Some(data) = &self.data {
            command.arg("--data").arg(data);
        }
        for set in &self.sets {
            command.arg("--set").arg(set);
        }
        command.arg("--").arg(&self.model);
    }
}

/// Returns whether the data is that of the run file, not changed by arguments or the environment.
fn has_own_data(document: &Document) -> bool {
    let mut origins = document.origins();
    !origins.any(|(path, _)| path.starts_with("data.") && is_override(document, path))
}

/// Compares data with that of the run that trained a model.
fn differences(manifest: &ModelManifest, split: &Split, base: &Path) -> Vec<String> {
    let evaluation = manifest.evaluation.as_ref();
    let of_test = evaluation.and_then(|one| Some((one.data.as_deref()?, Some(one.samples))));
    let of_train = manifest
        .setting("data.identity")
        .map(|identity| (identity, None));
    let sets = [
        ("training", of_train, Some(&split.train)),
        ("test", of_test, split.test.as_ref()),
    ];
    let differs = sets.into_iter().filter_map(|(what, of_run, found)| {
        let ((identity, samples), found) = (of_run?, found?);
        let other = &found.description().identity;
        let samples = samples.map_or_else(String::new, |samples| format!("{samples} samples, "));
        (identity != other).then(|| {
            format!(
                "warning: the {what} data in {} differs from that of the run\n  of the run: {samples}{identity}\n  found: {} samples, \
                 {other}",
                base.display(),
                found.len()
            )
        })
    });
    differs.collect()
}
