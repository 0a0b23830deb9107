//! The processes of a job in an allocation of Slurm: the launcher on the first node, an agent on each other one.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ronde::environment;
use ronde_submit::{JobPaths, SlurmAllocation, SubmitError};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::SIGTERM;

use crate::command::console::message;
use crate::command::exit;
use crate::command::job::job_process::{enter_directory, finish};
use crate::command::job::open;

/// Interval at which a launcher looks whether it still leads its job.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Leads the job. After SIGTERM, at the time limit or a preemption, the job is queued again and resumes from the checkpoint
/// that the launcher has saved.
pub(crate) fn lead(
    paths: &JobPaths,
    slots: u32,
    execute: fn(Vec<String>) -> i32,
) -> Result<i32, SubmitError> {
    let allocation = allocation()?;
    let process = paths.process(0);
    if !allocation.claim(paths)? {
        message!(
            "this script was sent to Slurm twice: another job of Slurm has its folder, and this one ends"
        );
        return Ok(exit::GAVE_UP);
    }
    allocation.lead(paths)?;
    let waiting = || {
        message!(
            "the launcher of an earlier allocation still runs on a node that Slurm has lost; waiting for its last checkpoint"
        );
    };
    if let Some(code) = allocation.wait_for_earlier(paths, &waiting)? {
        return Ok(code);
    }
    allocation.start_heartbeat(paths)?;
    let guard = process.enter()?;
    let command = process.command()?;
    enter_directory(&command.directory)?;
    let words = allocation.launcher(paths, &command)?;
    let is_over = AtomicBool::new(false);
    let program = open::this_program();
    let code = std::thread::scope(|scope| {
        scope.spawn(|| end_when_replaced(&allocation, paths, &is_over));
        scope.spawn(|| {
            let is_over = || is_over.load(Ordering::SeqCst);
            let run = allocation.run_agents(Path::new(&program), paths, slots, &is_over);
            if let Err(error) = run {
                crate::command::failure::submit_failure(&error);
            }
        });
        let code = execute(words);
        is_over.store(true, Ordering::SeqCst);
        code
    });
    let code = finish(guard, code);
    if code == 128 + SIGTERM && !allocation.is_replaced(paths) {
        allocation.queue_again(paths)?;
    }
    Ok(code)
}

/// Ends this launcher after a checkpoint when one of a later allocation leads the job.
fn end_when_replaced(allocation: &SlurmAllocation, paths: &JobPaths, is_over: &AtomicBool) {
    while !is_over.load(Ordering::SeqCst) {
        if allocation.is_replaced(paths) {
            message!("Slurm has started this job on another node: saving a checkpoint");
            // The launcher handles the signal, or has ended.
            let _ = kill_process(getpid(), Signal::TERM);
            return;
        }
        ronde_clock::pause(LOOK_EVERY);
    }
}

/// Joins the job on a further node as soon as its coordinator listens. If the first node is lost, queues the job again.
pub(crate) fn join(
    paths: &JobPaths,
    slots: u32,
    since: u64,
    execute: fn(Vec<String>) -> i32,
) -> Result<i32, SubmitError> {
    let allocation = allocation()?;
    let heartbeat = allocation.start_agent_heartbeat(paths)?;
    let (ended, address) = (OnceLock::new(), OnceLock::<String>::new());
    let is_watched = AtomicBool::new(true);
    let agent = || ended.get().copied();
    let coordinator = || address.get().cloned();
    let report = |text: &str| message!("{text}");
    let code = std::thread::scope(|scope| {
        scope.spawn(|| {
            allocation.watch_launcher(paths, &coordinator, &agent, &report);
            is_watched.store(false, Ordering::SeqCst);
        });
        // The run may be over before, or the launcher lost.
        let is_over = || !is_watched.load(Ordering::SeqCst);
        let code = match allocation.wait_for_coordinator(paths, since, &is_over) {
            Some(found) => execute(allocation.agent(paths, slots, address.get_or_init(|| found))),
            None if paths.process(0).is_over() => exit::DONE,
            None => exit::GAVE_UP,
        };
        *ended.get_or_init(|| code)
    });
    heartbeat.end(code);
    Ok(code)
}

fn allocation() -> Result<SlurmAllocation, SubmitError> {
    environment::slurm_allocation().map_err(|problem| SubmitError::Invalid {
        problem,
        help: "`ronde submit --on TARGET` starts this command in an allocation".to_owned(),
    })
}
