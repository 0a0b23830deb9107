//! `ronde track`: sends what a run has recorded for an MLflow server and not sent yet.

use std::path::PathBuf;

use clap::Args;
use ronde_train::RunConfig;
use ronde_train::config::TrackSection;

use crate::command::console::{info, message};
use crate::command::exit;

/// Arguments of `ronde track`.
#[derive(Args)]
pub(crate) struct TrackArguments {
    /// Folder of a run.
    run: PathBuf,
    /// Address of the MLflow server [default: track.mlflow of the run].
    #[arg(long, value_name = "ADDRESS")]
    mlflow: Option<String>,
}

/// Sends what is left, and returns the exit code.
pub(crate) fn track(arguments: &TrackArguments) -> i32 {
    let config = match RunConfig::load(arguments.run.join("run.toml")) {
        Ok(config) => config,
        Err(error) => {
            message!("{}", error.render(false));
            return exit::USER_ERROR;
        }
    };
    let address = arguments.mlflow.as_ref().or(config.track.mlflow.as_ref());
    let Some(address) = address else {
        message!(
            "error: cannot send: the run has no track.mlflow\n  help: pass the address of the server: --mlflow ADDRESS"
        );
        return exit::USER_ERROR;
    };
    if let Some(problem) = TrackSection::mlflow_problem(address) {
        message!("error: invalid `--mlflow`: {problem}");
        return exit::USER_ERROR;
    }
    let experiment = config.track.mlflow_experiment();
    let mut sender = match ronde::mlflow::open_sender(&arguments.run, address, experiment) {
        Ok(sender) => sender,
        Err(problem) => {
            message!("error: {problem}");
            return exit::USER_ERROR;
        }
    };
    let waiting = sender.waiting();
    match sender.send(&|| false) {
        Ok(()) => {
            info!("sent {waiting} bytes of the spool");
            exit::DONE
        }
        Err(error) => {
            message!(
                "error: {error}\n  help: {} bytes are kept; try again later",
                sender.waiting()
            );
            exit::GAVE_UP
        }
    }
}
