//! `ronde check`: validates a run file against its data and this host, without training.

use std::path::PathBuf;

use clap::Args;
use ronde_train::config::Override;

use super::console::{message, print};
use super::exit;
use super::start_error::StartError;
use super::train::{PlanRequest, plan};

/// Arguments of `ronde check`.
#[derive(Args)]
pub(crate) struct CheckArguments {
    /// Run file.
    file: PathBuf,
    /// Override a value of the run file, such as `--set train.epochs=3`; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

pub(crate) fn check(arguments: &CheckArguments) -> i32 {
    let request = PlanRequest {
        file: Some(&arguments.file),
        overrides: arguments.sets.iter().cloned().map(Override::Set).collect(),
        ..PlanRequest::default()
    };
    match plan(&request) {
        Ok(planned) => {
            let notices = planned.run_file_notices();
            if !notices.is_empty() {
                message!("{notices}");
            }
            print(planned.summary())
        }
        Err(StartError::Invalid(problem) | StartError::Finished(problem)) => {
            message!("{problem}");
            exit::USER_ERROR
        }
    }
}
