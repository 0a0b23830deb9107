//! `ronde sweep`: searches over the settings of a run, with a job for each run on a target.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ronde_cluster::{StopFlag, StopLevel};
use ronde_core::Recovery;
use ronde_submit::{SubmitError, TargetSettings};
use ronde_sweep::{RunOutcome, RunScore, SearchKind, Sweep, SweepFile, SweepRun, table};

use crate::command::console::{Printable, info, message};
use crate::command::job::submit;
use crate::command::job::submit::RunToSubmit;
use crate::command::run::train::read_run_file;
use crate::command::{exit, signals};

mod folder;
mod runs;

use folder::SweepFolder;
use runs::{RunState, SweepJobs};

/// The maximum size of a sweep file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The target of a sweep that names none.
const LOCAL: &str = "local";
/// Name of the folder of all sweeps.
const SWEEPS: &str = "sweeps";
/// The beginning of the position of a value that a trial sets, in messages.
const ARGUMENT: &str = "--set:1:";
/// Interval between two looks at runs whose state costs little.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same for runs on other machines.
const LOOK_EVERY_REMOTE: Duration = Duration::from_secs(2);

/// Arguments of `ronde sweep`.
#[derive(Args)]
pub(crate) struct SweepArguments {
    /// File that describes the sweep; see docs/sweeps.md.
    file: PathBuf,
    /// Target of the runs: `local`, or one that the file of targets describes.
    #[arg(long, value_name = "TARGET", default_value = LOCAL)]
    on: String,
    /// File that describes the targets [default: ~/.config/ronde/targets.toml].
    #[arg(long, value_name = "FILE")]
    targets: Option<PathBuf>,
    /// Folder for the state and the results; a sweep in it continues [default: sweeps/NAME].
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
    /// Start the runs that have failed again.
    #[arg(long)]
    retry: bool,
    /// Print the trials without starting any.
    #[arg(long, conflicts_with = "retry")]
    dry_run: bool,
    /// End the runs of the sweep that are under way.
    #[arg(long, conflicts_with_all = ["retry", "dry_run"])]
    cancel: bool,
}

impl SweepArguments {
    /// Returns the command that continues the sweep.
    fn command(&self) -> String {
        let mut command = format!("ronde sweep {}", self.file.display());
        if self.on != LOCAL {
            command += &format!(" --on {}", self.on);
        }
        for (option, path) in [("--targets", &self.targets), ("--to", &self.to)] {
            if let Some(path) = path {
                command += &format!(" {option} {}", path.display());
            }
        }
        command
    }
}

/// Why a sweep cannot continue.
enum SweepFailure {
    /// A complete message about the user's input.
    Input(String),
    /// The target or a file fails.
    Job(SubmitError),
    /// The first signal.
    Stopped(i32),
}

impl From<SubmitError> for SweepFailure {
    fn from(error: SubmitError) -> Self {
        Self::Job(error)
    }
}

/// A sweep that is under way.
struct SweepSession<'a> {
    arguments: &'a SweepArguments,
    sweep: Sweep,
    folder: SweepFolder,
    settings: TargetSettings,
    /// The path of the run file; `None`: the embedded example.
    run_file: Option<PathBuf>,
    /// The jobs whose target did not answer at the last look.
    unanswered: BTreeSet<String>,
}

/// Runs a sweep to its end. The table is printed on standard output.
pub(crate) fn sweep(arguments: &SweepArguments, stop: &StopFlag) -> i32 {
    let ended = open(arguments).and_then(|session| match session {
        None => Ok(()),
        Some(session) if arguments.cancel => session.cancel(),
        Some(session) => session.run(stop),
    });
    match ended {
        Ok(()) => exit::DONE,
        Err(SweepFailure::Input(problem)) => {
            message!("error: {problem}");
            exit::USER_ERROR
        }
        Err(SweepFailure::Job(error)) => crate::command::failure::submit_failure(&error),
        Err(SweepFailure::Stopped(signal)) => 128 + signal,
    }
}

