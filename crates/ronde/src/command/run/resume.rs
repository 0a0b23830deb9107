//! Resolves `--resume`, and checks the checkpoint folder before a run starts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde::environment;
use ronde_checkpoint::{CheckpointEntry, CheckpointStatus, list};
use ronde_core::{PlanIdentity, Step};
use ronde_saved_model::{MANIFEST_FILE, ModelManifest, WEIGHTS_FILE};
use ronde_store::{Address, Store};
use ronde_submit::shell_word;
use ronde_train::checkpoints::{self, NewestCheckpoint};
use ronde_train::config::{CheckpointSection, DEFAULT_RUN_FILE, Document, Override, ValueOrigin};
use ronde_train::{Extension, Plan, RunConfig, TrainError, text_path};

use crate::command::job::find;
use crate::command::run::run_folder::EVENT_FILE;
use crate::command::run::run_position::RunPosition;
use crate::command::run::start_error::StartError;

/// Name of the checkpoint folder in a run's folder.
const FOLDER: &str = "checkpoints";

/// The maximum number of unusable checkpoints in a message.
const PROBLEMS_MAX: usize = 4;

/// The run that `--resume` refers to.
pub(crate) struct ResumeSource {
    /// Path of the run file, if the argument was one.
    pub(crate) file: Option<PathBuf>,
    /// The run's folder, if known.
    output: Option<PathBuf>,
    /// Address of the checkpoints; `None` for that of the run file.
    to: Option<String>,
    pub(crate) newest: Option<NewestCheckpoint>,
}

impl ResumeSource {
    /// Resolves the argument, or returns `None` without one.
    pub(crate) fn find(
        argument: Option<&Option<String>>,
        file: Option<&Path>,
        overrides: &[Override],
    ) -> Result<Option<Self>, String> {
        let mut resumed = match argument {
            None => return Ok(None),
            Some(None) => match newest_run(file, overrides) {
                Some(run) => Self::of(text_path(&run).map_err(|error| format!("error: {error}"))?)?,
                None => Self::of_file(file.map(Path::to_owned)),
            },
            Some(Some(value)) => Self::of(value)?,
        };
        if let Some(to) = &resumed.to
            && file.is_none()
        {
            let section = section(to, overrides)?;
            let store = open(&section, Path::new("."), Path::new("."))?;
            resumed.newest = newest(&store)?;
            if resumed.newest.is_none() {
                let problem = unusable(&store, to);
                resumed.look_inside(overrides)?;
                if resumed.newest.is_none() {
                    return Err(problem);
                }
            }
        }
        Ok(Some(resumed))
    }

    /// Looks for the checkpoints below the address of a run, if the argument is one.
    fn look_inside(&mut self, overrides: &[Override]) -> Result<(), String> {
        let address = self.to.as_deref().filter(|to| to.contains("://"));
        let Some(address) = address else {
            return Ok(());
        };
        let inside = inside(address);
        let section = section(&inside, overrides)?;
        let store = open(&section, Path::new("."), Path::new("."))?;
        self.newest = newest(&store)?;
        self.to = Some(inside);
        Ok(())
    }

    fn of_file(file: Option<PathBuf>) -> Self {
        Self {
            file,
            output: None,
            to: None,
            newest: None,
        }
    }

    fn of(value: &str) -> Result<Self, String> {
        let path = Path::new(value);
        if value.contains("://") {
            return Ok(Self {
                to: Some(value.to_owned()),
                ..Self::of_file(None)
            });
        }
        if path.is_file() {
            return Ok(Self::of_file(Some(path.to_owned())));
        }
        if !path.is_dir() {
            return Err(format!(
                "error: cannot resume: no such folder: {value}\n  \
                 help: pass the folder of a run, such as runs/digits, or the folder or address of its checkpoints"
            ));
        }
        let inside = path.join(FOLDER);
        let (output, to) = if inside.is_dir() {
            (Some(path.to_owned()), inside)
        } else {
            let is_default = path.file_name().is_some_and(|name| name == FOLDER);
            let parent = path.parent().filter(|_| is_default);
            let parent = parent.map(|parent| match parent.as_os_str().is_empty() {
                true => Path::new("."),
                false => parent,
            });
            // `checkpoint.to` may have this name, too, in a folder that is not that of a run.
            let run = parent.filter(|parent| parent.join(EVENT_FILE).is_file());
            (run.map(Path::to_owned), path.to_owned())
        };
        Ok(Self {
            file: None,
            output,
            to: Some(absolute(&to)?),
            newest: None,
        })
    }

    /// Returns the run's folder, if known.
    pub(crate) fn output(&self) -> Option<&Path> {
        self.output.as_deref()
    }

