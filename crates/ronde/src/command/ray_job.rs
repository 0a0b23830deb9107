//! The processes of a job on a cluster of Ray: the launcher on the node of the entrypoint, and the tasks that start an agent on
//! each other node.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use ronde::environment;
use ronde_submit::{JobPaths, RayAllocation, SubmitError};

use super::job_process::{enter_directory, finish};
use super::open;

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
    /// The Python that can import `ray`.
    #[arg(long)]
    python: String,
    /// The folder of the job.
    folder: PathBuf,
    /// The words of the launcher.
    #[arg(last = true, required = true)]
    words: Vec<String>,
}

/// Leads the job in the package that Ray has unpacked, which is the current folder.
pub(super) fn lead(
    arguments: &RayArguments,
    execute: fn(Vec<String>) -> i32,
) -> Result<i32, SubmitError> {
    // Not in a group with the shell of Ray, whose signals would reach workers before the launcher.
    let _ = rustix::process::setsid();
    let allocation = RayAllocation {
        nodes: arguments.nodes.max(1),
        slots: arguments.slots,
        cpus: arguments.cpus,
        python: arguments.python.clone(),
        head: environment::ray_head(),
    };
    let paths = JobPaths::new(&arguments.folder);
    let package = std::env::current_dir().map_err(|cause| SubmitError::File {
        action: "find",
        path: PathBuf::from("the current folder"),
        cause,
    })?;
    let command = allocation.launcher(&arguments.words, &package);
    let process = paths.process(0);
    process.prepare(&command)?;
    let guard = process.enter()?;
    enter_directory(&command.directory)?;
    let is_over = AtomicBool::new(false);
    let program = open::this_program();
    let code = std::thread::scope(|scope| {
        scope.spawn(|| {
            let is_over = || is_over.load(Ordering::SeqCst);
            let run = allocation.run_agents(Path::new(&program), &paths, &is_over);
            if let Err(error) = run {
                super::submit_failure(&error);
            }
        });
        let code = execute(command.arguments);
        is_over.store(true, Ordering::SeqCst);
        code
    });
    Ok(finish(guard, code))
}
