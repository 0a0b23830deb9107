//! `ronde check`: validates a run file, and reads a sample of its data as training does, without training.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use ronde_data::{OpenedPart, ReadLimit, SamplesRead, read_samples};
use ronde_tracking::render::count;
use ronde_train::config::Override;

use crate::command::console::{message, print};
use crate::command::exit;
use crate::command::run::start_error::StartError;
use crate::command::run::train::{PlanRequest, PlannedRun, plan};

/// The maximum number of files that are read of training data, and of test data.
const FILES_MAX: usize = 200;
/// The time for reading data.
const TIME: Duration = Duration::from_secs(10);
/// The further time after which an operation is given up that does not end.
const GRACE: Duration = Duration::from_secs(5);

/// Arguments of `ronde check`.
#[derive(Args)]
pub(crate) struct CheckArguments {
    /// Run file.
    file: PathBuf,
    /// Override a value of the run file, such as `--set train.epochs=3`; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

pub(crate) fn check(arguments: &CheckArguments) -> i32 {
    let limit = Arc::new(ReadLimit::new(FILES_MAX, TIME));
    let request = PlanRequest {
        file: Some(&arguments.file),
        overrides: arguments.sets.iter().cloned().map(Override::Set).collect(),
        limit: Some(Arc::clone(&limit)),
        ..PlanRequest::default()
    };
    let planned = match plan(&request) {
        Ok(planned) => planned,
        Err(StartError::Invalid(problem) | StartError::Finished(problem)) => {
            message!("{problem}");
            return exit::USER_ERROR;
        }
    };
    let notices = planned.run_file_notices();
    if !notices.is_empty() {
        message!("{notices}");
    }
    match read(&planned, &limit) {
        Ok(sets) => {
            if let Some(note) = planned.output_note() {
                message!("{note}");
            }
            print(report(&planned, &sets))
        }
        Err(problem) => {
            message!("{problem}");
            exit::USER_ERROR
        }
    }
}

/// Runs a function in a thread, and returns its result; `None` if it has not ended some seconds after the time. The thread ends with
/// the process then.
pub(crate) fn within<T: Send + 'static>(
    time: Duration,
    run: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name("check".to_owned());
    let spawned = thread.spawn(move || {
        // No receiver is left when the time is over.
        let _ = sender.send(run());
    });
    spawned.ok()?;
    receiver.recv_timeout(time + GRACE).ok()
}

/// What was read of a data set.
struct SetRead {
    /// What the samples are for.
    what: &'static str,
    samples_total: u64,
    opened: Option<OpenedPart>,
    read: SamplesRead,
}

/// Reads samples of the training data and of the test data.
fn read(planned: &PlannedRun, limit: &ReadLimit) -> Result<Vec<SetRead>, String> {
    let split = planned.split();
    let train = ("training", Arc::clone(&split.train));
    let test = split.test.as_ref().map(|test| ("test", Arc::clone(test)));
    let mut sets = Vec::new();
    let mut left = 1 + u32::from(test.is_some());
    for (what, dataset) in std::iter::once(train).chain(test) {
        let time = limit.left() / left;
        left -= 1;
        let (samples_total, opened) = (dataset.len(), dataset.description().opened);
        let skip_limit = dataset.description().bad_records.skip_limit;
        let check = planned.sample_check(&*dataset);
        let read = within(time, move || read_samples(&*dataset, time, &check)).ok_or_else(|| {
            format!(
                "error: cannot check the {what} data: its samples were not read in the time for it\n  help: `ronde train` \
                 waits longer; see data.retry_s for files on other machines"
            )
        })?;
        let read = read.map_err(|error| format!("error: {error}"))?;
        if let (Some(limit), Some(first)) = (skip_limit, &read.first_bad)
            && read.is_all
            && read.bad as f64 > limit * read.samples as f64
        {
            return Err(format!(
                "error: {} of {} {what} samples are bad, more than data.bad_record_limit = {limit} allows; the first: {first}\n  \
                 help: use other files, or raise data.bad_record_limit",
                count(read.bad),
                count(read.samples)
            ));
        }
        sets.push(SetRead {
            what,
            samples_total,
            opened,
            read,
        });
    }
    Ok(sets)
}

/// Describes a run without a mistake: it is valid only if all of its data was read.
fn report(planned: &PlannedRun, sets: &[SetRead]) -> String {
    let is_all = sets.iter().all(|set| set.read.is_all);
    let verdict = match is_all {
        true => "is valid",
        false => "has no mistake in what was read of its data",
    };
    let mut text = format!("{} {verdict}: {}", planned.name(), planned.summary());
    for set in sets {
        let of = match (set.read.is_all, set.opened) {
            (true, _) => "all ".to_owned(),
            (false, None) => format!("{} of ", count(set.read.samples)),
            (false, Some(_)) => format!("{} of about ", count(set.read.samples)),
        };
        text += &format!(
            "\nread: {of}{} {} samples",
            count(set.samples_total),
            set.what
        );
        if let Some(part) = set.opened {
            text += &format!(
                " from {} of {} files",
                count(part.files as u64),
                count(part.files_total as u64)
            );
            if part.unfinished > 0 {
                text += &format!(", {} of them not to the end", count(part.unfinished as u64));
            }
        }
        if let Some(first) = &set.read.first_bad {
            text += &format!("; {} bad, the first: {first}", count(set.read.bad));
        }
    }
    if !is_all {
        text += &format!(
            "\nnot read: the rest; `check` reads at most {FILES_MAX} files and {} seconds",
            TIME.as_secs()
        );
    }
    text
}
