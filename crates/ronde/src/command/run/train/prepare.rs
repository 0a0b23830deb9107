//! Checks a run completely before anything is started: run file, data, plan, memory, disk and output folder.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use ronde::comm::FlightRecord;
use ronde::engine::{ModelConfig, ModelSize, Recomputation};
use ronde::output_folder::OutputFolder;
use ronde::results_address::stored_results;
use ronde_core::WorldSize;
use ronde_core::layout::StateLayout;
use ronde_data::{DataEvent, Dataset, InModelOrder, ReadLimit, Split, Targets};
use ronde_tracking::render::{bytes, count};
use ronde_tracking::{Verbosity, is_running};
use ronde_train::config::{
    DEFAULT_RUN_FILE, Document, Override, ParallelSection, RecomputedLayers, ValueOrigin, check,
};
use ronde_train::flight_records::FlightRecordWriter;
use ronde_train::initial_names::in_order_of_initial;
use ronde_train::initial_weights::InitialWeightFile;
use ronde_train::recording::RecordingRequest;
use ronde_train::results::StoredResults;
use ronde_train::{
    Extension, ModelParts, Plan, PredictedStages, RunConfig, TrainError, WorkerTask,
    check_planned_batch_norms, check_planned_fragments, text_path,
};

use super::TrainArguments;
use crate::command::console::{console, info};
use crate::command::data::progress;
use crate::command::data::progress::Findings;
use crate::command::run::capacity::{
    check_disk, check_memory, choose_recomputation_here, memory_per_worker,
};
use crate::command::run::check as check_command;
use crate::command::run::resume;
use crate::command::run::resume::{ResumeSource, is_override};
use crate::command::run::run_base;
use crate::command::run::run_position::RunPosition;
use crate::command::run::start_error::StartError;

/// Maximum size of a run file in bytes; larger files are not read.
const RUN_FILE_BYTES_MAX: u64 = 1 << 20;
/// Name of the resolved run file in a run's folder.
const RUN_FILE: &str = "run.toml";
/// Maximum number of numbered output folders of the embedded example.
const NUMBERED_FOLDERS_MAX: u32 = 10_000;

/// A run that is ready to start.
pub(super) struct PreparedRun {
    pub(super) config: RunConfig,
    pub(super) world_size: WorldSize,
    pub(super) output: Arc<OutputFolder>,
    pub(super) task: String,
    pub(super) notices: Vec<String>,
    pub(super) position: RunPosition,
    /// Whether the run resumes from a checkpoint.
    pub(super) resumes: bool,
    /// Where the results are sent while the run is under way.
    pub(super) results: Option<StoredResults>,
}

/// A run whose run file, data and memory have been checked. Nothing has been written.
pub(crate) struct PlannedRun {
    config: RunConfig,
    world_size: WorldSize,
    plan: Plan,
    /// The division among workers that the run file and the arguments specify, also for forecasts.
    written_parallel: ParallelSection,
    size: ModelSize,
    /// Folder that relative paths start from.
    base: PathBuf,
    split: Split,
    document: Document,
    /// Name of the run file, for messages.
    name: String,
    /// Whether the embedded example runs in its default output folder.
    is_example: bool,
    resumes: bool,
    /// The layers whose activations are computed again.
    recomputed: RecomputedLayers,
    /// What was chosen because of the memory of this host.
    memory_note: Option<String>,
    /// How classes and columns correspond to those of the model from which the run starts.
    name_notes: Vec<String>,
    /// What was found in the data and not printed yet.
    findings: Findings,
}

/// A function that checks the features and the targets of a sample.
pub(crate) type SampleCheck = Box<dyn Fn(&[f32], &[u32]) -> Result<(), String> + Send>;

