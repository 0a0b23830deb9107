//! The `ronde` command: arguments, wiring, exit codes.

mod command;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use command::console::{ConsoleArguments, message};
use command::data::files;
use command::job::{
    autoscale, cancel, coordinator, fetch, image, job_process, jobs, join, launched, logs, scale,
    status, submit, wait, watchdog,
};
use command::model::{evaluate, export, predict, serve};
use command::run::{
    check, checkpoint, dashboard, flight, init, plan, program, sweep, trace, track, train, worker,
};
use command::tools::{bench, doctor, schema, shell};
use command::usage;
use ronde_cluster::StopFlag;

/// Distributed training whose result does not depend on the cluster.
#[derive(Parser)]
#[command(name = "ronde", version, about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: RondeCommand,
    #[command(flatten)]
    console: ConsoleArguments,
}

#[derive(Subcommand)]
enum RondeCommand {
    /// Train a model from a run file, or the embedded example without one.
    Train(train::TrainArguments),
    /// Write a commented run file as a starting point.
    Init(init::InitArguments),
    /// Validate a run file without training.
    Check(check::CheckArguments),
    /// Forecast memory, time and cost of a run for every layout, and name the best one.
    Plan(plan::PlanArguments),
    /// Print the JSON Schema of the run file, from which editors complete and check keys.
    Schema,
    /// Start any program as several ranks with rendezvous variables set.
    Run(program::RunArguments),
    /// Submit a run as a job to this machine, hosts over SSH or a cluster.
    Submit(submit::SubmitArguments),
    /// Search over settings of a run: a grid, random values or successive halving, with a job for each run.
    Sweep(sweep::SweepArguments),
    /// Write the Containerfile of the image for a run, or the image itself.
    Image(image::ImageArguments),
    /// List the submitted jobs.
    Jobs(jobs::JobsArguments),
    /// Show the output of a submitted job.
    Logs(logs::LogsArguments),
    /// Wait for the end of a submitted job, and end with its exit code.
    Wait(wait::WaitArguments),
    /// End a submitted job after a last checkpoint.
    Cancel(cancel::CancelArguments),
    /// Copy the results and logs of a submitted job to a folder.
    Fetch(fetch::FetchArguments),
    /// Start a replacement or standby coordinator.
    Coordinator(coordinator::CoordinatorArguments),
    /// Join this host to a running job.
    Join(join::JoinArguments),
    /// Change the number of workers of a running job.
    Scale(scale::ScaleArguments),
    /// Change the number of workers of a running job by its step time, its hosts and a budget.
    Autoscale(autoscale::AutoscaleArguments),
    /// Show the status of a run or job.
    Status(status::StatusArguments),
    /// Show runs in a browser: curves, ranks, members, checkpoints, logs.
    Dashboard(dashboard::DashboardArguments),
    /// Show runs in the terminal.
    Top(dashboard::TopArguments),
    /// Measure collectives, training steps or data loading.
    Bench(Box<bench::BenchArguments>),
    /// List, show, verify or export the checkpoints of a run.
    Checkpoint(checkpoint::CheckpointArguments),
    /// Inspect data files, or pack folders of images or texts into shards.
    Data(files::DataArguments),
    /// Measure a saved model on test data.
    Evaluate(evaluate::EvaluateArguments),
    /// Predict the samples of a data set with a saved model, on several workers.
    Predict(predict::PredictArguments),
    /// Answer requests for predictions and generated text of a saved model over HTTP.
    Serve(serve::ServeArguments),
    /// Write a saved model for other programs (ONNX, safetensors, PyTorch), or a run as the job of a platform.
    Export(export::ExportArguments),
    /// Send what a run has recorded for an MLflow server and not sent yet.
    Track(track::TrackArguments),
    /// Show which rank waits for which, from the flight records of a failed or hanging run.
    Flight(flight::FlightArguments),
    /// Record what all workers of a run do, and write it as a timeline for Perfetto.
    Trace(trace::TraceArguments),
    /// Check whether this host can run jobs; exit code 1 when a check fails.
    Doctor(doctor::DoctorArguments),
    /// Print a completion script for a shell.
    Completions(shell::CompletionsArguments),
    /// Print the manual page, or write those of all subcommands to a folder.
    Man(shell::ManArguments),
    /// Run one worker of `ronde train`.
    #[command(name = "__worker", hide = true)]
    Worker,
    /// Run one worker of `ronde bench`.
    #[command(name = "__bench_worker", hide = true)]
    BenchWorker,
    /// Run one worker of `ronde predict`.
    #[command(name = "__predict_worker", hide = true)]
    PredictWorker(predict::ScoringArguments),
    /// Run or inspect the process of a submitted job on this host.
    #[command(name = "__job", hide = true)]
    JobProcess(job_process::JobProcessArguments),
    /// End the processes that a killed launcher leaves behind.
    #[command(name = "__watchdog", hide = true)]
    Watchdog,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return exit_code(usage::report(&error)),
    };
    arguments.console.apply();
    exit_code(execute(arguments.command))
}

