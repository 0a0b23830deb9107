//! `ronde trace`: records what all workers of a run do, and writes it as a timeline.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ronde_tracking::{RunTimeline, is_running};
use ronde_train::recording::RecordingRequest;

use crate::command::console::message;
use crate::command::exit;
use crate::command::job::find::newest_run;
use crate::command::pasted::path_word;
use crate::command::run::run_folder::EVENT_FILE;

/// The time that workers have to notice a request, and to write the last spans at the end.
const NOTICE: Duration = Duration::from_millis(600);
/// Name of the timeline in the folder of a recording.
const TIMELINE: &str = "trace.json";

/// Arguments of `ronde trace`.
#[derive(Args)]
pub(crate) struct TraceArguments {
    /// Folder of a run [default: the newest run in `runs`].
    run: Option<PathBuf>,
    /// Record a running run from now on, until `--stop` or its end.
    #[arg(long, conflicts_with_all = ["stop", "seconds"])]
    start: bool,
    /// Stop recording, and write the timeline.
    #[arg(long, conflicts_with = "seconds")]
    stop: bool,
    /// Record a running run for a time, such as `10s` or `500ms`, and write the timeline.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    seconds: Option<Duration>,
    /// File for the timeline [default: `trace/trace.json` in the run's folder].
    #[arg(long, value_name = "FILE", conflicts_with = "start")]
    to: Option<PathBuf>,
}

/// Reads a time with its unit.
fn duration(text: &str) -> Result<Duration, String> {
    let expected = "expected a time from 100ms to 24h, such as `10s`, `500ms` or `2min`";
    let split = text.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(split.ok_or(expected)?);
    let factor = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(expected.to_owned()),
    };
    let seconds = number.parse::<f64>().map_err(|_| expected)? * factor;
    match (0.1..=86_400.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(expected.to_owned()),
    }
}

/// Records a run or writes its timeline.
pub(crate) fn trace(arguments: &TraceArguments) -> i32 {
    match traced(arguments) {
        Ok(()) => exit::DONE,
        Err(message) => {
            message!("{message}");
            exit::USER_ERROR
        }
    }
}

/// # Errors
/// A message with a help line.
fn traced(arguments: &TraceArguments) -> Result<(), String> {
    let run = match &arguments.run {
        Some(run) => run.clone(),
        None => newest_run().ok_or("error: no run in runs\n  help: pass the folder of a run")?,
    };
    if !run.join(EVENT_FILE).is_file() {
        return Err(format!(
            "error: {} is not the folder of a run: it has no file {EVENT_FILE}\n  \
             help: pass the folder of a run, such as runs/digits",
            run.display()
        ));
    }
    if arguments.start {
        request(&run, None)?;
        message!(
            "recording {}; `ronde trace {} --stop` stops it",
            run.display(),
            path_word(&run)
        );
        return Ok(());
    }
    if let Some(limit) = arguments.seconds {
        request(&run, Some(limit))?;
        message!(
            "recording {} for {:.1} s",
            run.display(),
            limit.as_secs_f64()
        );
        ronde_clock::pause(limit);
    }
    if arguments.stop || arguments.seconds.is_some() {
        let stopped = RecordingRequest::withdraw(&run);
        let was_active = stopped.map_err(|error| cannot("stop recording", &run, &error))?;
        if arguments.stop && !was_active {
            return Err(format!(
                "error: {} is not being recorded\n  help: `ronde trace {} --start` starts a recording",
                run.display(),
                path_word(&run)
            ));
        }
        if is_running(&run) {
            ronde_clock::pause(NOTICE);
        }
    }
    export(&run, arguments.to.as_deref())
}

/// Requests a recording of a run that is under way.
fn request(run: &Path, limit: Option<Duration>) -> Result<(), String> {
    if !is_running(run) {
        return Err(format!(
            "error: cannot record {}: the run is not under way on this host\n  \
             help: `ronde train --trace` records a run from its start",
            run.display()
        ));
    }
    if RecordingRequest::read(run).is_some_and(|request| request.is_active()) {
        return Err(format!(
            "error: {} is being recorded already\n  help: `ronde trace {} --stop` stops it",
            run.display(),
            path_word(run)
        ));
    }
    let submitted = RecordingRequest::submit(run, limit);
    submitted.map_err(|error| cannot("record", run, &error))?;
    Ok(())
}

/// Writes the timeline of a run's recording.
fn export(run: &Path, to: Option<&Path>) -> Result<(), String> {
    let folder = run.join(RecordingRequest::FOLDER);
    let files = match RunTimeline::files(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(cannot("read the recording of", run, &error));
        }
        files => files.unwrap_or_default(),
    };
    if files.is_empty() {
        return Err(format!(
            "error: {} has no recording\n  \
             help: `ronde trace {} --for 10s` records a run that is under way, and `ronde train --trace` one from its \
             start",
            run.display(),
            path_word(run)
        ));
    }
    let timeline = RunTimeline::read(&files);
    let timeline = timeline.map_err(|error| cannot("read the recording of", run, &error))?;
    let default = folder.join(TIMELINE);
    let to = to.unwrap_or(&default);
    let written = File::create(to).and_then(|file| timeline.write_chrome(BufWriter::new(file)));
    written.map_err(|error| {
        format!(
            "error: cannot write the timeline to {}: {error}\n  help: choose another file with `--to FILE`",
            to.display()
        )
    })?;
    message!(
        "{}: {} spans of {} ranks in {:.1} s{}{}",
        to.display(),
        timeline.spans(),
        timeline.ranks().count(),
        timeline.duration_s(),
        match timeline.clock_error_ns {
            0 => String::new(),
            error => format!("; clocks differ by at most {:.1} us", error as f64 / 1e3),
        },
        match timeline.dropped {
            0 => String::new(),
            dropped => format!("; {dropped} more spans were dropped"),
        }
    );
    message!(
        "  open it at https://ui.perfetto.dev or in chrome://tracing; it stays on this computer"
    );
    Ok(())
}

fn cannot(action: &str, run: &Path, error: &std::io::Error) -> String {
    let shown = run.display();
    format!("error: cannot {action} {shown}: {error}\n  help: check the folder {shown}/trace")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_limits() {
        for (text, ms) in [
            ("10s", 10_000),
            ("500ms", 500),
            ("1.5min", 90_000),
            ("24h", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "", "10", "s", "-1s", "0s", "1ms", "25h", "1e9h", "NaNs", "infs", "1 parsec",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
