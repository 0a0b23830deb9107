//! `ronde submit`: starts a run as a job on a target.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use ronde::environment;
use ronde_store::Address;
use ronde_submit::{
    DocumentForm, JobPreview, JobProgram, JobResources, NewJob, RunInputs, SubmitError,
    SubmitRequest, SubmittedJob, Target, TargetFile, TargetSettings,
};
use ronde_train::config::{Document, Override, ValueOrigin};
use ronde_train::{RunConfig, text_path};

use crate::command::console::{info, message, print};
use crate::command::exit;
use crate::command::job::open;
use crate::command::job::submitted::SubmittedJobs;
use crate::command::run::train::read_run_file;

/// Name of the file with the user's targets.
const TARGET_FILE: &str = "targets.toml";

/// Arguments of `ronde submit`.
#[derive(Args)]
pub(crate) struct SubmitArguments {
    /// Run file [default: the embedded example].
    file: Option<PathBuf>,
    /// Target: `local`, or one that the file of targets describes.
    #[arg(long, value_name = "TARGET", default_value = "local")]
    on: String,
    /// Name of the job [default: the name of the run, with a number if it is in use].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Number of worker processes; the trained bits do not depend on it.
    #[arg(short = 'n', long, value_name = "N")]
    workers: Option<u32>,
    /// Override a value of the run file, such as `--set train.epochs=3`; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Secret of Kubernetes whose keys become variables of the workers, such as credentials of an object store; can be repeated.
    #[arg(long, value_name = "SECRET")]
    env_from: Vec<String>,
    /// File that describes the targets [default: ~/.config/ronde/targets.toml].
    #[arg(long, value_name = "FILE")]
    targets: Option<PathBuf>,
    /// Print everything that would be sent and started, without submitting.
    #[arg(long)]
    dry_run: bool,
    /// Print only the documents that would be sent, for targets that receive documents (Kubernetes and Ray): as YAML, or as
    /// a line of JSON for each.
    #[arg(short = 'o', long, value_name = "FORM", requires = "dry_run")]
    output: Option<PreviewForm>,
}

/// The form of printed documents.
#[derive(Clone, Copy, ValueEnum)]
enum PreviewForm {
    Yaml,
    Json,
}

impl From<PreviewForm> for DocumentForm {
    fn from(form: PreviewForm) -> Self {
        match form {
            PreviewForm::Yaml => Self::Yaml,
            PreviewForm::Json => Self::Json,
        }
    }
}

/// A run that was read for a submission.
pub(crate) struct RunToSubmit {
    pub(crate) config: RunConfig,
    pub(crate) request: SubmitRequest,
}

/// Submits a run. The job's name is printed on standard output.
pub(crate) fn submit(arguments: &SubmitArguments) -> i32 {
    let mut run = match read_run(
        arguments.file.as_deref(),
        arguments.workers,
        &arguments.sets,
    ) {
        Ok(run) => run,
        Err(problem) => {
            message!("{problem}");
            return exit::USER_ERROR;
        }
    };
    run.request.env_from.clone_from(&arguments.env_from);
    let settings = targets(arguments.targets.as_deref()).and_then(|file| file.find(&arguments.on));
    let name = arguments.name.as_deref();
    let submitted = settings.and_then(|settings| match arguments.dry_run {
        true => {
            let preview = preview(&settings, name, &run)?;
            match arguments.output {
                None => Ok(preview.text().to_owned()),
                Some(form) => preview.documents(&arguments.on, form.into()),
            }
        }
        false => place(
            &arguments.on,
            settings,
            name,
            arguments.file.as_deref(),
            &run,
        ),
    });
    match submitted {
        Ok(text) => print(text),
        Err(error) => crate::command::failure::submit_failure(&error),
    }
}

pub(crate) fn preview(
    settings: &TargetSettings,
    name: Option<&str>,
    run: &RunToSubmit,
) -> Result<JobPreview, SubmitError> {
    let jobs = SubmittedJobs::open()?;
    let name = name.unwrap_or(&run.config.run.name);
    jobs.target(settings).preview(name, &run.request)
}

