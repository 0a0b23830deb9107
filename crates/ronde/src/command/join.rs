//! `ronde join`: joins this host to a running job.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ronde::environment;
use ronde_cluster::{Agent, Invitation, LaunchSpec, LocalLauncher, LogSink, StopFlag};
use ronde_core::WorldSize;
use ronde_monitor::Terminal;

use super::job::{TokenArguments, addresses};
use super::rank_logs::RankLogs;
use super::rank_output::{RankPrefixLog, report_failure};
use super::{exit, open};
use crate::command::console::{console, message};

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
}

/// Joins, and runs workers until the job is over. On SIGTERM the workers finish their step and leave.
pub(crate) fn join(arguments: &JoinArguments, stop: &StopFlag) -> i32 {
    let found: Result<Vec<Vec<SocketAddr>>, String> = arguments
        .coordinators
        .iter()
        .map(|text| addresses(text))
        .collect();
    let prepared = found.and_then(|found| Ok((found.concat(), arguments.token.read()?)));
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
    let joined = Agent::join(invitation, &host, arguments.workers, false, LIMIT);
    let (agent, slots) = match (joined, WorldSize::new(arguments.workers)) {
        (Ok(agent), Some(slots)) => (agent, slots),
        (Err(error), _) => return super::job_failure(&error),
        (Ok(_), None) => return exit::USER_ERROR,
    };
    let terminal = Terminal::stderr(false, console().verbosity);
    let notice = format!("host {host} joined {}", agent.job());
    terminal.line(&notice);
    let mut log: Arc<dyn LogSink> = Arc::new(RankPrefixLog { stop: stop.clone() });
    if let Some(folder) = &arguments.logs {
        let first = u32::try_from(agent.first_slot()).unwrap_or(u32::MAX);
        log = Arc::new(RankLogs::new(folder, first, log));
    }
    let spec = agent_spec(&agent, slots);
    let outcome = agent.supervise(&spec, &mut LocalLauncher::new(), &terminal, &log, stop);
    terminal.finish();
    report_failure(&outcome);
    outcome.exit_code()
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
