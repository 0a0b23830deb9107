//! The `ronde` command: arguments, wiring, exit codes.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command talks to its user"
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
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model as a run file says; without a file, the embedded example.
    Train(train::TrainArguments),
    /// Write a commented run file to start from.
    Init(init::InitArguments),
    /// Start any program as several ranks that can find each other.
    Run(run::RunArguments),
    /// Lead a job that has a folder: the one that leads it died, or should stand by.
    Coordinator(coordinator::CoordinatorArguments),
    /// Bring this host into a job that runs elsewhere.
    Join(join::JoinArguments),
    /// Change how many workers a running job has.
    Scale(scale::ScaleArguments),
    /// Show how a job is: members, steps, times, the slowest rank.
    Status(status::StatusArguments),
    /// Measure collectives between worker processes, and compare them with Gloo and Open MPI.
    Bench(Box<bench::BenchArguments>),
    /// Look at the checkpoints of a run: list, show, verify, export.
    Checkpoint(checkpoint::CheckpointArguments),
    /// Look at files of samples, and pack folders of images or texts into shards.
    Data(data::DataArguments),
    /// Say which rank waits for which, from the records of a run that failed or hangs.
    Flight(flight::FlightArguments),
    /// One worker of a run.
    #[command(name = "__worker", hide = true)]
    Worker,
    /// One worker of a measurement.
    #[command(name = "__bench_worker", hide = true)]
    BenchWorker,
    /// Ends what a killed launcher leaves behind.
    #[command(name = "__watchdog", hide = true)]
    Watchdog,
}

fn main() -> ExitCode {
    // Ends with exit code 2 and a message when the arguments are wrong.
    let arguments = Arguments::parse();
    let code = match arguments.command {
        Command::Train(arguments) => with_signals(|stop| train::train(arguments, stop)),
        Command::Run(arguments) => with_signals(|stop| run::run(arguments, stop)),
        Command::Bench(arguments) => with_signals(|stop| bench::bench(&arguments, stop)),
        Command::Coordinator(arguments) => {
            with_signals(|stop| coordinator::coordinator(&arguments, stop))
        }
        Command::Join(arguments) => with_signals(|stop| join::join(&arguments, stop)),
        Command::Scale(arguments) => scale::scale(&arguments),
        Command::Status(arguments) => status::status(&arguments),
        Command::Flight(arguments) => flight::flight(&arguments),
        Command::BenchWorker => bench::work(),
        Command::Checkpoint(arguments) => checkpoint::checkpoint(&arguments),
        Command::Data(arguments) => data::data(&arguments),
        Command::Init(arguments) => init::init(&arguments),
        Command::Worker => worker::work(),
        Command::Watchdog => watchdog::watch(),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(command::exit::BUG as u8))
}

/// Runs a command that Ctrl-C and SIGTERM ask to stop; a second one insists.
fn with_signals(run: impl FnOnce(&StopFlag) -> i32) -> i32 {
    let stop = StopFlag::new();
    match command::signals::forward(&stop) {
        Ok(()) => run(&stop),
        Err(error) => {
            eprintln!("error: signals cannot be handled: {error}");
            command::exit::BUG
        }
    }
}
