//! What a user's command asks of a job: its status, another count of workers.

use std::time::Duration;

use crate::agent::Invitation;
use crate::board::{Board, Status};
use crate::coordinator::State;
use crate::error::ClusterError;
use crate::job::{JobFolder, job_error};
use crate::journal;
use crate::talk::{Answer, Asks};

/// How the job is, as its coordinator says within `limit`.
///
/// # Errors
/// [`ClusterError::NoCoordinator`] when none that leads answers, [`ClusterError::Refused`] for a wrong
/// token.
pub fn status(invitation: &Invitation, limit: Duration) -> Result<Status, ClusterError> {
    match invitation.ask(&mut || Asks::Status, limit)? {
        Answer::Status(status) => Ok(*status),
        _ => Err(unfitting()),
    }
}

/// How the job of a folder is, as far as its record and its events tell: without a coordinator.
///
/// # Errors
/// The folder's files cannot be read.
pub fn status_of_folder(folder: &JobFolder) -> Result<Status, ClusterError> {
    let record = folder.record()?.unwrap_or_default();
    let mut board = Board::default();
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
    let asked_for = State::read(folder)?.workers;
    status.wanted = asked_for.unwrap_or(folder.spec().settings.workers);
    status.generation = record.generation;
    Ok(status)
}

/// Asks for another count of workers; what people should know about it comes back.
///
/// # Errors
/// As [`status`], and [`ClusterError::Refused`] for a count that the job does not take.
pub fn scale(
    invitation: &Invitation,
    workers: u32,
    limit: Duration,
) -> Result<String, ClusterError> {
    match invitation.ask(&mut || Asks::Scale { workers }, limit)? {
        Answer::Done { note } => Ok(note),
        _ => Err(unfitting()),
    }
}

fn unfitting() -> ClusterError {
    ClusterError::Protocol {
        problem: "an answer to another question".to_owned(),
    }
}