/// Creates the record of a job and places it. Prints its state and returns its name.
pub(crate) fn place(
    on: &str,
    settings: TargetSettings,
    name: Option<&str>,
    file: Option<&Path>,
    run: &RunToSubmit,
) -> Result<String, SubmitError> {
    let name = place_quietly(on, settings, name, file, run)?;
    let jobs = SubmittedJobs::open()?;
    let (job, target) = jobs.find(&name)?;
    // A further question to a host or a scheduler would only delay the answer.
    let state = match job.settings.is_remote() {
        true => "submitted".to_owned(),
        false => jobs.state(&job, &*target)?.to_string(),
    };
    // Looked at last: `ronde cancel` may have found the job before this command has returned.
    if jobs.registry.is_cancelled(&name) {
        return Err(SubmitError::Cancelled { job: name });
    }
    info!("job {name} on {on}: {state}");
    info!("  `ronde logs -f {name}` shows its output, `ronde cancel {name}` ends it");
    Ok(name)
}

/// Creates the record of a job and places it. Returns its name.
pub(crate) fn place_quietly(
    on: &str,
    settings: TargetSettings,
    name: Option<&str>,
    file: Option<&Path>,
    run: &RunToSubmit,
) -> Result<String, SubmitError> {
    let jobs = SubmittedJobs::open()?;
    let target = jobs.target(&settings);
    let mut job = jobs.registry.create(name, &run.config.run.name, |name| {
        Ok(NewJob {
            name,
            target: on.to_owned(),
            settings: settings.clone(),
            run_file: file.map(Path::to_owned),
            workers: run.request.workers,
            output: run.request.output.clone(),
        })
    })?;
    place_claimed(&jobs, &*target, &mut job, &run.request)?;
    Ok(job.name)
}

/// Places a job whose record was created. Leaves no record if that fails and nothing can run, or if `ronde cancel` came first.
pub(crate) fn place_claimed(
    jobs: &SubmittedJobs,
    target: &dyn Target,
    job: &mut SubmittedJob,
    request: &SubmitRequest,
) -> Result<(), SubmitError> {
    let name = job.name.clone();
    let cancelled = || SubmitError::Cancelled { job: name.clone() };
    let mut placed = |placement| {
        jobs.registry.place(job, placement)?;
        // The target then ends everything that it has begun.
        match jobs.registry.is_cancelled(&name) {
            true => Err(cancelled()),
            false => Ok(()),
        }
    };
    match target.submit(&name, request, &mut placed) {
        Ok(()) if jobs.registry.is_cancelled(&name) => {
            target.cancel(job, Duration::ZERO, crate::command::job::cancel::report)?;
            Err(cancelled())
        }
        Ok(()) => Ok(()),
        Err(error @ SubmitError::MayRun { .. }) => Err(error),
        Err(error) => {
            let was_cancelled = jobs.registry.is_cancelled(&name);
            // Nothing runs: the name can be used again.
            jobs.registry.remove(&name)?;
            Err(match was_cancelled {
                true => cancelled(),
                false => error,
            })
        }
    }
}

/// Reads the user's targets.
pub(crate) fn targets(file: Option<&Path>) -> Result<TargetFile, SubmitError> {
    match file {
        Some(file) => TargetFile::read(file, true),
        None => match environment::settings_folder() {
            Some(folder) => TargetFile::read(&folder.join(TARGET_FILE), false),
            None => Ok(TargetFile::default()),
        },
    }
}