/// The arguments that determine a run.
#[derive(Default)]
pub(crate) struct PlanRequest<'a> {
    /// Run file; `None`: the embedded example, or the run file of the resumed run.
    pub(crate) file: Option<&'a Path>,
    pub(crate) overrides: Vec<Override>,
    /// The value of `--resume`.
    pub(crate) resume: Option<&'a Option<String>>,
    /// Whether the progress of opening the data is hidden.
    pub(crate) json: bool,
    pub(crate) overwrite: bool,
    /// Whether the run is planned for other machines: by one worker, whether it fits here or not.
    pub(crate) for_forecast: bool,
    /// How much of the data is read; absent for all.
    pub(crate) limit: Option<Arc<ReadLimit>>,
    /// The value of `--init-from`, which is also one of the overrides.
    pub(crate) init_from: Option<&'a Path>,
}

impl<'a> PlanRequest<'a> {
    pub(super) fn of(arguments: &'a TrainArguments) -> Self {
        Self {
            file: arguments.file.as_deref(),
            overrides: overrides(arguments),
            resume: arguments.resume.as_ref(),
            json: arguments.json,
            overwrite: arguments.overwrite,
            for_forecast: false,
            limit: None,
            init_from: arguments.init_from.as_deref(),
        }
    }

    /// Returns whether a run that does not resume another one is the embedded example, in its default output folder.
    fn is_example(&self, document: &Document) -> bool {
        self.file.is_none()
            && !self.overwrite
            && !is_override(document, "run.output")
            && !is_override(document, "run.name")
    }
}

/// Reads the run file and the data and plans the run. The error is a complete message.
pub(crate) fn plan(arguments: &PlanRequest<'_>) -> Result<PlannedRun, StartError> {
    let colour = console().colour;
    if let Some(init) = arguments.init_from {
        text_path(init).map_err(|error| format!("error: {error}"))?;
    }
    let overrides = &arguments.overrides;
    let from = ResumeSource::find(arguments.resume, arguments.file, overrides)?;
    let (text, name, base) = run_file(arguments.file, from.as_ref())?;
    let (mut config, document) =
        Document::load(&text, &name, &ronde::environment::all(), overrides)
            .map_err(|error| error.render(colour))?;
    if let Some(resumed) = &from {
        resumed.check_output(&config, is_override(&document, "run.output"))?;
        resumed.redirect(&mut config);
    }
    let written_parallel = config.parallel.clone();
    if arguments.for_forecast {
        config.workers.count = 1;
        config.parallel = ParallelSection::default();
    }
    let base = base_folder(&config, &document, from.as_ref(), base)?;
    if let Some(error) = document.refuse(check::files(&config.data, &base, &|path| {
        // Any other error is reported when the file is opened.
        path.try_exists().unwrap_or(true)
    })) {
        return Err(error.render(colour).into());
    }
    let failed = |error: TrainError| format!("error: {error}");
    // The same path as in the workers, so that they find the indexes built here.
    let base = base.canonicalize().unwrap_or(base);
    check_paths(&config, &base).map_err(failed)?;
    let (progress, findings) = progress::collect(arguments.json);
    let (split, name_notes) = open_in_model_order(&mut config, &base, arguments, &progress)?;
    let world_size = WorldSize::new(config.workers.count)
        .ok_or_else(|| "error: invalid `workers.count`: expected at least 1 worker".to_owned())?;
    let mut plan = Plan::resolve(&config, world_size, &*split.train).map_err(failed)?;
    plan.check_workers(world_size).map_err(failed)?;
    plan.bind_evaluations(split.test.as_deref())
        .map_err(failed)?;
    let model = &config.model.config;
    if let Some(error) = document.refuse(check::samples(model, &*split.train)) {
        return Err(error.render(colour).into());
    }
    let size = bind_outline(&mut plan, &base, &*split.train).map_err(failed)?;
    let memory_note = match arguments.for_forecast {
        true => None,
        false => fit_in_memory(&mut plan, &size, &*split.train, world_size).map_err(failed)?,
    };
    let is_example = from.is_none() && arguments.is_example(&document);
    Ok(PlannedRun {
        recomputed: plan.config.train.recompute_activations.clone(),
        config,
        world_size,
        plan,
        written_parallel,
        size,
        base,
        split,
        document,
        name,
        is_example,
        resumes: from.is_some(),
        memory_note,
        name_notes,
        findings,
    })
}

