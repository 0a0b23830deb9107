//! `ronde __predict_worker`: computes the chunks whose numbers it reads, and prints those that are finished.

use std::io::{BufRead as _, Write as _};
use std::sync::mpsc::{self, Receiver};

use ronde_serve::{PartFolder, ServeError};

use super::ScoringArguments;
use crate::command::console::message;
use crate::command::exit;

/// The line by which a worker reports that it can compute.
pub(super) const READY: &str = "ready";

/// Computes chunks until standard input ends, and returns the exit code. The end of the command ends standard input, and
/// thereby this process at once: what it has published is complete.
pub(crate) fn work(arguments: &ScoringArguments) -> i32 {
    let chunks = match assigned_chunks() {
        Ok(chunks) => chunks,
        Err(error) => {
            message!("error: cannot start a thread: {error}");
            return exit::GAVE_UP;
        }
    };
    match compute(arguments, &chunks) {
        Ok(()) => exit::DONE,
        Err((code, problem)) => {
            message!("{problem}");
            code
        }
    }
}

/// Starts to read the numbers of chunks from standard input.
fn assigned_chunks() -> std::io::Result<Receiver<u64>> {
    let (sender, chunks) = mpsc::channel();
    let read = move || {
        for line in std::io::stdin().lock().lines() {
            let Some(chunk) = line.ok().and_then(|line| line.parse().ok()) else {
                break;
            };
            if sender.send(chunk).is_err() {
                return;
            }
        }
        end_now();
    };
    let thread = std::thread::Builder::new().name("chunks".to_owned());
    thread.spawn(read).map(|_| chunks)
}

#[expect(clippy::disallowed_methods, reason = "the command owns its process")]
fn end_now() {
    std::process::exit(exit::DONE);
}

fn compute(arguments: &ScoringArguments, chunks: &Receiver<u64>) -> Result<(), (i32, String)> {
    let user_error = |problem| (exit::USER_ERROR, problem);
    let failed = |error: ServeError| (exit::GAVE_UP, format!("error: {error}"));
    let job = arguments.open(true).map_err(user_error)?;
    let parts = PartFolder::open(&PartFolder::path_of(&arguments.to), &job.identity);
    let parts = parts.map_err(|error| user_error(format!("error: {error}")))?;
    let mut scoring = job.scoring(parts).map_err(user_error)?;
    report(READY)?;
    // Returns when the command has ended, which ends the process as well.
    while let Ok(chunk) = chunks.recv() {
        scoring.begin(chunk).map_err(failed)?;
        loop {
            for next in chunks.try_iter() {
                scoring.begin(next).map_err(failed)?;
            }
            match scoring.finish().map_err(failed)? {
                Some(finished) => report(&finished.to_string())?,
                None => break,
            }
        }
    }
    Ok(())
}

/// Prints a line for the command.
fn report(line: &str) -> Result<(), (i32, String)> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(|error| {
            let problem = format!("error: cannot report to the command: {error}");
            (exit::GAVE_UP, problem)
        })
}