/// Reads and checks everything before a run starts. Returns `None` if only the trials were to be printed.
fn open(arguments: &SweepArguments) -> Result<Option<SweepSession<'_>>, SweepFailure> {
    let path = &arguments.file;
    let input = |problem: String| {
        let path = path.display();
        SweepFailure::Input(format!(
            "{problem}\n  help: correct {path}; docs/sweeps.md describes it"
        ))
    };
    let bytes = ronde_store::read_regular(path, FILE_BYTES_MAX).map_err(|error| {
        SweepFailure::Input(format!(
            "cannot read sweep file {}: {error}\n  help: pass a TOML file; docs/sweeps.md describes it",
            path.display()
        ))
    })?;
    let text =
        String::from_utf8(bytes).map_err(|_| input("the file is not valid UTF-8".to_owned()))?;
    let file = SweepFile::parse(&text).map_err(|error| input(error.to_string()))?;
    let name = name(&file, path).map_err(input)?;
    let base = path.parent().unwrap_or(Path::new("."));
    let run_file = file.run.as_ref().map(|run| base.join(run));
    let (run_text, ..) = read_run_file(run_file.as_deref())
        .map_err(|problem| SweepFailure::Input(without_prefix(&problem)))?;
    let settings = submit::targets(arguments.targets.as_deref())?.find(&arguments.on)?;
    let mut new = Sweep::new(name, file, run_text);
    check(&new, run_file.as_deref())
        .map_err(|problem| SweepFailure::Input(located(&problem, &new, (path, &text))))?;
    if arguments.dry_run {
        print(&table(&new))?;
        return Ok(None);
    }
    let to = arguments
        .to
        .clone()
        .unwrap_or_else(|| Path::new(SWEEPS).join(&new.name));
    let folder = SweepFolder::lock(&to)?;
    let sweep = match folder.load().map_err(SweepFailure::Input)? {
        None => {
            new.id = Some(folder.new_id()?);
            new
        }
        Some(mut sweep) => {
            sweep.resume(&new.file, &new.run_file).map_err(|error| {
                SweepFailure::Input(format!(
                    "{error}\n  help: choose another folder with `--to`, or another `name`; the sweep in {} keeps its trials",
                    to.display()
                ))
            })?;
            sweep
        }
    };
    Ok(Some(SweepSession {
        arguments,
        sweep,
        folder,
        settings,
        run_file,
        unanswered: BTreeSet::new(),
    }))
}

/// Returns the name of a sweep, which begins the names of its jobs.
fn name(file: &SweepFile, path: &Path) -> Result<String, String> {
    let stem = || Some(path.file_stem()?.to_str()?.to_owned());
    let name = file.name.clone().or_else(stem).unwrap_or_default();
    let is_valid = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    match !name.is_empty() && name.len() <= 40 && name.chars().all(is_valid) {
        true => Ok(name),
        false => Err(format!(
            "invalid name of a sweep `{}`: expected up to 40 letters, digits, `-` or `_`",
            name.escape_debug()
        )),
    }
}

fn without_prefix(problem: &str) -> String {
    problem
        .strip_prefix("error: ")
        .unwrap_or(problem)
        .to_owned()
}

/// Checks the run file of every trial. The error is a complete message.
fn check(sweep: &Sweep, run_file: Option<&Path>) -> Result<(), String> {
    let budgets = sweep.file.budgets().len().max(1);
    for trial in 0..sweep.trials.len() {
        read_run(sweep, run_file, trial, budgets - 1)
            .map_err(|problem| format!("trial {trial}: {}", without_prefix(&problem)))?;
    }
    Ok(())
}

/// Replaces the position of an argument in a message by that of the key in the sweep file.
fn located(problem: &str, sweep: &Sweep, (path, text): (&Path, &str)) -> String {
    let lines: Vec<&str> = problem.lines().collect();
    let argument = lines.iter().position(|line| line.contains(ARGUMENT));
    let Some(argument) = argument else {
        return problem.to_owned();
    };
    // The argument itself, `1 | KEY=VALUE`, is below its position.
    let shown = lines.iter().skip(argument).find_map(|line| {
        let (key, _) = line.split_once("| ")?.1.split_once('=')?;
        Some(key)
    });
    let keys = sweep.file.keys.keys().chain(sweep.file.set.keys());
    let key = keys.into_iter().find(|key| Some(key.as_str()) == shown);
    let line = key.and_then(|key| {
        let mut names = text.lines().map(|line| line.split('=').next());
        let is_key = |name: &str| name.trim().trim_matches(['"', '\'']) == key;
        names.position(|name| name.is_some_and(is_key))
    });
    match (line, problem.split_once(ARGUMENT)) {
        (Some(line), Some((before, after))) => format!(
            "{before}{}:{}{}",
            path.display(),
            line + 1,
            after.trim_start_matches(|letter: char| letter.is_ascii_digit())
        ),
        _ => problem.to_owned(),
    }
}

