//! `ronde __job`: runs the process of a submitted job on the host where it is, in the folder of the process.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ronde_submit::{ProcessFolder, SubmitError};

use super::exit;

/// Arguments of `ronde __job`.
#[derive(Args)]
pub(crate) struct JobProcessArguments {
    #[command(subcommand)]
    action: JobProcessAction,
}

#[derive(Subcommand)]
enum JobProcessAction {
    /// Run the command of a folder in this process, in a session of its own.
    Run { folder: PathBuf },
}

/// Runs an action; `execute` runs a command line of `ronde` in this process.
pub(crate) fn run(arguments: &JobProcessArguments, execute: fn(Vec<String>) -> i32) -> i32 {
    let result = match &arguments.action {
        JobProcessAction::Run { folder } => run_command(&ProcessFolder::new(folder), execute),
    };
    result.unwrap_or_else(|error| super::submit_failure(&error))
}

fn run_command(
    folder: &ProcessFolder,
    execute: fn(Vec<String>) -> i32,
) -> Result<i32, SubmitError> {
    // Signals of the terminal and of its group no longer reach this process. It fails for the leader of a process
    // group, which a program that starts the command in the foreground makes it.
    let _ = rustix::process::setsid();
    let guard = folder.enter()?;
    let command = folder.command()?;
    let entered = std::env::set_current_dir(&command.directory);
    entered.map_err(|cause| SubmitError::File {
        action: "use",
        path: command.directory.clone(),
        cause,
    })?;
    let code = execute(command.arguments);
    match guard.finish(code) {
        Ok(()) => Ok(code),
        Err(error) => {
            super::submit_failure(&error);
            Ok(if code == exit::DONE {
                exit::GAVE_UP
            } else {
                code
            })
        }
    }
}
