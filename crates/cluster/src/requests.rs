//! Requests of a user's command to a job: its status, its events, or a new number of workers.

use std::time::Duration;

use crate::agent::Invitation;
use crate::coordinator::CoordinatorState;
use crate::error::ClusterError;
use crate::job::{JobFolder, job_error};
use crate::journal::{self, EventLines};
use crate::long_wait::WaitSettings;
use crate::messages::{RequestBody, TokenReply};
use crate::status::{Status, StatusBoard};

/// Returns the job's status from its coordinator within `limit`.
///
/// # Errors
/// Returns [`ClusterError::NoCoordinator`] if no leading coordinator answers,
/// [`ClusterError::Refused`] for a wrong token.
pub fn status(invitation: &Invitation, limit: Duration) -> Result<Status, ClusterError> {
    match invitation.ask(&mut || RequestBody::Status, silent(limit, &mut |_| ()))? {
        TokenReply::Status(status) => Ok(*status),
        _ => Err(unexpected_reply()),
    }
}

/// Returns about 1 MiB of the lines of the job's event file from a byte on, from its coordinator within `limit`. The first
/// line, at byte 0, is the header.
///
/// # Errors
/// Errors as for [`status`], and [`ClusterError::Refused`] if the coordinator cannot read the file.
pub fn event_lines(
    invitation: &Invitation,
    from: u64,
    limit: Duration,
) -> Result<EventLines, ClusterError> {
    match invitation.ask(
        &mut || RequestBody::Events { from },
        silent(limit, &mut |_| ()),
    )? {
        TokenReply::Events(lines) => Ok(lines),
        _ => Err(unexpected_reply()),
    }
}

/// Returns the status of a folder's job from its record and its events, without a coordinator.
///
/// # Errors
/// Returns an error if the folder's files cannot be read.
pub fn status_of_folder(folder: &JobFolder) -> Result<Status, ClusterError> {
    let record = folder.record()?.unwrap_or_default();
    let mut board = StatusBoard::default();
    let path = folder.events();
    let read = std::fs::File::open(&path).and_then(|file| {
        journal::walk(&file, &mut |event| {
            event.iter().for_each(|event| board.take(event));
            true
        })
    });
    if let Err(error) = read
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(job_error(&path, error.to_string()));
    }
    let mut status = board.status(&folder.spec().job, &record.members);
    (status.phase, status.term) = (record.phase, record.term);
    let requested = CoordinatorState::read(folder)?.workers;
    status.wanted = requested.unwrap_or(folder.spec().settings.workers);
    status.generation = record.generation;
    Ok(status)
}

/// Changes the target number of workers; returns a note for the user.
///
/// # Errors
/// Errors as for [`status`], and [`ClusterError::Refused`] for a number outside the job's limits.
pub fn scale(
    invitation: &Invitation,
    workers: u32,
    wait: WaitSettings<'_>,
) -> Result<String, ClusterError> {
    match invitation.ask(&mut || RequestBody::Scale { workers }, wait)? {
        TokenReply::Done { note } => Ok(note),
        _ => Err(unexpected_reply()),
    }
}

/// Returns a wait without messages.
fn silent<'a>(timeout: Duration, notify: &'a mut dyn FnMut(String)) -> WaitSettings<'a> {
    WaitSettings { timeout, notify }
}

fn unexpected_reply() -> ClusterError {
    ClusterError::Protocol {
        problem: "the reply does not match the request".to_owned(),
    }
}