/// Opens the data of a run. If the run starts from a model, classes and columns get the order that they have there. Returns the data, and
/// notes about that order.
fn open_in_model_order(
    config: &mut RunConfig,
    base: &Path,
    arguments: &PlanRequest<'_>,
    progress: &Arc<dyn Fn(&DataEvent) + Send + Sync>,
) -> Result<(Split, Vec<String>), StartError> {
    let split = open_data(config, base, arguments, progress)?;
    let ordered = in_order_of_initial(config, base, split.train.description());
    let ordered = ordered.map_err(|error| format!("error: {error}"))?;
    let InModelOrder {
        config: data,
        notes,
    } = ordered.unwrap_or_default();
    let Some(data) = data else {
        return Ok((split, notes));
    };
    config.data = data;
    Ok((open_data(config, base, arguments, progress)?, notes))
}

/// Chooses the layers whose activations are computed again, so that the run fits in the memory of this host, and describes the choice.
fn fit_in_memory(
    plan: &mut Plan,
    size: &ModelSize,
    train: &dyn Dataset,
    world_size: WorldSize,
) -> Result<Option<String>, TrainError> {
    let note = choose_recomputation_here(plan, size, train)?;
    check_memory(plan, size, train, world_size)?;
    Ok(note)
}

/// Checks that the folders of a run are text, as its tasks and files need them.
fn check_paths(config: &RunConfig, base: &Path) -> Result<(), TrainError> {
    let output = config.run.output_folder();
    let output = std::path::absolute(&output).unwrap_or(output);
    text_path(base)?;
    text_path(&output)?;
    Ok(())
}

/// Checks everything in a plan that names layers or tensors against the model, and returns the size of the model. Adds the hash of the
/// initial weights to the plan. No weights are allocated.
fn bind_outline(
    plan: &mut Plan,
    base: &Path,
    train: &dyn Dataset,
) -> Result<ModelSize, TrainError> {
    let description = train.description();
    let (shape, classes) = (&*description.shape, description.classes);
    let model = &plan.config.model.config;
    let size = model.size(shape, classes).map_err(TrainError::Model)?;
    let layout = outline_layout(model, (shape, classes))?;
    plan.check_groups(&layout)?;
    bind_initial_weights(plan, base, &layout)?;
    if plan.config.parallel.divides_model() {
        ModelParts::memory(plan, train)?;
    }
    PredictedStages::planned(plan, train)?;
    check_planned_fragments(plan, train)?;
    check_planned_batch_norms(plan, train)?;
    if matches!(
        plan.config.train.recompute_activations.layers(),
        Recomputation::Layers(_)
    ) {
        // Names that no layer has are refused.
        plan.chain(train)?;
    }
    Ok(size)
}

/// Checks the file of `model.init`, if there is one, and adds its hash to the plan.
fn bind_initial_weights(
    plan: &mut Plan,
    base: &Path,
    layout: &StateLayout,
) -> Result<(), TrainError> {
    let section = &plan.config.model;
    let Some(file) = InitialWeightFile::of(&section.start, base, Some(&section.config)) else {
        return Ok(());
    };
    let weights = file.read(layout)?;
    plan.bind_initial_weights(weights.blake3());
    Ok(())
}

/// Returns the tensors of a model for samples of a shape and a number of classes. No weights are allocated.
fn outline_layout(
    model: &ModelConfig,
    (shape, classes): (&[usize], u32),
) -> Result<StateLayout, TrainError> {
    let layers = model.outline(shape, classes).map_err(TrainError::Model)?;
    let tensors = layers
        .iter()
        .flat_map(|layer| layer.layout().tensors.clone());
    Ok(StateLayout {
        tensors: tensors.collect(),
    })
}

/// Returns the folder that relative paths of a run start from. `base` is the folder of its run file, or the one that its checkpoint
/// names. That of a run whose folder is known is found from there, because both may have been moved together.
fn base_folder(
    config: &RunConfig,
    document: &Document,
    from: Option<&ResumeSource>,
    base: PathBuf,
) -> Result<PathBuf, String> {
    if let Some(named) = run_base::named(config, document) {
        return Ok(named);
    }
    let Some(from) = from.filter(|from| from.newest.is_some()) else {
        return Ok(config.run.base_folder(&base));
    };
    let of_run = config.run.base.is_some().then_some(from.output()).flatten();
    let mut candidates: Vec<PathBuf> = of_run
        .map(|output| config.run.base_folder(output))
        .into_iter()
        .collect();
    candidates.push(base);
    candidates.dedup();
    run_base::find(config, &candidates)
}

