//! The subcommands, one file each.

pub(crate) mod autoscale;
pub(crate) mod bench;
pub(crate) mod cancel;
mod capacity;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod console;
pub(crate) mod coordinator;
pub(crate) mod dashboard;
pub(crate) mod data;
mod data_progress;
pub(crate) mod doctor;
pub(crate) mod evaluate;
pub(crate) mod exit;
pub(crate) mod export;
mod export_platform;
pub(crate) mod fetch;
pub(crate) mod flight;
mod hang_up;
mod host_script;
pub(crate) mod image;
pub(crate) mod init;
pub(crate) mod job;
pub(crate) mod job_process;
pub(crate) mod jobs;
pub(crate) mod join;
mod kubernetes_pod;
pub(crate) mod launched;
mod layout_arguments;
mod layouts;
pub(crate) mod logs;
mod loss_plot;
mod model_data;
mod model_names;
pub(crate) mod open;
mod pasted;
pub(crate) mod plan;
mod pod_leader;
pub(crate) mod predict;
mod preemption;
mod progress_output;
mod rank_logs;
mod rank_output;
mod ray_job;
mod resume;
pub(crate) mod run;
mod run_base;
mod run_folder;
mod run_position;
mod run_status;
pub(crate) mod scale;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod shell;
pub(crate) mod signals;
mod slurm_job;
mod start_error;
pub(crate) mod status;
mod stored_results;
pub(crate) mod submit;
mod submitted;
pub(crate) mod sweep;
pub(crate) mod trace;
pub(crate) mod track;
pub(crate) mod train;
pub(crate) mod usage;
pub(crate) mod wait;
pub(crate) mod watchdog;
pub(crate) mod worker;

use std::io::ErrorKind;

use ronde_cluster::ClusterError;
use ronde_core::Recovery;
use ronde_submit::SubmitError;

use console::message;

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