    /// Returns the run file stored in the checkpoint: its text, name and base folder.
    pub(crate) fn run_file(&self) -> Result<(String, String, PathBuf), String> {
        let to = self.to.clone().unwrap_or_default();
        match &self.newest {
            Some(newest) if !newest.run.is_empty() => Ok((
                newest.run.clone(),
                format!("run file in {to}"),
                newest.base.clone(),
            )),
            _ => Err(format!(
                "error: cannot resume: the checkpoints in {to} were saved by another program\n  \
                 help: start that program again; it resumes with `Trainer::resume`"
            )),
        }
    }

    /// Refuses another output folder than that of the run, if the arguments name one.
    pub(crate) fn check_output(&self, config: &RunConfig, is_named: bool) -> Result<(), String> {
        let Some(output) = self.output.as_deref().filter(|_| is_named) else {
            return Ok(());
        };
        let named = config.run.output_folder();
        let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if whole(output) == whole(&named) {
            return Ok(());
        }
        let (output, named) = (output.display(), named.display());
        Err(format!(
            "error: cannot resume the run of {output} in {named}: a run stays in its folder\n  \
             help: leave out `run.output`, or resume from its checkpoints: --resume {output}/{FOLDER}"
        ))
    }

    /// Sets the output folder and the checkpoint address to those of the run.
    pub(crate) fn redirect(&self, config: &mut RunConfig) {
        if let Some(output) = &self.output {
            config.run.output = Some(output.clone());
        }
        if let Some(to) = &self.to {
            config.checkpoint.to = Some(to.clone());
        }
    }
}

/// Returns the address of the checkpoints of the run at an address.
fn inside(address: &str) -> String {
    format!("{}/{FOLDER}", address.trim_end_matches('/'))
}

/// Opens the checkpoints at an address, or those of the run at this address: all commands take both forms. Returns them with their
/// address.
pub(crate) fn open_stored(
    address: &str,
    overrides: &[Override],
) -> Result<(String, Arc<dyn Store>), String> {
    let here = Path::new(".");
    let open_at = |address: &str| {
        let section = section(address, overrides)?;
        open(&section, here, here)
    };
    let count = |store: &Arc<dyn Store>| list(&**store).map(|all| all.len());
    let store = open_at(address)?;
    // The command that reads the store reports its problems.
    if !address.contains("://") || count(&store).unwrap_or(1) > 0 {
        return Ok((address.to_owned(), store));
    }
    let inside = inside(address);
    let of_run = open_at(&inside)?;
    Ok(match count(&of_run) {
        Ok(1..) => (inside, of_run),
        _ => (address.to_owned(), store),
    })
}

/// Returns the folder of the newest run in `runs` if neither a run file nor an argument names the run.
fn newest_run(file: Option<&Path>, overrides: &[Override]) -> Option<PathBuf> {
    if file.is_some() || names_run(overrides) {
        return None;
    }
    find::newest_run().filter(|run| run.join(FOLDER).is_dir())
}

/// Returns whether arguments or the environment name a run, its folder or its checkpoints.
pub(crate) fn names_run(overrides: &[Override]) -> bool {
    let read = Document::load(
        DEFAULT_RUN_FILE,
        "arguments",
        &environment::all(),
        overrides,
    );
    // A mistake in the arguments is reported when the run file is known.
    read.is_ok_and(|(_, document)| {
        ["run.output", "run.name", "checkpoint.to"].map(|path| is_override(&document, path))
            != [false; 3]
    })
}

/// Returns whether an argument or the environment sets a value.
pub(crate) fn is_override(document: &Document, path: &str) -> bool {
    matches!(
        document.origin(path),
        ValueOrigin::Set { .. } | ValueOrigin::Environment { .. } | ValueOrigin::Flag { .. }
    )
}

/// How a run starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// From step 0; checkpoints of an unfinished run are an error.
    New,
    /// From step 0, also where there are checkpoints of the same plan.
    Overwrite,
    /// From the newest checkpoint, with changed settings if they are allowed.
    Resume(Extension),
}