/// Opens the data of a run, or the part of it that a limit allows.
fn open_data(
    config: &RunConfig,
    base: &Path,
    arguments: &PlanRequest<'_>,
    progress: &Arc<dyn Fn(&DataEvent) + Send + Sync>,
) -> Result<Split, String> {
    let surroundings = ronde::environment::surroundings();
    let mut opening = surroundings.opening(base, config.run.seed, Arc::clone(progress));
    opening.limit = arguments.limit.clone();
    let data = config.data.clone();
    let open = move || ronde_data::open(&data, &opening);
    let opened = match &arguments.limit {
        None => open(),
        Some(limit) => check_command::within(limit.left(), open).ok_or_else(|| {
            "error: cannot check the data: it was not opened in the time for it; nothing of it was read\n  help: \
             `ronde train` waits longer; see data.retry_s for files on other machines"
                .to_owned()
        })?,
    };
    opened.map_err(|error| format!("error: {}", TrainError::from(error)))
}

impl PlannedRun {
    /// Returns the steps, epochs and parameters, for `ronde check`.
    pub(crate) fn summary(&self) -> String {
        let description = self.split.train.description();
        let about = description.opened.map_or("", |_| "about ");
        format!(
            "{about}{} steps in {} epochs, {} parameters",
            count(self.plan.steps),
            count(self.plan.epochs),
            count(self.size.parameters),
        )
    }

    /// Returns the name of the run file.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the data.
    pub(crate) fn split(&self) -> &Split {
        &self.split
    }

    /// Returns a function that checks the features and the values of a sample as the model and the loss do in a step.
    pub(crate) fn sample_check(&self, dataset: &dyn Dataset) -> SampleCheck {
        let model = self.config.model.config.clone();
        let has_values = dataset.description().targets == Targets::Values;
        let loss =
            (model.uses_targets() && has_values).then(|| Arc::clone(&self.plan.objective.loss));
        Box::new(move |features: &[f32], targets: &[u32]| {
            let checked = model.check_features(features).and_then(|()| match &loss {
                Some(loss) => loss
                    .loss_and_gradient_in_place(&mut vec![0.0; targets.len()], targets, 1)
                    .map(|_| ()),
                None => Ok(()),
            });
            checked.map_err(|error| error.to_string())
        })
    }

    /// Returns a note if the output folder has results, so that the run would not start in it.
    pub(crate) fn output_note(&self) -> Option<String> {
        let folder = self.config.run.output_folder();
        let is_taken = !self.is_example && OutputFolder::has_results(&folder);
        is_taken.then(|| {
            format!(
                "note: {} has the results of a finished run: `ronde train` needs `--overwrite`, or another name: --set \
                 run.name=NAME",
                folder.display()
            )
        })
    }

    /// Returns the notices about the run file and its names, rendered; empty if there are none.
    pub(crate) fn run_file_notices(&self) -> String {
        let mut notices = self.document.render_notices(console().colour);
        for note in &self.name_notes {
            let end = if notices.is_empty() { "" } else { "\n" };
            let _ = write!(notices, "{end}note: {note}");
        }
        notices
    }

    /// Returns the division among workers that the run file and the arguments specify.
    pub(crate) fn written_parallel(&self) -> &ParallelSection {
        &self.written_parallel
    }

    /// Returns the plan, the size of the model, the data and the name of the run file, for forecasts.
    pub(crate) fn into_parts(self) -> (Plan, ModelSize, Split, String) {
        (self.plan, self.size, self.split, self.name)
    }

