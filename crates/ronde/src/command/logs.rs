//! `ronde logs`: shows the output of a submitted job.

use clap::Args;
use ronde_submit::LogRequest;

use super::exit;
use super::submitted::SubmittedJobs;

/// Arguments of `ronde logs`.
#[derive(Args)]
pub(crate) struct LogsArguments {
    /// Name of the job.
    job: String,
    /// Show further output until the job is over.
    #[arg(short, long)]
    follow: bool,
    /// Show what this rank has printed [default: progress and errors of the run].
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
}

pub(crate) fn logs(arguments: &LogsArguments) -> i32 {
    let request = LogRequest {
        rank: arguments.rank,
        follow: arguments.follow,
    };
    let shown = SubmittedJobs::open().and_then(|jobs| {
        let (job, target) = jobs.find(&arguments.job)?;
        target.logs(&job, request, &mut std::io::stdout())
    });
    match shown {
        Ok(()) => exit::DONE,
        Err(error) => super::submit_failure(&error),
    }
}
