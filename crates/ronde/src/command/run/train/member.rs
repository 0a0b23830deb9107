//! `ronde train` as one of the workers that another launcher starts, such as mpirun, srun or torchrun.
//!
//! Rank 0 prepares the run, passes it to the other ranks, and writes progress, events and results.

use std::sync::Arc;
use std::time::Duration;

use ronde::{Error, FixedRank, Worker, environment};
use ronde_cluster::{
    ClusterError, FailureCause, JobExit, JobOutcome, StartDecision, StopFlag, WaitSettings,
    WorkerFailure,
};
use ronde_core::{Event, Rank, Tracker};
use ronde_train::TrainError;
use ronde_train::config::{Document, Override, ValueOrigin};
use ronde_train::training::TrainingResult;
use signal_hook::consts::SIGTERM;

use super::prepare::overrides;
use super::{PlanRequest, RunOutputs, TrainArguments, conclude, exit_code, prepare, read_run_file};
use crate::command::console::{info, message};
use crate::command::{exit, signals};

/// How long the ranks wait for each other if the run file does not say it.
const MEETING_MAX: Duration = Duration::from_secs(60);
/// The shortest wait: processes of several hosts do not start at the same moment.
const MEETING_MIN: Duration = Duration::from_secs(10);

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
    let start = MemberStart {
        mine,
        notice: notice(mine, decision),
        limit: meeting_limit(arguments),
    };
    match mine.rank {
        Rank(0) => train_first(&start, arguments, stop),
        _ => train_other(&start, stop),
    }
}

/// The rank that another launcher has assigned, and a message about it.
struct MemberStart<'a> {
    mine: &'a FixedRank,
    notice: String,
    /// The longest wait for the other ranks.
    limit: Duration,
}

/// Returns how long the ranks wait for each other: `comm.timeout_s`, if it is set. A host without the run file, which rank 0
/// passes to all ranks, waits for [`MEETING_MAX`].
fn meeting_limit(arguments: &TrainArguments) -> Duration {
    let loaded = read_run_file(arguments.file.as_deref())
        .ok()
        .and_then(|(text, name, _)| {
            let sets = overrides(arguments);
            Document::load(&text, &name, &environment::all(), &sets).ok()
        });
    match loaded {
        Some((config, document)) if document.origin("comm.timeout_s") != ValueOrigin::Default => {
            config.comm.timeout().max(MEETING_MIN)
        }
        _ => MEETING_MAX,
    }
}

/// Returns the message about the origin of the rank, and what it waits for.
fn notice(mine: &FixedRank, decision: &StartDecision) -> String {
    let mut from: Vec<&str> = decision
        .findings
        .iter()
        .filter(|found| ["rank", "world size", "rendezvous"].contains(&found.field))
        .map(|found| found.from.as_str())
        .collect();
    from.dedup();
    format!(
        "started as rank {} of {} by {} ({}); waiting for the remaining ranks at {}",
        mine.rank,
        mine.world_size,
        decision.starter.unwrap_or("another launcher"),
        from.join(", "),
        mine.rendezvous
    )
}

/// Returns the text of an error. For workers that did not meet it has a help line: the variables may have been set
/// for another program.
fn explain(error: &Error) -> String {
    let text = error.explain();
    match error {
        Error::Cluster(ClusterError::Rendezvous { .. }) if !text.contains("help:") => format!(
            "{text}\n  help: start all ranks at about the same time, or unset the variables of the launcher; \
             `ronde train --explain-environment` shows them, and {}=none starts a run of this process alone",
            environment::RONDE_STARTED_BY
        ),
        _ => text,
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

fn train_first(start: &MemberStart<'_>, arguments: &TrainArguments, stop: &StopFlag) -> i32 {
    let mine = start.mine;
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
    info!("{}", start.notice);
    let trained = work(start, &prepared.task, Some(outputs.tracker.clone()));
    let outcome = outcome(mine, trained, stop);
    let code = conclude(&prepared, &outcome, outputs.finish(exit_code(&outcome)));
    prepared.output.remove_temporary_files();
    code
}

fn train_other(start: &MemberStart<'_>, stop: &StopFlag) -> i32 {
    let mine = start.mine;
    match work(start, "", None) {
        Ok(_) => exit::DONE,
        Err(Error::Train(TrainError::Stopped { .. })) => 128 + stopped_by(stop),
        Err(error) => {
            message!("error: rank {}: {}", mine.rank, explain(&error));
            match is_user_error(&error) {
                true => exit::USER_ERROR,
                false => exit::GAVE_UP,
            }
        }
    }
}

/// Meets the other ranks and trains the run of rank 0.
fn work(
    start: &MemberStart<'_>,
    task: &str,
    tracker: Option<Arc<dyn Tracker>>,
) -> Result<TrainingResult, Error> {
    // Rank 0 has printed it.
    let mut is_announced = start.mine.rank == Rank(0);
    let wait = WaitSettings {
        timeout: start.limit,
        notify: &mut |message| {
            if !std::mem::replace(&mut is_announced, true) {
                info!("{}", start.notice);
            }
            info!("{message}");
        },
    };
    train_as(Worker::fixed_within(start.mine, task, wait)?, tracker)
}

fn train_as(
    mut worker: Worker,
    tracker: Option<Arc<dyn Tracker>>,
) -> Result<TrainingResult, Error> {
    if let Some(tracker) = tracker {
        worker.set_tracker(tracker);
    }
    let surroundings = environment::surroundings();
    // From here on, signals request the end of the run after the step.
    if let Err(error) = signals::stop_member_on_request(&surroundings.stop) {
        message!("note: cannot install the signal handlers: {error}");
    }
    signals::begin_supervision();
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
            let signal = stopped_by(stop);
            (JobExit::Stopped { signal }, Vec::new())
        }
        Err(error) => {
            let reported = Event::WorkerFailed {
                rank: mine.rank,
                message: explain(&error),
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

/// Returns the signal that has stopped the run: SIGTERM if only another rank has received one.
fn stopped_by(stop: &StopFlag) -> i32 {
    match stop.signal() {
        0 => SIGTERM,
        signal => signal,
    }
}

fn is_user_error(error: &Error) -> bool {
    match error {
        Error::Cluster(ClusterError::Address { .. }) => true,
        Error::Train(error) => error.is_user_error(),
        _ => false,
    }
}