    /// Returns the plan as text, for `--dry-run`.
    pub(super) fn describe(&self) -> String {
        let (config, plan) = (&self.config, &self.plan);
        let memory = memory_per_worker(plan, &self.size, &*self.split.train);
        let folder = config.run.output_folder();
        let state = match OutputFolder::has_results(&folder) {
            true if self.is_example => "in use; a numbered folder would be created",
            true if self.resumes => "exists",
            true => "has a finished run; `--overwrite` would replace it",
            false if folder.join("checkpoints").is_dir() => "has checkpoints",
            false => "would be created",
        };
        let mut text = format!("dry run of {}, nothing is trained", self.name);
        for (name, value) in [
            ("run", config.run.name.clone()),
            (
                "model",
                format!("{} parameters", count(self.size.parameters)),
            ),
            (
                "data",
                format!(
                    "{} samples to train on, {} to evaluate on",
                    count(self.split.train.len()),
                    count(self.split.test.as_ref().map_or(0, |test| test.len()))
                ),
            ),
            (
                "steps",
                format!(
                    "{} in {} epochs, {} samples per step",
                    count(plan.steps),
                    count(plan.steps.div_ceil(plan.batches.steps_per_epoch().max(1))),
                    count(config.train.global_batch_size * config.sync.facts().round_steps)
                ),
            ),
            (
                "workers",
                format!(
                    "{} processes{} for {} {}",
                    self.world_size.get(),
                    match config.parallel.servers_among(self.world_size.get()) {
                        0 => String::new(),
                        1 => ", of which 1 serves,".to_owned(),
                        servers => format!(", of which {servers} serve,"),
                    },
                    config.divided_parts(),
                    config.parts_limit().1
                ),
            ),
            ("memory", format!("about {} per worker", bytes(memory))),
            ("output", format!("{} ({state})", folder.display())),
            (
                "sent to",
                config
                    .run
                    .output_address()
                    .map_or_else(String::new, |to| to.to_string()),
            ),
        ] {
            if !value.is_empty() {
                let _ = write!(text, "\n  {name:<9}{value}");
            }
        }
        text
    }

    /// Locks the output folder: for the embedded example, the first one that no run has used. Another run may begin in it at the
    /// same time.
    fn lock_folder(&mut self) -> Result<OutputFolder, String> {
        let first = self.config.run.output_folder();
        let mut attempts = 0..NUMBERED_FOLDERS_MAX;
        loop {
            if self.is_example {
                self.config.run.output = Some(free_folder(&first));
            }
            let folder = self.config.run.output_folder();
            let locked = check_disk(&folder, self.size.parameters)
                .and_then(|()| OutputFolder::lock(&folder));
            let is_taken = self.is_example && locked.is_err() && is_running(&folder);
            if !is_taken || attempts.next().is_none() {
                return locked;
            }
        }
    }

    /// Locks the output folder and checks the checkpoints in it.
    pub(super) fn claim_folder(
        mut self,
        arguments: &TrainArguments,
    ) -> Result<PreparedRun, StartError> {
        let failed = |message: String| StartError::Invalid(format!("error: {message}"));
        let output = self.lock_folder().map_err(failed)?;
        let folder = self.config.run.output_folder();
        if arguments.overwrite {
            output.replace_results().map_err(failed)?;
        } else if !self.resumes && OutputFolder::has_results(output.path()) {
            return Err(failed(format!(
                "cannot start the run: {} has the results of a finished run\n  \
                 help: replace them with `--overwrite`, or choose another name or folder: \
                 --set run.name=NAME, --set run.output=FOLDER",
                folder.display()
            )));
        }
        let results = stored_results(
            &self.config,
            output.path(),
            self.resumes,
            arguments.overwrite,
        );
        let results = results.map_err(failed)?;
        FlightRecord::remove_all(&output.path().join(FlightRecordWriter::FOLDER))
            .map_err(|error| failed(format!("cannot remove old flight records: {error}")))?;
        let requested = match arguments.trace {
            true => RecordingRequest::submit(output.path(), None).map(|_| ()),
            false if self.resumes => RecordingRequest::withdraw(output.path()).map(|_| ()),
            false => RecordingRequest::remove(output.path()),
        };
        requested.map_err(|error| failed(format!("cannot prepare the recording: {error}")))?;
        let position = resume::check(
            &mut self.config,
            &mut self.plan,
            &self.base,
            output.path(),
            &match (self.resumes, arguments.overwrite) {
                (true, _) => resume::Start::Resume(extension(arguments)?),
                (_, true) => resume::Start::Overwrite,
                _ => resume::Start::New,
            },
        )?;
        self.config.run.set_base(&self.base, output.path());
        self.write_run_file(output.path()).map_err(failed)?;
        let task = self.task(output.path()).map_err(failed)?;
        if !arguments.json {
            self.show(arguments.file.is_none() && !self.resumes);
        }
        Ok(PreparedRun {
            notices: self.notices(),
            config: self.config,
            world_size: self.world_size,
            output: Arc::new(output),
            task,
            position,
            resumes: self.resumes,
            results,
        })
    }

