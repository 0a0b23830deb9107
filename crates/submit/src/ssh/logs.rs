//! The output of a job on its hosts: shown once, or followed over connections that may be lost.

use std::io::Write;
use std::time::Duration;

use ronde_core::Recovery;

use super::{RemoteJob, SshTarget};
use crate::error::SubmitError;
use crate::log_frames::OutputFrameReader;
use crate::process_folder::ProcessState;
use crate::shell_words;
use crate::target::LogRequest;

/// Interval between two attempts to reach a host, and between two looks for the first output of a rank.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// Writes the output of the launcher or of a rank to `out`.
pub(super) fn logs(
    target: &SshTarget,
    job: &RemoteJob<'_>,
    request: LogRequest,
    out: &mut dyn Write,
) -> Result<(), SubmitError> {
    match request.follow {
        true => follow(target, job, request, out),
        false => show(target, job, request, out),
    }
}

/// Returns the remote command line that prints the output on a host.
fn words(job: &RemoteJob<'_>, number: usize, rank: Option<u32>, more: &[&str]) -> String {
    let folder = job.paths.folder().display().to_string();
    let (number, rank) = (number.to_string(), rank.map(|rank| rank.to_string()));
    let mut words = vec![job.program, "__job", "logs", &folder, "--host", &number];
    if let Some(rank) = &rank {
        words.extend(["--rank", rank]);
    }
    words.extend(more);
    shell_words::join(words)
}

fn show(
    target: &SshTarget,
    job: &RemoteJob<'_>,
    request: LogRequest,
    out: &mut dyn Write,
) -> Result<(), SubmitError> {
    let rank = request.rank;
    let mut unreachable = None;
    for (number, host) in job.hosts.iter().enumerate() {
        let connection = target.connection(&host.host);
        match (connection.stream(&words(job, number, rank, &[]), out), rank) {
            (Ok(0), _) => return Ok(()),
            // Another host may have the rank.
            (Ok(_), Some(_)) => {}
            (Err(error), Some(_)) => unreachable = Some(error),
            (Ok(code), None) => return Err(ended(target, &host.host, code)),
            (Err(error), None) => return Err(error),
        }
    }
    Err(unreachable.unwrap_or_else(|| no_output(rank)))
}

/// Follows the output until the job is over. After a connection that was lost, it continues where it was.
fn follow(
    target: &SshTarget,
    job: &RemoteJob<'_>,
    request: LogRequest,
    out: &mut dyn Write,
) -> Result<(), SubmitError> {
    let mut reader = OutputFrameReader::new(out);
    let mut host = request.rank.is_none().then_some(0);
    let mut is_reported = false;
    loop {
        let followed =
            match host {
                Some(number) => follow_host(target, job, number, request.rank, &mut reader)
                    .and_then(|code| match code {
                        0 => Ok(true),
                        code => Err(ended(target, &job.hosts[number].host, code)),
                    }),
                None => find_rank(target, job, request.rank, &mut reader, &mut host),
            };
        if reader.take_new() {
            is_reported = false;
        }
        match followed {
            Ok(true) => return Ok(()),
            Ok(false) => is_reported = false,
            Err(error) if error.recovery() == Recovery::Retry => {
                if !std::mem::replace(&mut is_reported, true) {
                    (request.interrupted)(&error);
                }
            }
            Err(error) => return Err(error),
        }
        ronde_clock::pause(TRY_EVERY);
    }
}

/// Follows the output on one host until the process there is over. Returns the exit code of the remote command.
fn follow_host(
    target: &SshTarget,
    job: &RemoteJob<'_>,
    number: usize,
    rank: Option<u32>,
    reader: &mut OutputFrameReader<'_>,
) -> Result<i32, SubmitError> {
    let position = reader.restart().map(|position| position.to_string());
    let mut more = vec!["--follow", "--frames"];
    if let Some(position) = &position {
        more.extend(["--after", position]);
    }
    let connection = target.connection(&job.hosts[number].host);
    connection.stream(&words(job, number, rank, &more), reader)
}

/// Looks for a rank on all hosts, and follows its output where it has printed something; then `found` is the host. Returns
/// whether the job is over.
fn find_rank(
    target: &SshTarget,
    job: &RemoteJob<'_>,
    rank: Option<u32>,
    reader: &mut OutputFrameReader<'_>,
    found: &mut Option<usize>,
) -> Result<bool, SubmitError> {
    // Looked at first, so that no output is missed.
    let is_over = target
        .process_state(job)
        .map(|state| !matches!(state, ProcessState::Running { .. }));
    let mut problem = None;
    for number in 0..job.hosts.len() {
        let code = follow_host(target, job, number, rank, reader);
        if reader.restart().is_some() {
            *found = Some(number);
        }
        match code {
            Ok(0) => return Ok(true),
            // The rank has printed nothing on this host.
            Ok(_) => {}
            Err(error) if found.is_some() => return Err(error),
            Err(error) => problem = Some(error),
        }
    }
    match (is_over?, problem) {
        (_, Some(error)) => Err(error),
        (true, None) => Err(no_output(rank)),
        (false, None) => Ok(false),
    }
}

fn ended(target: &SshTarget, host: &str, code: i32) -> SubmitError {
    let connection = target.connection(host);
    connection.failed(format!("`ronde __job logs` ended with exit code {code}"))
}

fn no_output(rank: Option<u32>) -> SubmitError {
    SubmitError::invalid(
        format!("rank {} has printed nothing", rank.unwrap_or(0)),
        "`ronde logs JOB` without `--rank` shows progress and errors",
    )
}
