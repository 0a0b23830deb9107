//! The `ronde` command: arguments, wiring, exit codes.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command prints to its terminal"
)]

mod command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ronde_cluster::StopFlag;

use command::{
    bench, checkpoint, coordinator, data, flight, init, join, run, scale, status, train, watchdog,
    worker,
};

/// Distributed training whose result does not depend on the cluster.
#[derive(Parser)]
#[command(name = "ronde", version, about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: RondeCommand,
}

#[derive(Subcommand)]
enum RondeCommand {
    /// Train a model from a run file, or the embedded example without one.
    Train(train::TrainArguments),
    /// Write a commented run file as a starting point.
    Init(init::InitArguments),
    /// Start any program as several ranks with rendezvous variables set.
    Run(run::RunArguments),
    /// Start a replacement or standby coordinator.
    Coordinator(coordinator::CoordinatorArguments),
    /// Join this host to a running job.
    Join(join::JoinArguments),
    /// Change the number of workers of a running job.
    Scale(scale::ScaleArguments),
    /// Show job status.
    Status(status::StatusArguments),
    /// Measure collectives, training steps or data loading.
    Bench(Box<bench::BenchArguments>),
    /// List, show, verify or export the checkpoints of a run.
    Checkpoint(checkpoint::CheckpointArguments),
    /// Inspect data files, or pack folders of images or texts into shards.
    Data(data::DataArguments),
    /// Show which rank waits for which, from the flight records of a failed or hanging run.
    Flight(flight::FlightArguments),
    /// Run one worker of `ronde train`.
    #[command(name = "__worker", hide = true)]
    Worker,
    /// Run one worker of `ronde bench`.
    #[command(name = "__bench_worker", hide = true)]
    BenchWorker,
    /// End the processes that a killed launcher leaves behind.
    #[command(name = "__watchdog", hide = true)]
    Watchdog,
}

fn main() -> ExitCode {
    // Exits with code 2 and a message when the arguments are invalid.
    let arguments = Arguments::parse();
    let code = match arguments.command {
        RondeCommand::Train(arguments) => with_signals(|stop| train::train(arguments, stop)),
        RondeCommand::Run(arguments) => with_signals(|stop| run::run(arguments, stop)),
        RondeCommand::Bench(arguments) => with_signals(|stop| bench::bench(&arguments, stop)),
        RondeCommand::Coordinator(arguments) => {
            with_signals(|stop| coordinator::coordinator(&arguments, stop))
        }
        RondeCommand::Join(arguments) => with_signals(|stop| join::join(&arguments, stop)),
        RondeCommand::Scale(arguments) => scale::scale(&arguments),
        RondeCommand::Status(arguments) => status::status(&arguments),
        RondeCommand::Flight(arguments) => flight::flight(&arguments),
        RondeCommand::BenchWorker => bench::work(),
        RondeCommand::Checkpoint(arguments) => checkpoint::checkpoint(&arguments),
        RondeCommand::Data(arguments) => data::data(&arguments),
        RondeCommand::Init(arguments) => init::init(&arguments),
        RondeCommand::Worker => worker::work(),
        RondeCommand::Watchdog => watchdog::watch(),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(command::exit::BUG as u8))
}

/// Runs a command with a stop flag that Ctrl-C and SIGTERM set.
fn with_signals(run: impl FnOnce(&StopFlag) -> i32) -> i32 {
    let stop = StopFlag::new();
    match command::signals::forward(&stop) {
        Ok(()) => run(&stop),
        Err(error) => {
            eprintln!("error: cannot install signal handlers: {error}");
            command::exit::BUG
        }
    }
}