    /// Returns the task of the workers.
    fn task(&self, output: &Path) -> Result<String, String> {
        // The run file in the output folder leaves open what is chosen again on another host.
        let mut config = self.config.clone();
        config.train.recompute_activations = self.recomputed.clone();
        let task = WorkerTask::new(&config, self.base.clone(), output.to_owned());
        let mut task = task.map_err(|error| error.to_string())?;
        task.resumes = self.resumes;
        task.lineage = self.plan.identity.lineage();
        task.encode().map_err(|error| error.to_string())
    }

    /// Writes the run file with all values resolved, so that displays show it while the run is under way.
    fn write_run_file(&self, folder: &Path) -> Result<(), String> {
        let text = self.config.to_toml().map_err(|error| error.render(false))?;
        ronde_saved_model::publish(&folder.join(RUN_FILE), text.as_bytes()).map_err(|error| {
            format!("{error}\n  help: choose another folder: --set run.output=FOLDER")
        })
    }

    /// Prints the run file's name and the overridden values.
    fn show(&self, is_embedded: bool) {
        match is_embedded {
            true => info!(
                "no run file: training the embedded example in {} (`ronde init` writes it to a file)",
                self.config.run.output_folder().display()
            ),
            false => info!("run file: {}", self.name),
        }
        for (path, origin) in self.document.origins() {
            match origin {
                ValueOrigin::Set { text } => info!("override: {text}"),
                ValueOrigin::Environment { name } => info!("override: {path}, from {name}"),
                _ => {}
            }
        }
    }

    /// Returns the notices about the run.
    fn notices(&self) -> Vec<String> {
        let console = console();
        let mut notices = Vec::new();
        if console.verbosity == Verbosity::Verbose {
            let library = self.config.train.library();
            notices.push(format!(
                "engine: {}{}, {} per worker, {}",
                ronde_engine::engine_name(),
                library.map_or_else(String::new, |library| format!(" with {library}")),
                match self.config.workers.threads {
                    1 => "1 thread".to_owned(),
                    threads => format!("{threads} threads"),
                },
                ronde_engine::cpu_features()
            ));
        }
        notices.extend(self.config.train.learning_rate_rule());
        notices.extend(self.config.train.precision_note());
        notices.extend(self.memory_note.clone());
        notices.extend(self.name_notes.iter().cloned());
        let findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        notices.extend_from_slice(&findings);
        drop(findings);
        let sent = self.config.run.output_address();
        notices.extend(sent.map(|to| format!("results are sent to {to}")));
        notices.extend(encryption_notices(&self.config, &self.base));
        if !self.document.notices().is_empty() {
            notices.push(self.document.render_notices(console.colour));
        }
        notices
    }
}

/// Returns the changes that `--allow-change` names.
fn extension(arguments: &TrainArguments) -> Result<Extension, StartError> {
    let extension = Extension {
        allowed: arguments.allow_change.clone(),
    };
    extension
        .check_names()
        .map_err(|error| StartError::Invalid(format!("error: {error}")))?;
    Ok(extension)
}

/// Returns warnings about the encryption keys of a run, and about results that are not encrypted.
fn encryption_notices(config: &RunConfig, base: &Path) -> Vec<String> {
    let checkpoints = config.checkpoint.key_source().ok().flatten();
    let cache = config.data.cache_key_source();
    let mut notices: Vec<String> = checkpoints
        .iter()
        .chain(&cache)
        .filter_map(|key| key.exposure(base))
        .map(|problem| format!("warning: {problem}"))
        .collect();
    notices.dedup();
    if checkpoints.is_some() {
        notices.push("checkpoints are encrypted; the exported model is not".to_owned());
    }
    notices
}