/// Reads the run file with the values of a run.
fn read_run(
    sweep: &Sweep,
    run_file: Option<&Path>,
    trial: usize,
    rung: usize,
) -> Result<RunToSubmit, String> {
    submit::read_run(run_file, Some(sweep.file.workers), &sweep.sets(trial, rung))
}

/// Reads the run file for the job of a run. Locations of results that all trials would share get the name of the job.
fn read_job(
    sweep: &Sweep,
    run_file: Option<&Path>,
    run: &SweepRun,
) -> Result<RunToSubmit, SweepFailure> {
    let failed = |problem: String| SweepFailure::Input(without_prefix(&problem));
    let read = read_run(sweep, run_file, run.trial, run.rung).map_err(failed)?;
    let own = |key: &str, location: &str| {
        let location = format!("{}/{}", location.trim_end_matches('/'), run.job);
        format!("{key}={}", serde_json::Value::String(location))
    };
    let shared = [
        ("run.output", read.request.output.as_ref()),
        ("checkpoint.to", read.config.checkpoint.to.as_ref()),
    ];
    let owns: Vec<String> = shared
        .into_iter()
        .filter_map(|(key, location)| Some(own(key, location?)))
        .collect();
    if owns.is_empty() {
        return Ok(read);
    }
    let sets = [sweep.sets(run.trial, run.rung), owns].concat();
    submit::read_run(run_file, Some(sweep.file.workers), &sets).map_err(failed)
}

fn print(text: &str) -> Result<(), SweepFailure> {
    let written = write!(Printable(std::io::stdout()), "{text}");
    written.map_err(|cause| {
        SweepFailure::Job(SubmitError::File {
            action: "write",
            path: PathBuf::from("standard output"),
            cause,
        })
    })
}

