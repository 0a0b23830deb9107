//! The subcommands, one file each.

pub(crate) mod bench;
pub(crate) mod checkpoint;
pub(crate) mod coordinator;
pub(crate) mod data;
mod data_news;
pub(crate) mod exit;
pub(crate) mod flight;
mod front;
pub(crate) mod init;
pub(crate) mod job;
pub(crate) mod join;
mod last;
pub(crate) mod open;
pub(crate) mod output;
mod resume;
mod room;
pub(crate) mod run;
pub(crate) mod scale;
pub(crate) mod signals;
pub(crate) mod status;
pub(crate) mod train;
pub(crate) mod watchdog;
pub(crate) mod worker;

use ronde_cluster::ClusterError;
use ronde_core::Recovery;

/// Tells why nothing came of a command about a job, and how the command ends.
pub(crate) fn job_failure(error: &ClusterError) -> i32 {
    match error {
        ClusterError::Refused { reason } => eprintln!("error: the coordinator says no: {reason}"),
        error => eprintln!("error: {error}"),
    }
    match error {
        ClusterError::Refused { .. } | ClusterError::Job { .. } => exit::USER_ERROR,
        ClusterError::Over { is_finished, .. } => {
            if !is_finished {
                eprintln!("  hint: `ronde train --resume RUN` goes on from its last checkpoint");
            }
            exit::USER_ERROR
        }
        ClusterError::Store { source } if source.recovery() == Recovery::Abort => exit::USER_ERROR,
        ClusterError::NoCoordinator { .. } => {
            eprintln!(
                "  hint: `ronde status FOLDER` tells on the job's first host whether the job is over; if it is \
                 not, `ronde coordinator --job FOLDER` starts another coordinator there"
            );
            exit::GAVE_UP
        }
        _ => exit::GAVE_UP,
    }
}
