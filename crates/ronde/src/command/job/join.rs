//! `ronde join`: joins this host to a running job.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ronde::environment;
use ronde_cluster::{
    Agent, Invitation, LaunchSpec, LocalLauncher, LogSink, PeerAddress, StopFlag, WaitSettings,
};
use ronde_core::WorldSize;
use ronde_tracking::Terminal;
use ronde_train::WorkerTask;
use ronde_train::results::{ResultsUpload, StoredResults, UploadSource};

use crate::command::console::{console, info, message};
use crate::command::job::find::{TokenArguments, address};
use crate::command::job::open;
use crate::command::job::preemption::NoticeSource;
use crate::command::run::rank_logs::RankLogs;
use crate::command::run::rank_output::{RankPrefixLog, report_failure};
use crate::command::run::run_folder::LOGS_FOLDER;
use crate::command::{exit, signals};

/// Time limit for a coordinator to admit this host.
const LIMIT: Duration = Duration::from_secs(30);

/// Arguments of `ronde join`.
#[derive(Args)]
pub(crate) struct JoinArguments {
    /// Addresses of the job's coordinators.
    #[arg(required = true, value_name = "ADDRESS:PORT")]
    coordinators: Vec<String>,
    #[command(flatten)]
    token: TokenArguments,
    /// Maximum workers on this host.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    workers: u32,
    /// Name of this host [default: its host name]; needed when an agent of this host has joined already.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Also write what each rank prints to a file in the folder `logs` of this folder.
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    /// Make the workers of this host leave, as SIGTERM does, when this file appears, or when this address of a cloud's
    /// metadata announces the end of the host; can be repeated.
    #[arg(long, value_name = "FILE|URL")]
    drain_on: Vec<NoticeSource>,
}

/// Joins, and runs workers until the job is over. On SIGTERM the workers finish their step and leave.
pub(crate) fn join(arguments: &JoinArguments, stop: &StopFlag) -> i32 {
    let found: Result<Vec<PeerAddress>, String> = arguments
        .coordinators
        .iter()
        .map(|text| address(text))
        .collect();
    let prepared = found.and_then(|found| Ok((found, arguments.token.read()?)));
    let (addresses, token) = match prepared {
        Ok(prepared) => prepared,
        Err(message) => {
            message!("{message}");
            return exit::USER_ERROR;
        }
    };
    let invitation = Invitation {
        addresses,
        token,
        folder: None,
    };
    let host = arguments.host.clone().unwrap_or_else(open::host_name);
    let wait = WaitSettings {
        timeout: LIMIT,
        notify: &mut |message| info!("{message}"),
    };
    let joined = Agent::join(invitation, &host, arguments.workers, false, wait);
    // Before it has joined, a signal ends this process at once.
    signals::begin_supervision();
    let (agent, slots) = match (joined, WorldSize::new(arguments.workers)) {
        (Ok(agent), Some(slots)) => (agent, slots),
        (Err(error), _) => return crate::command::failure::job_failure(&error),
        (Ok(_), None) => return exit::USER_ERROR,
    };
    arguments
        .drain_on
        .iter()
        .for_each(|source| source.watch(stop));
    let terminal = Terminal::stderr(false, console().verbosity);
    let notice = format!("host {host} joined {}", agent.job());
    terminal.line(&notice);
    let mut log: Arc<dyn LogSink> = Arc::new(RankPrefixLog { stop: stop.clone() });
    let (upload, default_logs) = match start_upload(&agent, arguments.logs.as_deref()) {
        Ok(started) => started.unzip(),
        Err(problem) => {
            message!("error: cannot send the results of this host: {problem}");
            return exit::USER_ERROR;
        }
    };
    if let Some(folder) = arguments.logs.as_ref().or(default_logs.as_ref()) {
        let first = u32::try_from(agent.first_slot()).unwrap_or(u32::MAX);
        log = Arc::new(RankLogs::new(folder, first, log));
    }
    let spec = agent_spec(&agent, slots);
    let outcome = agent.supervise(&spec, &mut LocalLauncher::new(), &terminal, &log, stop);
    terminal.finish();
    report_failure(&outcome);
    let code = outcome.exit_code();
    match upload.and_then(|upload| upload.finish(None, &|note| message!("{note}"))) {
        Some(problem) => {
            message!("error: cannot send the results of this host: {problem}");
            if code == exit::DONE {
                exit::GAVE_UP
            } else {
                code
            }
        }
        None => code,
    }
}

/// Begins to send what the workers of this host write, if the run names an address: the output of its ranks, and the model,
/// which the host of rank 0 has. Also returns the folder for the output of the ranks if `logs` names none.
fn start_upload(
    agent: &Agent,
    logs: Option<&Path>,
) -> Result<Option<(ResultsUpload, PathBuf)>, String> {
    // The task of another program is not a run.
    let Ok((task, config)) = WorkerTask::decode(agent.task()) else {
        return Ok(None);
    };
    let Some(address) = config.run.output_address() else {
        return Ok(None);
    };
    let stored = StoredResults::open(&address, &environment::store_settings());
    let stored = stored.map_err(|error| error.to_string())?;
    // The worker that becomes rank 0 writes the model there.
    let created = std::fs::create_dir_all(&task.output);
    created.map_err(|error| format!("cannot create {}: {error}", task.output.display()))?;
    let logs = logs.unwrap_or(&task.output).to_owned();
    let sources = vec![
        UploadSource::Workers(task.output),
        UploadSource::Logs(logs.join(LOGS_FOLDER)),
    ];
    let upload = ResultsUpload::start(stored, sources)?;
    Ok(Some((upload, logs)))
}

/// Returns the processes that the agent starts: the job's program, or workers of `ronde train`.
pub(crate) fn agent_spec(agent: &Agent, slots: WorldSize) -> LaunchSpec {
    let ronde = open::this_program();
    let mut command = agent.command().iter().map(OsString::from);
    let (program, arguments) = match command.next() {
        Some(program) => (program, command.collect()),
        None => (ronde.clone(), vec!["__worker".into()]),
    };
    let mut spec = LaunchSpec::new(program, arguments, slots);
    agent.job().clone_into(&mut spec.job);
    agent.task().clone_into(&mut spec.task);
    spec.environment = match agent.command() {
        [] => open::own_worker(),
        _ => environment::thread_limits(),
    };
    spec.watchdog = Some((ronde, vec!["__watchdog".into()]));
    spec
}
