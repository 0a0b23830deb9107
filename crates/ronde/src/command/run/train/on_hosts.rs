//! `ronde train -H`: submits the run to hosts over SSH, shows its progress, and copies its results at the end.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ronde_cluster::{StopFlag, StopLevel};
use ronde_submit::{
    JobState, LogRequest, SshSettings, SubmitError, SubmittedJob, Target, TargetSettings,
    parse_hosts,
};

use super::TrainArguments;
use super::prepare::{free_folder, overrides};
use crate::command::console::{info, message, print};
use crate::command::failure::submit_failure;
use crate::command::job::submitted::SubmittedJobs;
use crate::command::job::{cancel, fetch, submit};
use crate::command::run::resume;
use crate::command::{exit, signals};

/// The name of the target in the list of jobs.
const TARGET: &str = "hosts";
/// What to do if there is something in the folder for the results.
const FOLDER_HELP: &str = "move what is in it to another place, or choose another folder: `--set run.name=NAME`, or \
                           `run.output` in the run file if it names this one";
/// Time for a last checkpoint after the first signal.
const GRACE: Duration = Duration::from_secs(120);
/// Interval at which signals and the end of the job are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Trains on the hosts of `list` and returns the exit code of the run.
pub(super) fn train(arguments: &TrainArguments, list: &str, stop: &StopFlag) -> i32 {
    let read = submit::read_run(
        arguments.file.as_deref(),
        arguments.workers,
        &arguments.sets,
    );
    let run = match read {
        Ok(run) => run,
        Err(problem) => {
            message!("{problem}");
            return exit::USER_ERROR;
        }
    };
    let trained = parse_hosts(list).and_then(|hosts| {
        let drain_on = arguments.drain_on.iter().map(ToString::to_string);
        let settings = TargetSettings::Ssh(SshSettings {
            hosts,
            drain_on: drain_on.collect(),
            ..SshSettings::default()
        });
        settings.check().map_err(|problem| SubmitError::Invalid {
            problem,
            help: "`--drain-on` with `--hosts` names what the hosts look at".to_owned(),
        })?;
        if arguments.dry_run {
            let preview = submit::preview(&settings, None, &run)?;
            return Ok(print(preview.text()));
        }
        let mut to = run.config.run.output_folder();
        if arguments.file.is_none() && !resume::names_run(&overrides(arguments)) {
            to = free_folder(&to);
        }
        let reserved = fetch::reserve(&to, FOLDER_HELP)?;
        let placed = submit::place(TARGET, settings, None, arguments.file.as_deref(), &run);
        let name = placed.inspect_err(|_| reserved.remove_empty())?;
        follow(&name, stop, &to)
    });
    trained.unwrap_or_else(|error| submit_failure(&error))
}

/// Shows a job until it is over and copies its results. The first signal ends the job after a checkpoint.
fn follow(name: &str, stop: &StopFlag, to: &Path) -> Result<i32, SubmitError> {
    signals::begin_supervision();
    let jobs = SubmittedJobs::open()?;
    let (job, target) = jobs.find(name)?;
    let shown = std::thread::Builder::new().name("logs".to_owned());
    let shown = shown.spawn(move || show(&job, &*target));
    let shown = shown.map_err(|cause| SubmitError::File {
        action: "start",
        path: PathBuf::from("a thread"),
        cause,
    })?;
    while !shown.is_finished() && stop.level() == StopLevel::Run {
        ronde_clock::pause(LOOK_EVERY);
    }
    let state = match stop.level() {
        StopLevel::Run => {
            let _ = shown.join();
            jobs.find(name)
                .and_then(|(job, target)| jobs.state(&job, &*target))
        }
        _ => cancel::end(name, GRACE),
    };
    let state = match state {
        Ok(state) => state,
        Err(error @ (SubmitError::Host { .. } | SubmitError::Program { .. })) => {
            let code = submit_failure(&error);
            message!(
                "  help: job {name} continues on its hosts: `ronde logs -f {name}` shows it, `ronde cancel {name}` ends it"
            );
            return Ok(code);
        }
        Err(error) => return Err(error),
    };
    if !state.is_over() {
        info!("job {name} continues: {state}; `ronde logs -f {name}` shows it");
        return Ok(exit::GAVE_UP);
    }
    match fetch::copy(name, to) {
        Ok(()) => info!("results of job {name} in {}", to.display()),
        Err(error) => {
            // The help of the error is that of another command.
            let problem = match error {
                SubmitError::Invalid { problem, .. } => problem,
                error => error.to_string(),
            };
            message!(
                "error: cannot copy the results of job {name}: {problem}\n  help: `ronde fetch {name} --to FOLDER` copies them \
                 to another folder"
            );
            if state == JobState::Finished {
                return Ok(exit::GAVE_UP);
            }
        }
    }
    Ok(state.exit_code().unwrap_or(exit::BUG))
}

/// Copies the output of a job to standard error.
fn show(job: &SubmittedJob, target: &dyn Target) {
    let request = LogRequest {
        rank: None,
        follow: true,
        interrupted: |error| message!("warning: {error}"),
    };
    if let Err(error) = target.logs(job, request, &mut std::io::stderr()) {
        message!("warning: {error}");
    }
    // Standard error may be closed.
    let _ = std::io::stderr().flush();
}