/// Checks the checkpoints before a run starts: a resumed run needs one of the same plan, and a new run must not
/// overwrite those of another run. Sets an absolute address in `config`.
pub(crate) fn check(
    config: &mut RunConfig,
    plan: &mut Plan,
    base: &Path,
    output: &Path,
    start: &Start,
) -> Result<RunPosition, StartError> {
    let resumes = matches!(start, Start::Resume(_));
    let failed = |error: &dyn std::fmt::Display| format!("error: {error}");
    let mut address = config
        .checkpoint
        .address(output)
        .map_err(|error| failed(&error))?;
    if let Address::Folder(folder) = &mut address {
        *folder = PathBuf::from(absolute(folder)?);
        let own = output.join(FOLDER);
        // The saved run file leaves out the folder of the run, which can be moved, also if another path leads to it.
        if own.is_dir() && own.canonicalize().ok() == folder.canonicalize().ok() {
            *folder = own;
        }
        // A new run creates the folder of the run, and with it this one.
        let is_named = *folder != output.join(FOLDER);
        writable(folder, is_named && !resumes)?;
    }
    let shown = address.to_string();
    let is_default = address == Address::Folder(output.join(FOLDER));
    config.checkpoint.to = (!is_default).then(|| shown.clone());
    let store = open(&config.checkpoint, base, output)?;
    let newest = newest(&store)?;
    let resume = if is_default {
        config.run.output_folder().display().to_string()
    } else {
        shown.clone()
    };
    let position = |step| Ok(RunPosition::new(resume.clone(), step));
    let Some(newest) = newest else {
        return if resumes {
            Err(unusable(&store, &shown).into())
        } else {
            position(None)
        };
    };
    if let Start::Resume(extension) = start {
        if let Some(step) = bind(extension, plan, &newest, &store, &shown)? {
            return position(Some(step));
        }
    } else if let Some(difference) = changes_to(&plan.identity, &newest.identity) {
        return Err(StartError::Invalid(other_plan(
            &shown,
            &newest.name,
            &difference,
        )));
    }
    match (finished(output, &newest), start) {
        (Some(model), Start::Resume(_)) => Err(StartError::Finished(format!(
            "this run is finished: {} steps; its model is {}, blake3 {}",
            model.steps,
            output.join(WEIGHTS_FILE).display(),
            model.blake3
        ))),
        (None, Start::New) if is_default => Err(unfinished(&shown, &resume, newest.step).into()),
        (None, Start::New) => Err(of_any_run(config, &shown, newest.step).into()),
        (None, Start::Resume(_)) => position(Some(newest.step)),
        (_, Start::New | Start::Overwrite) => position(None),
    }
}

/// Returns the message for a new run in the folder of one that is not finished.
fn unfinished(address: &str, resume: &str, step: Step) -> String {
    format!(
        "error: this run is not finished: {address} has a checkpoint at step {step}\n  \
         help: resume with `ronde train --resume {}`; start again with `--overwrite`, or choose \
         another folder: --set run.output=FOLDER",
        shell_word(resume)
    )
}

/// Returns the message for a new run that would save its checkpoints at an address with those of a run, which may be finished: its
/// model is not there.
fn of_any_run(config: &RunConfig, address: &str, step: Step) -> String {
    let sent = config.run.output_address();
    let key = match sent.is_some_and(|output| inside(&output.to_string()) == address) {
        true => "run.output",
        false => "checkpoint.to",
    };
    format!(
        "error: there are checkpoints of a run at {address}, the newest at step {step}\n  \
         help: resume that run with `ronde train --resume {}`; start again with `--overwrite`, or choose \
         another address: --set {key}=ADDRESS",
        shell_word(address)
    )
}

/// Binds a plan with other settings to the checkpoint that it continues from, and returns the step of the checkpoint;
/// `None` if no setting differs. The bytes of the checkpoint are verified, because the lineage contains its step.
fn bind(
    extension: &Extension,
    plan: &mut Plan,
    newest: &NewestCheckpoint,
    store: &Arc<dyn Store>,
    shown: &str,
) -> Result<Option<Step>, String> {
    let mut bind_to = |from: &NewestCheckpoint| {
        let place = format!(
            "checkpoint of step {} of run `{}` in {shown}",
            from.step, from.name
        );
        let bound = extension.bind(plan, from);
        bound.map_err(|error| refused(&error, &place))
    };
    if bind_to(newest)?.is_none() {
        return Ok(None);
    }
    let (intact, skipped) =
        checkpoints::newest_intact(store).map_err(|error| format!("error: {error}"))?;
    let Some(intact) = intact else {
        let problems = skipped.iter();
        let problems = problems.map(|skipped| format!("step {}: {}", skipped.step, skipped.reason));
        return Err(none_usable(&problems.collect::<Vec<_>>(), shown));
    };
    if intact.step != newest.step && bind_to(&intact)?.is_none() {
        return Ok(None);
    }
    Ok(Some(intact.step))
}

/// Returns the message for a checkpoint at `place` from which the run cannot continue.
fn refused(error: &TrainError, place: &str) -> String {
    match error {
        TrainError::Impossible { problem, hint } => {
            format!("error: {problem}\n  where: {place}\n  help: {hint}")
        }
        error => format!("error: {error}"),
    }
}

fn other_plan(address: &str, run: &str, difference: &str) -> String {
    format!(
        "error: {address} has checkpoints of another run, `{run}`: {difference}\n  \
         help: choose another folder: --set run.output=FOLDER or --set checkpoint.to=FOLDER"
    )
}