/// Reads the run file and resolves what a target needs to know. The error is a complete message.
pub(crate) fn read_run(
    file: Option<&Path>,
    workers: Option<u32>,
    sets: &[String],
) -> Result<RunToSubmit, String> {
    let colour = crate::command::console::console().colour;
    let (text, name, _) = read_run_file(file)?;
    let flag = workers.map(|workers| Override::Flag {
        name: "--workers".to_owned(),
        path: "workers.count".to_owned(),
        value: workers.to_string(),
    });
    let overrides: Vec<Override> = sets
        .iter()
        .cloned()
        .map(Override::Set)
        .chain(flag)
        .collect();
    let (config, document) = Document::load(&text, &name, &environment::all(), &overrides)
        .map_err(|error| error.render(colour))?;
    let output = output_address(&config, &document)?;
    let (run_file, directory) = paths(file, &config)?;
    let checkpoint = &config.checkpoint;
    let saves = checkpoint.at_end || checkpoint.every_steps > 0 || checkpoint.every_minutes > 0.0;
    let in_output = checkpoint
        .address(Path::new("results"))
        .is_ok_and(|address| matches!(address, Address::Folder(folder) if folder.is_relative()));
    let most = match config.elastic.max_workers {
        0 => config.workers_max(),
        most => most,
    };
    let inputs = inputs(run_file.as_deref(), &config);
    let request = SubmitRequest {
        run_file,
        workers: config.workers.count,
        workers_max: most.max(config.workers.count),
        sets: environment::sets()
            .into_iter()
            .chain(sets.iter().cloned())
            .collect(),
        directory,
        inputs,
        resources: JobResources {
            memory_bytes: config.job.memory_bytes(),
            cpus: config.job.cpus,
            gpus: config.job.gpus,
        },
        env_from: Vec::new(),
        is_elastic: config.elastic.enabled,
        saves_in_output: saves && in_output,
        output,
        continues: None,
        program: JobProgram {
            path: PathBuf::from(open::this_program()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
    };
    Ok(RunToSubmit { config, request })
}

/// Returns the address of the results, if the run has one.
fn output_address(config: &RunConfig, document: &Document) -> Result<Option<String>, String> {
    let output = config.run.output_address();
    let output = output.map(|address| address.to_string());
    let is_override = matches!(
        document.origin("run.output"),
        ValueOrigin::Set { .. } | ValueOrigin::Environment { .. }
    );
    if is_override && output.is_none() {
        return Err(
            "error: cannot set `run.output` of a submitted job to a folder: its results are in the folder of the job\n  \
             help: `ronde fetch JOB --to FOLDER` copies them; an address such as s3://bucket/runs/x is possible"
                .to_owned(),
        );
    }
    Ok(output)
}

/// Returns the files beside a run file that its run needs, for targets that copy them.
fn inputs(run_file: Option<&Path>, config: &RunConfig) -> RunInputs {
    let Some(base) = run_file.and_then(Path::parent) else {
        return RunInputs::default();
    };
    let (base, config) = (base.to_owned(), config.clone());
    RunInputs::new(move || {
        config.files_beside(&base).map_err(|error| {
            let text = error.to_string();
            let (problem, help) = text.split_once("\n  help: ").unwrap_or((
                &text,
                "correct the run file; relative paths start from its folder",
            ));
            SubmitError::Invalid {
                problem: problem.to_owned(),
                help: help.to_owned(),
            }
        })
    })
}

/// Returns the absolute paths of a run file and of the current folder, for the record of a job.
fn paths(file: Option<&Path>, config: &RunConfig) -> Result<(Option<PathBuf>, PathBuf), String> {
    if config.run.base.is_some() && !config.data.relative_paths().is_empty() {
        return Err(
            "error: cannot submit a run file with `run.base`: the files in its own folder are sent\n  \
             help: submit the run file from which that run was started"
                .to_owned(),
        );
    }
    let failed = |what: &str, error: std::io::Error| format!("error: cannot find {what}: {error}");
    let run_file = file.map(std::path::absolute).transpose();
    let run_file = run_file.map_err(|error| failed("the run file", error))?;
    let directory = std::env::current_dir().map_err(|error| failed("the current folder", error))?;
    for path in run_file.iter().chain([&directory]) {
        text_path(path).map_err(|error| format!("error: {error}"))?;
    }
    Ok((run_file, directory))
}