impl SweepSession<'_> {
    fn run(mut self, stop: &StopFlag) -> Result<(), SweepFailure> {
        if self.arguments.retry {
            self.sweep.retry();
        }
        self.save()?;
        info!(
            "sweep {}: {} trials on {}, up to {} runs side by side; state and results in {}",
            self.sweep.name,
            self.sweep.trials.len(),
            self.arguments.on,
            self.sweep.file.side_by_side,
            self.folder.path().display()
        );
        signals::begin_supervision();
        self.place_array()?;
        loop {
            for run in self.sweep.started() {
                self.look(&run)?;
            }
            if stop.level() != StopLevel::Run {
                return Err(self.interrupted(stop.signal()));
            }
            while self.sweep.under_way() < self.sweep.file.side_by_side as usize
                && stop.level() == StopLevel::Run
                && let Some(run) = self.sweep.next()
                && self.place(&run)?
            {}
            if self.sweep.is_over() {
                return self.conclude();
            }
            pause(self.settings.is_remote());
        }
    }

    /// Places all runs at once if the target has arrays, the trials are known, and none has started.
    fn place_array(&mut self) -> Result<(), SweepFailure> {
        let is_new = self.sweep.trials.iter().all(|trial| trial.runs.is_empty());
        let is_known = self.sweep.file.search != SearchKind::Halving;
        if !(is_new && is_known && runs::has_arrays(&self.settings)?) {
            return Ok(());
        }
        let mut runs = Vec::new();
        while let Some(run) = self.sweep.next() {
            self.sweep.start(&run);
            let read = read_job(&self.sweep, self.run_file.as_deref(), &run)?;
            runs::forget(&run.job, &self.folder.results(&run))?;
            runs.push((run, read));
        }
        let records = self.jobs().claim_all(&runs)?;
        self.save()?;
        let limit = self.sweep.file.side_by_side;
        if let Err(error) = runs::place_array(records, &self.settings, &runs, limit) {
            // Runs that may have begun are looked for when the sweep continues.
            let may_run = matches!(error, SubmitError::MayRun { .. });
            for (run, _) in runs.iter().filter(|_| !may_run) {
                self.sweep.withdraw(run);
            }
            self.save()?;
            return Err(error.into());
        }
        info!("sent {} runs as an array", runs.len());
        Ok(())
    }

    /// Returns the access to the jobs of the sweep.
    fn jobs(&self) -> SweepJobs<'_> {
        SweepJobs {
            sweep: self.sweep.id.as_deref(),
            on: &self.arguments.on,
            settings: &self.settings,
            file: self.run_file.as_deref(),
        }
    }

    /// Starts a run: claims the name of its job, stores that it has started, and places the job. A run that cannot begin
    /// has failed; the others continue. Returns false if the target does not answer now: the run is tried again later.
    fn place(&mut self, run: &SweepRun) -> Result<bool, SweepFailure> {
        let mut to_submit = read_job(&self.sweep, self.run_file.as_deref(), run)?;
        to_submit.request.continues = self.earlier(run)?;
        let record = match self.jobs().claim(&run.job, &to_submit) {
            Err(error) if error.recovery() == Recovery::Retry => {
                self.report_no_answer(run, &error);
                return Ok(false);
            }
            claimed => claimed?,
        };
        runs::forget(&run.job, &self.folder.results(run))?;
        self.sweep.start(run);
        self.save()?;
        match runs::place(record, &to_submit) {
            Ok(()) => {
                self.unanswered.remove(&run.job);
                Ok(true)
            }
            Err(error) if error.recovery() == Recovery::Retry => {
                self.sweep.withdraw(run);
                self.save()?;
                self.report_no_answer(run, &error);
                Ok(false)
            }
            Err(SubmitError::Cancelled { .. }) => {
                self.finish(run, Err("cancelled while it was submitted".to_owned()))?;
                Ok(true)
            }
            Err(error @ SubmitError::EndedEarly { .. }) => {
                let text = error.to_string();
                let reason = text
                    .lines()
                    .map(str::trim)
                    .find(|line| line.contains("error: "));
                let reason = reason.unwrap_or(text.lines().next().unwrap_or_default());
                self.finish(run, Err(without_prefix(reason)))?;
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the results of the run with the budget before that of a run, if it can continue from their checkpoint.
    fn earlier(&self, run: &SweepRun) -> Result<Option<PathBuf>, SweepFailure> {
        let is_length = |key: &str| ["train.epochs", "train.steps"].contains(&key);
        let halving = self.sweep.file.halving.as_ref();
        let Some(rung) = run.rung.checked_sub(1) else {
            return Ok(None);
        };
        if !halving.is_some_and(|halving| is_length(&halving.key))
            || !runs::can_continue(&self.settings)?
        {
            return Ok(None);
        }
        Ok(self.folder.checkpoints_of(run.trial, rung))
    }

    /// Looks whether a run has ended, and takes its results over.
    fn look(&mut self, run: &SweepRun) -> Result<(), SweepFailure> {
        match self.jobs().state(&run.job)? {
            RunState::UnderWay => {
                self.unanswered.remove(&run.job);
                Ok(())
            }
            RunState::NoAnswer(error) => {
                self.report_no_answer(run, &error);
                Ok(())
            }
            // This command was killed before the run was placed: it starts again when there is room for it.
            RunState::NotPlaced => {
                self.sweep.withdraw(run);
                self.save()
            }
            RunState::Failed(reason) => {
                match self.fetch(run) {
                    None => return Ok(()),
                    // A run that has failed may have no results at all.
                    Some(Err(error)) => {
                        info!("trial {}: its results are lost: {error}", run.trial);
                    }
                    Some(Ok(())) => {}
                }
                self.finish(run, Err(reason))
            }
            RunState::Finished => {
                let Some(fetched) = self.fetch(run) else {
                    return Ok(());
                };
                fetched?;
                let score = folder::score(&self.folder.results(run), &self.sweep.file.metric);
                self.finish(run, score)
            }
        }
    }

    /// Copies the results of a run that is over; `None` if its target does not answer now.
    fn fetch(&mut self, run: &SweepRun) -> Option<Result<(), SubmitError>> {
        match runs::fetch(&run.job, &self.folder.results(run)) {
            Err(error) if error.recovery() == Recovery::Retry => {
                self.report_no_answer(run, &error);
                None
            }
            fetched => Some(fetched),
        }
    }

    /// Reports once that the target of a run does not answer; the next look asks again.
    fn report_no_answer(&mut self, run: &SweepRun, error: &SubmitError) {
        if self.unanswered.insert(run.job.clone()) {
            message!(
                "warning: trial {} is looked at again later: {error}",
                run.trial
            );
        }
    }

    /// Notes the result of a run, stores it, and then removes the record of the job.
    fn finish(
        &mut self,
        run: &SweepRun,
        score: Result<RunScore, String>,
    ) -> Result<(), SweepFailure> {
        self.sweep.finish(run, score);
        self.save()?;
        if let Err(error) = self.jobs().remove(&run.job, self.sweep.is_over()) {
            // Its results are here; what is left of it on the target is no reason to end the sweep.
            message!("warning: job {} stays in `ronde jobs`: {error}", run.job);
        }
        let trial = &self.sweep.trials[run.trial];
        let outcome = match trial.runs.get(run.rung).map(|run| &run.outcome) {
            Some(RunOutcome::Scored { score, steps }) => {
                format!("{} {score}{}", self.sweep.file.metric, after(*steps))
            }
            Some(RunOutcome::Failed { reason }) => format!("failed: {reason}"),
            _ => String::new(),
        };
        info!(
            "trial {}: {outcome} ({})",
            run.trial,
            self.sweep.sets(run.trial, run.rung).join(", ")
        );
        Ok(())
    }

    fn save(&self) -> Result<(), SweepFailure> {
        self.folder.save(&self.sweep).map_err(SweepFailure::Job)
    }

    /// Writes the table, the plot and the best run file.
    fn conclude(&self) -> Result<(), SweepFailure> {
        let best = self.sweep.ranking().first().copied();
        let best = best.and_then(|trial| Some((trial, self.sweep.trials[trial].score()?)));
        let run_file = match best {
            None => None,
            Some((trial, (rung, _))) => {
                let read = read_run(&self.sweep, self.run_file.as_deref(), trial, rung);
                let read = read.map_err(|problem| SweepFailure::Input(without_prefix(&problem)))?;
                let text = read.config.to_toml();
                Some(text.map_err(|error| SweepFailure::Input(error.render(false)))?)
            }
        };
        self.folder.conclude(&self.sweep, run_file.as_deref())?;
        print(&table(&self.sweep))?;
        let folder = self.folder.path().display();
        match best {
            Some((trial, (_, score))) => {
                info!(
                    "best: trial {trial}, {} {score}{}; its run file is {folder}/best.toml, all trials are in \
                     {folder}/trials.csv and {folder}/trials.svg",
                    self.sweep.file.metric,
                    after(self.sweep.trials[trial].scored_steps())
                );
                Ok(())
            }
            None => Err(SweepFailure::Input(format!(
                "no run of the sweep has a score\n  help: {folder}/trials.csv has the reasons; `--retry` starts the runs again"
            ))),
        }
    }

    /// Returns the end after a signal; the runs continue.
    fn interrupted(&self, signal: i32) -> SweepFailure {
        let command = self.arguments.command();
        message!(
            "interrupted; {} runs continue; `{command}` continues the sweep, `{command} --cancel` ends the runs",
            self.sweep.under_way()
        );
        SweepFailure::Stopped(signal)
    }

    /// Ends the runs that are under way. They start again when the sweep continues.
    fn cancel(mut self) -> Result<(), SweepFailure> {
        let started = self.sweep.started();
        for run in &started {
            self.jobs().cancel(&run.job)?;
            self.sweep.withdraw(run);
            self.save()?;
        }
        info!("sweep {}: {} runs ended", self.sweep.name, started.len());
        Ok(())
    }
}

fn pause(is_remote: bool) {
    ronde_clock::pause(match is_remote {
        true => LOOK_EVERY_REMOTE,
        false => LOOK_EVERY,
    });
}

/// Returns the step of the model with a score, for a message.
fn after(steps: Option<u64>) -> String {
    steps.map_or_else(String::new, |steps| format!(" after step {steps}"))
}