/// Lists the differences between the plan of a checkpoint and that of a new run, whose model has not been built.
fn changes_to(mine: &PlanIdentity, of_checkpoint: &PlanIdentity) -> Option<String> {
    let mut theirs = of_checkpoint.clone();
    theirs.remove_under("model.tensors");
    mine.changes_since(&theirs)
}

/// Returns the final model of the checkpoint's run, if the run is finished.
fn finished(output: &Path, newest: &NewestCheckpoint) -> Option<ModelManifest> {
    let text = std::fs::read(output.join(MANIFEST_FILE)).ok()?;
    let model: ModelManifest = serde_json::from_slice(&text).ok()?;
    (model.plan == newest.identity.hex()).then_some(model)
}

/// Returns the message for a store without a usable checkpoint: that it is empty, or why none can be used.
fn unusable(store: &Arc<dyn Store>, address: &str) -> String {
    let all = match list(&**store) {
        Ok(all) => all,
        Err(error) => return format!("error: {error}"),
    };
    let problems: Vec<String> = all
        .iter()
        .filter_map(|entry| match &entry.status {
            CheckpointStatus::Complete => {
                Some(format!("step {}: its cursor is damaged", entry.step))
            }
            CheckpointStatus::Damaged(problem)
            | CheckpointStatus::CutOff(problem)
            | CheckpointStatus::OtherVersion(problem)
            | CheckpointStatus::Locked(problem) => Some(format!("step {}: {problem}", entry.step)),
            CheckpointStatus::Unpublished => None,
        })
        .collect();
    if problems.is_empty() {
        return format!(
            "error: cannot resume: no checkpoint in {address}\n  \
             help: list them with `ronde checkpoint ls {}`; without --resume a run starts at step 0",
            shell_word(address)
        );
    }
    let is_of_other_version = |entry: &CheckpointEntry| {
        matches!(
            entry.status,
            CheckpointStatus::OtherVersion(_) | CheckpointStatus::Unpublished
        )
    };
    if all.iter().all(is_of_other_version) {
        // Each problem names the way to continue.
        return format!("error: cannot resume: {}", problems[0]);
    }
    none_usable(&problems, address)
}

/// Returns the message for a store with damaged checkpoints only.
fn none_usable(problems: &[String], address: &str) -> String {
    format!(
        "error: cannot resume: none of the {} checkpoints in {address} can be used\n  {}\n  \
         help: `ronde checkpoint verify {}` lists all damage; restore the files of a checkpoint from a copy, or \
         start a new run in another folder",
        problems.len(),
        problems
            .iter()
            .take(PROBLEMS_MAX)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n  "),
        shell_word(address)
    )
}

/// Returns the checkpoint settings of the arguments and the environment, before the run file is known.
pub(crate) fn section(to: &str, overrides: &[Override]) -> Result<CheckpointSection, String> {
    let of_checkpoints = overrides.iter().filter(|each| match each {
        Override::Set(text) => text.starts_with("checkpoint."),
        Override::Flag { .. } => false,
    });
    let sets: Vec<Override> = of_checkpoints.cloned().collect();
    let (config, _) = Document::load(DEFAULT_RUN_FILE, "arguments", &environment::all(), &sets)
        .map_err(|error| error.render(false))?;
    Ok(CheckpointSection {
        to: Some(to.to_owned()),
        ..config.checkpoint
    })
}

pub(crate) fn open(
    section: &CheckpointSection,
    base: &Path,
    output: &Path,
) -> Result<Arc<dyn Store>, String> {
    let surroundings = environment::surroundings();
    checkpoints::open(section, base, output, &surroundings).map_err(|e| format!("error: {e}"))
}

fn newest(store: &Arc<dyn Store>) -> Result<Option<NewestCheckpoint>, String> {
    checkpoints::newest(store).map_err(|error| format!("error: {error}"))
}

fn absolute(path: &Path) -> Result<String, String> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let text = text_path(&absolute).map_err(|error| format!("error: {error}"))?;
    Ok(text.to_owned())
}

/// Refuses a folder that cannot be written or, if it `creates` one, created, instead of failing at the first checkpoint.
fn writable(folder: &Path, creates: bool) -> Result<(), String> {
    let existing = folder.ancestors().find(|path| path.exists());
    let problem = match existing {
        Some(path) if !path.is_dir() => Some(format!("{} is not a folder", path.display())),
        Some(path) => rustix::fs::access(path, rustix::fs::Access::WRITE_OK)
            .err()
            .map(|error| format!("{}: {error}", path.display())),
        None => None,
    };
    let create = || std::fs::create_dir_all(folder).err();
    let problem = match creates {
        true => problem.or_else(|| create().map(|error| error.to_string())),
        false => problem,
    };
    problem.map_or(Ok(()), |problem| {
        Err(format!(
            "error: cannot write checkpoints to {}: {problem}\n  \
             help: choose another folder: --set checkpoint.to=FOLDER",
            folder.display()
        ))
    })
}