/// Returns the first of `folder`, `folder-2`, `folder-3`, ... that no run has used.
pub(super) fn free_folder(folder: &Path) -> PathBuf {
    let numbered = |number: u32| match number {
        1 => folder.to_owned(),
        number => {
            let mut name = folder.as_os_str().to_owned();
            name.push(format!("-{number}"));
            PathBuf::from(name)
        }
    };
    let is_free = |folder: &PathBuf| {
        let is_empty =
            std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
        is_empty && !is_running(folder)
    };
    let mut folders = (1..=NUMBERED_FOLDERS_MAX).map(numbered);
    folders.find(is_free).unwrap_or_else(|| folder.to_owned())
}

/// Returns the text, name and folder of the run file of a new or resumed run.
fn run_file(
    file: Option<&Path>,
    from: Option<&ResumeSource>,
) -> Result<(String, String, PathBuf), String> {
    match from {
        Some(ResumeSource {
            file: Some(file), ..
        }) => read_run_file(Some(file)),
        Some(resumed) if file.is_none() && resumed.newest.is_some() => resumed.run_file(),
        _ => read_run_file(file),
    }
}

/// Reads a run file, or the embedded example, and returns its text, name and folder.
pub(crate) fn read_run_file(file: Option<&Path>) -> Result<(String, String, PathBuf), String> {
    let Some(path) = file else {
        return Ok((
            DEFAULT_RUN_FILE.to_owned(),
            "the embedded example".to_owned(),
            PathBuf::from("."),
        ));
    };
    let text = read_regular_file(path).map_err(|error| {
        let shown = path.display();
        let hint = match error.kind() {
            ErrorKind::NotFound => format!("write one with `ronde init {shown}`"),
            ErrorKind::PermissionDenied => "give this user the right to read it".to_owned(),
            _ => "a run file is a TOML text; write one with `ronde init`".to_owned(),
        };
        format!("error: cannot read run file {shown}: {error}\n  help: {hint}")
    })?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).to_owned();
    Ok((text, path.display().to_string(), folder))
}

/// Reads a text from a regular file of limited size.
fn read_regular_file(path: &Path) -> std::io::Result<String> {
    let bytes = ronde_store::read_regular(path, RUN_FILE_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is not valid UTF-8"))
}

pub(super) fn overrides(arguments: &TrainArguments) -> Vec<Override> {
    let sets = arguments
        .sets
        .iter()
        .map(|text| Override::Set(text.clone()));
    let workers = arguments.workers.map(|workers| Override::Flag {
        name: "--workers".to_owned(),
        path: "workers.count".to_owned(),
        value: workers.to_string(),
    });
    let init = arguments.init_from.as_ref().map(|path| {
        // Relative to the current folder, while paths of a run file start at that file.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Override::Flag {
            name: "--init-from".to_owned(),
            path: "model.init".to_owned(),
            value: path.display().to_string(),
        }
    });
    sets.chain(workers).chain(init).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_limited_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let large = folder.path().join("large.toml");
        std::fs::File::create(&large)
            .unwrap()
            .set_len(RUN_FILE_BYTES_MAX + 1)
            .unwrap();
        for (path, problem) in [
            (Path::new("/dev/zero"), "not a regular file"),
            (folder.path(), "not a regular file"),
            (&large, "the limit is 1048576 bytes"),
            (&folder.path().join("gone.toml"), "help: write one with"),
        ] {
            let error = read_run_file(Some(path)).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn the_example_gets_an_unused_folder() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("digits");
        assert_eq!(free_folder(&folder), folder);
        for number in 2..4 {
            let used = free_folder(&folder);
            std::fs::create_dir(&used).unwrap();
            std::fs::write(used.join("events.jsonl"), "").unwrap();
            let next = parent.path().join(format!("digits-{number}"));
            assert_eq!(free_folder(&folder), next);
        }
    }
}
