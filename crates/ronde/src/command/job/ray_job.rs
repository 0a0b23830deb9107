//! The processes of a job on a cluster of Ray: the launcher on the node of the entrypoint, and the tasks that start an agent on
//! each other node.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use ronde::environment;
use ronde_submit::{JobPaths, RayAllocation, SubmitError};

use crate::command::job::job_process::{enter_directory, finish};
use crate::command::job::open;

/// Arguments of the entrypoint of a job.
#[derive(Args)]
pub(crate) struct RayArguments {
    /// The number of nodes.
    #[arg(long)]
    nodes: u32,
    /// The maximum number of workers on a node.
    #[arg(long)]
    slots: u32,
    /// The processors of a node.
    #[arg(long)]
    cpus: u32,
    /// The GPUs of a node.
    #[arg(long, default_value_t = 0)]
    gpus: u32,
    /// The bytes of memory of a node; 0: not reserved.
    #[arg(long, default_value_t = 0)]
    memory: u64,
    /// The Python that can import `ray`.
    #[arg(long)]
    python: String,
    /// The program on the other nodes; absent in the command of Ray, whose program stores itself in the folder of the job.
    #[arg(long)]
    program: Option<PathBuf>,
    /// Where the end of a node is announced.
    #[arg(long)]
    drain_on: Vec<String>,
    /// The folder of the job.
    folder: PathBuf,
    /// The words of the launcher.
    #[arg(last = true, required = true)]
    words: Vec<String>,
}

/// Runs this command again, with the program that is stored in the folder of the job.
fn run_stored_program(arguments: &RayArguments, paths: &JobPaths) -> Result<i32, SubmitError> {
    let unpacked = current_folder()?;
    let (package, program) = ronde_submit::keep_package(&unpacked, &arguments.words, paths)?;
    let mut command = Command::new(&program);
    command.current_dir(&package).args(["__job", "ray"]);
    for (name, number) in [
        ("--nodes", arguments.nodes.into()),
        ("--slots", arguments.slots.into()),
        ("--cpus", arguments.cpus.into()),
        ("--gpus", arguments.gpus.into()),
        ("--memory", arguments.memory),
    ] {
        command.arg(name).arg(number.to_string());
    }
    command.arg("--python").arg(&arguments.python);
    for source in &arguments.drain_on {
        command.arg(format!("--drain-on={source}"));
    }
    command.arg("--program").arg(open::path_of_this_program());
    command.arg(&arguments.folder).arg("--");
    let cause = command.args(&arguments.words).exec();
    Err(SubmitError::File {
        action: "start",
        path: program,
        cause,
    })
}

fn current_folder() -> Result<PathBuf, SubmitError> {
    std::env::current_dir().map_err(|cause| SubmitError::File {
        action: "find",
        path: PathBuf::from("the current folder"),
        cause,
    })
}

/// Leads the job in the folder of its program and inputs, which is the current folder.
pub(crate) fn lead(
    arguments: &RayArguments,
    execute: fn(Vec<String>) -> i32,
) -> Result<i32, SubmitError> {
    let paths = JobPaths::new(&arguments.folder);
    let Some(program) = &arguments.program else {
        return run_stored_program(arguments, &paths);
    };
    // Not in a group with the shell of Ray, whose signals would reach workers before the launcher.
    let _ = rustix::process::setsid();
    let allocation = RayAllocation {
        nodes: arguments.nodes.max(1),
        slots: arguments.slots,
        cpus: arguments.cpus,
        gpus: arguments.gpus,
        memory: arguments.memory,
        python: arguments.python.clone(),
        head: environment::ray_head(),
        drain_on: arguments.drain_on.clone(),
    };
    let package = current_folder()?;
    let command = allocation.launcher(&arguments.words, &package);
    let process = paths.process(0);
    process.prepare(&command)?;
    let guard = process.enter()?;
    enter_directory(&command.directory)?;
    let is_over = AtomicBool::new(false);
    let code = std::thread::scope(|scope| {
        scope.spawn(|| {
            let is_over = || is_over.load(Ordering::SeqCst);
            let run = allocation.run_agents(program, &paths, &is_over);
            if let Err(error) = run {
                crate::command::failure::submit_failure(&error);
            }
        });
        let code = execute(command.arguments);
        is_over.store(true, Ordering::SeqCst);
        code
    });
    ronde_submit::remove_package(&paths);
    Ok(finish(guard, code))
}
