//! `ronde train` as one of the workers that another launcher starts, such as mpirun, srun or torchrun.
//!
//! Rank 0 prepares the run, passes it to the other ranks, and writes progress, events and results.

use std::sync::Arc;

use ronde::{Error, FixedRank, Worker, environment};
use ronde_cluster::{FailureCause, JobExit, JobOutcome, StartDecision, StopFlag, WorkerFailure};
use ronde_core::{Event, Rank, Tracker};
use ronde_train::TrainError;
use ronde_train::config::Override;
use ronde_train::training::TrainingResult;

use super::{PlanRequest, RunOutputs, TrainArguments, conclude, exit_code, prepare};
use crate::command::console::message;
use crate::command::{exit, signals};

/// Trains as one rank and returns the exit code of this process.
pub(super) fn train(
    mine: &FixedRank,
    decision: &StartDecision,
    arguments: &TrainArguments,
    stop: &StopFlag,
) -> i32 {
    if let Some(problem) = conflict(mine, decision, arguments) {
        message!("error: {problem}");
        return exit::USER_ERROR;
    }
    match mine.rank {
        Rank(0) => train_first(mine, arguments, stop),
        _ => train_other(mine, stop),
    }
}

/// Returns the problem with arguments that another launcher decides.
fn conflict(
    mine: &FixedRank,
    decision: &StartDecision,
    arguments: &TrainArguments,
) -> Option<String> {
    let (size, from) = (mine.world_size.get(), &decision.world_size_from);
    let help = format!(
        "`ronde train --explain-environment` shows what was found; {}=none starts a run of its own",
        environment::RONDE_STARTED_BY
    );
    match arguments.workers {
        Some(workers) if workers != size => Some(format!(
            "invalid number of workers `{workers}`: expected {size}, the value of {from}\n  help: {help}"
        )),
        _ if arguments.open.listen.is_some() => Some(format!(
            "invalid argument `--listen`: another launcher starts the workers, because {from} is set\n  help: {help}"
        )),
        _ => None,
    }
}

fn train_first(mine: &FixedRank, arguments: &TrainArguments, stop: &StopFlag) -> i32 {
    let mut request = PlanRequest::of(arguments);
    request.overrides.push(Override::Flag {
        name: environment::RONDE_WORLD_SIZE.to_owned(),
        path: "workers.count".to_owned(),
        value: mine.world_size.to_string(),
    });
    let opened = prepare(arguments, &request).and_then(|prepared| {
        let outputs = RunOutputs::open(&prepared, arguments)?;
        Ok((prepared, outputs))
    });
    let (prepared, outputs) = match opened {
        Ok(opened) => opened,
        Err(code) => return code,
    };
    let trained = work(mine, &prepared.task, Some(outputs.tracker.clone()));
    let outcome = outcome(mine, trained, stop);
    let code = conclude(&prepared, &outcome, outputs.finish(exit_code(&outcome)));
    prepared.output.remove_temporary_files();
    code
}

fn train_other(mine: &FixedRank, stop: &StopFlag) -> i32 {
    match work(mine, "", None) {
        Ok(_) => exit::DONE,
        Err(Error::Train(TrainError::Stopped { .. })) => 128 + stop.signal(),
        Err(error) => {
            message!("error: rank {}: {}", mine.rank, error.explain());
            match is_user_error(&error) {
                true => exit::USER_ERROR,
                false => exit::GAVE_UP,
            }
        }
    }
}

/// Meets the other ranks and trains the run of rank 0.
fn work(
    mine: &FixedRank,
    task: &str,
    tracker: Option<Arc<dyn Tracker>>,
) -> Result<TrainingResult, Error> {
    let mut worker = Worker::fixed(mine, task)?;
    if let Some(tracker) = tracker {
        worker.set_tracker(tracker);
    }
    let surroundings = environment::surroundings();
    // From here on, signals request the end of the run after the step.
    signals::begin_supervision();
    if let Err(error) = signals::stop_member_on_request(surroundings.stop.clone()) {
        message!("note: cannot install the signal handlers: {error}");
    }
    Ok(ronde_train::worker::run(
        worker.take_access(),
        &surroundings,
    )?)
}

/// Returns how the run ended for rank 0, in the form of a supervised run.
fn outcome(
    mine: &FixedRank,
    trained: Result<TrainingResult, Error>,
    stop: &StopFlag,
) -> JobOutcome {
    let (exit, failures) = match trained {
        Ok(_) => (JobExit::Done, Vec::new()),
        Err(Error::Train(TrainError::Stopped { .. })) => {
            let signal = stop.signal();
            (JobExit::Stopped { signal }, Vec::new())
        }
        Err(error) => {
            let reported = Event::WorkerFailed {
                rank: mine.rank,
                message: error.explain(),
                last_step: None,
                secondary: false,
                user_error: is_user_error(&error),
            };
            let failure = WorkerFailure {
                rank: mine.rank,
                host: "this host".to_owned(),
                pid: std::process::id(),
                cause: FailureCause::Reported(reported),
                last_step: None,
                last_lines: Vec::new(),
            };
            (JobExit::Failed(0), vec![failure])
        }
    };
    JobOutcome {
        exit,
        failures,
        unresponsive: Vec::new(),
    }
}

fn is_user_error(error: &Error) -> bool {
    matches!(error, Error::Train(error) if error.is_user_error())
}
