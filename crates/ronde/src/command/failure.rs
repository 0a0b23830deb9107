//! Prints why a command about a job failed.

use std::io::ErrorKind;

use ronde_cluster::ClusterError;
use ronde_core::Recovery;
use ronde_submit::SubmitError;

use super::console::message;
use super::exit;

/// Prints why a command about a job failed, and returns its exit code.
pub(crate) fn job_failure(error: &ClusterError) -> i32 {
    match error {
        ClusterError::Refused { reason } => message!("error: the coordinator refused: {reason}"),
        error => message!("error: {error}"),
    }
    match error {
        ClusterError::Refused { .. } | ClusterError::Job { .. } => exit::USER_ERROR,
        ClusterError::Over { is_finished, .. } => {
            if !is_finished {
                message!("  help: `ronde train --resume RUN` resumes from its last checkpoint");
            }
            exit::USER_ERROR
        }
        ClusterError::Listen { .. } => {
            message!(
                "  help: choose an address of this host and a free port, such as `--listen=127.0.0.1`; without a port, \
                 a free one is chosen"
            );
            exit::USER_ERROR
        }
        ClusterError::Store { source } if source.recovery() == Recovery::Abort => {
            message!(
                "  help: choose a folder or an address that this user can write; `--record` names the store of the job"
            );
            exit::USER_ERROR
        }
        ClusterError::NoCoordinator { .. } => {
            message!(
                "  help: on the job's first host, `ronde status FOLDER` shows whether the job is over; if it is \
                 not, `ronde coordinator --job FOLDER` starts another coordinator"
            );
            exit::GAVE_UP
        }
        _ => exit::GAVE_UP,
    }
}

/// Prints why a submitted job cannot be used, and returns the exit code.
pub(crate) fn submit_failure(error: &SubmitError) -> i32 {
    message!("error: {error}");
    match error {
        SubmitError::EndedEarly { code, .. } => *code,
        SubmitError::Invalid { .. } | SubmitError::Damaged { .. } => exit::USER_ERROR,
        SubmitError::File { cause, .. } if cause.kind() == ErrorKind::NotFound => exit::USER_ERROR,
        error if error.recovery() == Recovery::Retry => exit::GAVE_UP,
        SubmitError::Host { .. } => exit::USER_ERROR,
        _ => exit::GAVE_UP,
    }
}