/// Runs a command line of a submitted job in this process.
fn execute_words(words: Vec<String>) -> i32 {
    let words = std::iter::once("ronde".to_owned()).chain(words);
    match Arguments::try_parse_from(words) {
        Ok(arguments) => execute(arguments.command),
        Err(error) => usage::report(&error),
    }
}

/// Runs a command and returns its exit code.
fn execute(command: RondeCommand) -> i32 {
    match command {
        RondeCommand::Train(arguments) => with_signals(|stop| train::train(arguments, stop)),
        RondeCommand::Run(arguments) => supervising(|stop| program::run(arguments, stop)),
        RondeCommand::Bench(arguments) => supervising(|stop| bench::bench(&arguments, stop)),
        RondeCommand::Coordinator(arguments) if arguments.launched => {
            launched::under_launcher(|stop| coordinator::coordinator(&arguments, stop))
        }
        RondeCommand::Coordinator(arguments) => {
            supervising(|stop| coordinator::coordinator(&arguments, stop))
        }
        RondeCommand::Autoscale(arguments) => {
            with_signals(|stop| autoscale::autoscale(&arguments, stop))
        }
        RondeCommand::Join(arguments) => with_signals(|stop| join::join(&arguments, stop)),
        RondeCommand::Plan(arguments) => plan::plan(&arguments),
        RondeCommand::Scale(arguments) => scale::scale(&arguments),
        RondeCommand::Status(arguments) => status::status(&arguments),
        RondeCommand::Evaluate(arguments) => evaluate::run(&arguments),
        RondeCommand::Predict(arguments) => with_signals(|stop| predict::run(&arguments, stop)),
        RondeCommand::PredictWorker(arguments) => predict::work(&arguments),
        RondeCommand::Serve(arguments) => with_signals(|stop| serve::run(&arguments, stop)),
        RondeCommand::Export(arguments) => export::run(&arguments),
        RondeCommand::Dashboard(arguments) => {
            showing(|stop| dashboard::dashboard(&arguments, stop))
        }
        RondeCommand::Top(arguments) => showing(|stop| dashboard::top(&arguments, stop)),
        RondeCommand::Track(arguments) => track::track(&arguments),
        RondeCommand::Flight(arguments) => flight::flight(&arguments),
        RondeCommand::Trace(arguments) => trace::trace(&arguments),
        RondeCommand::BenchWorker => bench::work(),
        RondeCommand::Checkpoint(arguments) => checkpoint::checkpoint(&arguments),
        RondeCommand::Data(arguments) => files::data(&arguments),
        RondeCommand::Check(arguments) => check::check(&arguments),
        RondeCommand::Init(arguments) => init::init(&arguments),
        RondeCommand::Schema => schema::schema(),
        RondeCommand::Doctor(arguments) => doctor::doctor(&arguments),
        RondeCommand::Completions(arguments) => {
            shell::completions(&arguments, Arguments::command())
        }
        RondeCommand::Man(arguments) => shell::man(&arguments, Arguments::command()),
        RondeCommand::Worker => worker::work(),
        RondeCommand::Submit(arguments) => submit::submit(&arguments),
        RondeCommand::Sweep(arguments) => with_signals(|stop| sweep::sweep(&arguments, stop)),
        RondeCommand::Image(arguments) => image::image(&arguments),
        RondeCommand::Jobs(arguments) => jobs::jobs(&arguments),
        RondeCommand::Logs(arguments) => logs::logs(&arguments),
        RondeCommand::Wait(arguments) => wait::wait(&arguments),
        RondeCommand::Cancel(arguments) => cancel::cancel(&arguments),
        RondeCommand::Fetch(arguments) => fetch::fetch(&arguments),
        RondeCommand::JobProcess(arguments) => job_process::run(&arguments, execute_words),
        RondeCommand::Watchdog => watchdog::watch(),
    }
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(command::exit::BUG as u8))
}

/// Runs a command with a stop flag that signals set from the beginning.
fn supervising(run: impl FnOnce(&StopFlag) -> i32) -> i32 {
    command::signals::begin_supervision();
    with_signals(run)
}

/// Runs a command that only shows something: a signal ends it soon in any case.
fn showing(run: impl FnOnce(&StopFlag) -> i32) -> i32 {
    command::signals::begin_display();
    with_signals(run)
}

/// Runs a command with a stop flag that signals set once [`command::signals::begin_supervision`] has been called.
fn with_signals(run: impl FnOnce(&StopFlag) -> i32) -> i32 {
    let stop = StopFlag::new();
    match command::signals::forward(&stop) {
        Ok(()) => run(&stop),
        Err(error) => {
            message!("error: cannot install signal handlers: {error}");
            command::exit::BUG
        }
    }
}
