//! What `--resume` means, and what is looked at in a place of checkpoints before a run starts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde::environment;
use ronde_store::{Address, Store};
use ronde_train::checkpoints::{self, Newest};
use ronde_train::config::{CheckpointSection, DEFAULT_RUN_FILE, Document, Override};
use ronde_train::export::{CONFIG_FILE, ModelManifest};
use ronde_train::{Plan, RunConfig};

use super::last::LastCheckpoint;
use super::train::Refused;

/// Where checkpoints lie in a run's folder.
const FOLDER: &str = "checkpoints";

/// What a run goes on from.
pub(super) struct Resumed {
    /// The run file, when the value was one.
    pub(super) file: Option<PathBuf>,
    /// The run's folder, when it is known.
    output: Option<PathBuf>,
    /// Where the checkpoints are; `None`: where the run file says.
    to: Option<String>,
    pub(super) newest: Option<Newest>,
}

impl Resumed {
    /// What the argument means; `None` without one.
    pub(super) fn find(
        argument: Option<&Option<String>>,
        file: Option<&Path>,
        overrides: &[Override],
    ) -> Result<Option<Self>, String> {
        let mut resumed = match argument {
            None => return Ok(None),
            Some(None) => Self::of_file(file.map(Path::to_owned)),
            Some(Some(value)) => Self::of(value)?,
        };
        if let Some(to) = &resumed.to
            && file.is_none()
        {
            let section = section(to, overrides)?;
            let store = open(&section, Path::new("."), Path::new("."))?;
            resumed.newest = newest(&store)?;
            if resumed.newest.is_none() {
                return Err(none(to));
            }
        }
        Ok(Some(resumed))
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
                "error: there is no {value} to go on from\n  \
                 hint: --resume takes the folder of a run, as in runs/digits, or the folder or address of its checkpoints"
            ));
        }
        let inside = path.join(FOLDER);
        let (output, to) = if inside.is_dir() {
            (Some(path.to_owned()), inside)
        } else {
            let is_default = path.file_name().is_some_and(|name| name == FOLDER);
            let parent = path.parent().filter(|_| is_default);
            (parent.map(Path::to_owned), path.to_owned())
        };
        Ok(Self {
            file: None,
            output,
            to: Some(absolute(&to)),
            newest: None,
        })
    }

    /// The run file that is in the checkpoint: text, name, and where its paths start from.
    pub(super) fn run_file(&self) -> Result<(String, String, PathBuf), String> {
        let to = self.to.clone().unwrap_or_default();
        match &self.newest {
            Some(newest) if !newest.run.is_empty() => Ok((
                newest.run.clone(),
                format!("the run of {to}"),
                newest.base.clone(),
            )),
            _ => Err(format!(
                "error: the checkpoints in {to} were saved by a program of its own\n  \
                 hint: start that program again; `Worker::set_resume` lets it go on"
            )),
        }
    }

    /// Puts results and checkpoints where those of the run are.
    pub(super) fn redirect(&self, config: &mut RunConfig) {
        if let Some(output) = &self.output {
            config.run.output = Some(output.clone());
        }
        if let Some(to) = &self.to {
            config.checkpoint.to = Some(to.clone());
        }
    }
}

/// Looks at the checkpoints before a run starts: a run that goes on needs one of its plan, a new one must
/// not take the place of another one's. Puts an absolute address into `config`.
pub(super) fn check(
    config: &mut RunConfig,
    plan: &Plan,
    base: &Path,
    output: &Path,
    resumes: bool,
) -> Result<LastCheckpoint, Refused> {
    let failed = |error: &dyn std::fmt::Display| format!("error: {error}");
    let mut address = config
        .checkpoint
        .address(output)
        .map_err(|error| failed(&error))?;
    if let Address::Folder(folder) = &mut address {
        *folder = PathBuf::from(absolute(folder));
        writable(folder)?;
    }
    let told = address.to_string();
    let is_default = address == Address::Folder(output.join(FOLDER));
    config.checkpoint.to = (!is_default).then(|| told.clone());
    let store = open(&config.checkpoint, base, output)?;
    let newest = newest(&store)?;
    let resume = if is_default {
        config.run.output_folder().display().to_string()
    } else {
        told.clone()
    };
    let last = |step| Ok(LastCheckpoint::new(resume.clone(), told.clone(), step));
    let Some(newest) = newest else {
        return if resumes {
            Err(none(&told).into())
        } else {
            last(None)
        };
    };
    if let Some(difference) = newest.difference(&plan.identity) {
        return Err(Refused::Because(other_plan(&told, &difference, resumes)));
    }
    match (finished(output, &newest), resumes) {
        (Some(model), true) => Err(Refused::Finished(format!(
            "this run is finished: {} steps; its model is {}, blake3 {}",
            model.steps,
            output.join(ronde_train::export::MODEL_FILE).display(),
            model.blake3
        ))),
        (None, false) => Err(Refused::Because(format!(
            "error: {told} holds a checkpoint of this run, after {} steps, and the run is not finished\n  \
             hint: go on with `ronde train --resume {resume}`; to start anew, remove that folder or \
             choose another one: --set run.output=FOLDER or --set checkpoint.to=FOLDER",
            newest.step
        ))),
        (Some(_), false) => last(None),
        (None, true) => last(Some(newest.step)),
    }
}

fn other_plan(address: &str, difference: &str, resumes: bool) -> String {
    let hint = if resumes {
        "a run goes on with the model, data, seed and settings that it began with"
    } else {
        "choose another place: --set run.output=FOLDER or --set checkpoint.to=FOLDER"
    };
    format!("error: the checkpoints in {address} are of another run: {difference}\n  hint: {hint}")
}

/// The model that the run of a checkpoint has come to, if it has.
fn finished(output: &Path, newest: &Newest) -> Option<ModelManifest> {
    let text = std::fs::read(output.join(CONFIG_FILE)).ok()?;
    let model: ModelManifest = serde_json::from_slice(&text).ok()?;
    (model.plan == newest.identity.hex()).then_some(model)
}

fn none(address: &str) -> String {
    format!(
        "error: there is no checkpoint to go on from in {address}\n  \
         hint: `ronde checkpoint ls {address}` shows what is there; without --resume a run starts with its first step"
    )
}

/// What the arguments and the environment say of checkpoints, before the run file is known.
pub(super) fn section(to: &str, overrides: &[Override]) -> Result<CheckpointSection, String> {
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

pub(super) fn open(
    section: &CheckpointSection,
    base: &Path,
    output: &Path,
) -> Result<Arc<dyn Store>, String> {
    let surroundings = environment::surroundings();
    checkpoints::open(section, base, output, &surroundings).map_err(|e| format!("error: {e}"))
}

fn newest(store: &Arc<dyn Store>) -> Result<Option<Newest>, String> {
    checkpoints::newest(store).map_err(|error| format!("error: {error}"))
}

fn absolute(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.display().to_string()
}

/// Refuses a folder that cannot be written, before days of training find out.
fn writable(folder: &Path) -> Result<(), String> {
    let there = folder.ancestors().find(|path| path.exists());
    let problem = match there {
        Some(path) if !path.is_dir() => Some(format!("{} is not a folder", path.display())),
        Some(path) => rustix::fs::access(path, rustix::fs::Access::WRITE_OK)
            .err()
            .map(|error| format!("{}: {error}", path.display())),
        None => None,
    };
    problem.map_or(Ok(()), |problem| {
        Err(format!(
            "error: checkpoints cannot be written to {}: {problem}\n  \
             hint: choose another place: --set checkpoint.to=FOLDER",
            folder.display()
        ))
    })
}
