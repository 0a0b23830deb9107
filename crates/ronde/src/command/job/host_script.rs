//! [`HostScript`]: a program that names the hosts of a job, which join and leave as it does.

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ronde_cluster::{Status, StopFlag, StopLevel};
use ronde_submit::{
    HostChange, HostDiscovery, HostSlots, JobPlacement, JobRegistry, SubmitError, SubmittedJob,
    Target,
};

use crate::command::console::info;
use crate::command::job::autoscale::LOOK_EVERY;

/// Time limit for the program.
const SCRIPT_MAX: Duration = Duration::from_secs(60);
/// Time for the workers of a host to finish their step and leave.
const GRACE: Duration = Duration::from_secs(60);
/// The largest output of a program in bytes.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;

/// A program that names the hosts of a job.
pub(crate) struct HostScript {
    path: PathBuf,
    /// The slots of a host that is named without a number.
    slots: u32,
    discovery: HostDiscovery,
    begun: Instant,
    /// The last problem that was shown.
    shown: String,
}

impl HostScript {
    pub(crate) fn new(path: &Path, slots: u32) -> Self {
        Self {
            path: path.to_owned(),
            slots,
            discovery: HostDiscovery::default(),
            begun: ronde_clock::now(),
            shown: String::new(),
        }
    }

    /// Lets the hosts that have appeared join a job, and those that have disappeared leave it. A program that fails changes
    /// nothing, and a host that cannot join is tried again later.
    pub(crate) fn follow(
        &mut self,
        registry: &JobRegistry,
        job: &mut SubmittedJob,
        target: &dyn Target,
        status: &Status,
        stop: &StopFlag,
    ) -> Result<(), SubmitError> {
        let Some(JobPlacement::Ssh { hosts, .. }) = &job.placement else {
            return Err(SubmitError::Invalid {
                problem: format!("job `{}` does not run on hosts over SSH", job.name),
                help: "leave out `--host-discovery-script`; Kubernetes and Slurm provide the hosts themselves".to_owned(),
            });
        };
        let first = hosts
            .first()
            .map_or_else(String::new, |host| host.host.clone());
        // The launcher has the name of its host, agents those by which `ssh` knows theirs.
        let agents = hosts.iter().skip(1).map(|host| host.host.clone());
        let is_connected = |name: &String| status.hosts.iter().any(|host| host.host == *name);
        let connected: Vec<String> = agents.filter(is_connected).collect();
        let output = output_within(Command::new(&self.path), SCRIPT_MAX, stop);
        let named = output.and_then(|text| {
            HostDiscovery::parse(&text, self.slots).map_err(|error| error.to_string())
        });
        let named = match named {
            Ok(named) => named,
            Err(problem) => {
                self.show(format!(
                    "{}: {problem}; the hosts stay",
                    self.path.display()
                ));
                return Ok(());
            }
        };
        let now_s = (ronde_clock::now() - self.begun).as_secs_f64();
        for change in self.discovery.changes(&named, &first, &connected, now_s) {
            if stop.level() != StopLevel::Run {
                break;
            }
            match change {
                HostChange::Join(host) => self.join(registry, job, target, &host, now_s)?,
                HostChange::Leave(host) => {
                    info!(
                        "{}: host {host} leaves: the script does not name it any more",
                        job.name
                    );
                    // A host that is gone has left.
                    if let Err(error) = target.drain_host(job, &host, GRACE) {
                        self.show(format!("host {host}: {error}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Starts an agent on a host, and notes it in the record of the job.
    fn join(
        &mut self,
        registry: &JobRegistry,
        job: &mut SubmittedJob,
        target: &dyn Target,
        host: &HostSlots,
        now_s: f64,
    ) -> Result<(), SubmitError> {
        let name = &host.host;
        match target.add_host(job, host) {
            Ok(placement) => {
                self.discovery.joined(name);
                registry.place(job, placement)?;
                info!(
                    "{}: host {name} joins with {} slots: the script names it",
                    job.name, host.slots
                );
            }
            Err(error) => {
                let wait_s = self.discovery.failed(name, now_s);
                info!(
                    "{}: host {name} cannot join, tried again in {wait_s:.0} s: {error}",
                    job.name
                );
            }
        }
        Ok(())
    }

    /// Prints a line unless it is the last one.
    fn show(&mut self, line: String) {
        if line != self.shown {
            info!("{line}");
            self.shown = line;
        }
    }
}

/// Runs a program within a time limit, or until a signal ends this command, and returns its output. The error is a message.
pub(crate) fn output_within(
    mut command: Command,
    limit: Duration,
    stop: &StopFlag,
) -> Result<String, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut output = tempfile::tempfile().map_err(text)?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone().map_err(text)?)
        .spawn()
        .map_err(|error| format!("cannot start it: {error}"))?;
    let until = ronde_clock::now() + limit;
    let ended = loop {
        if let Some(ended) = child.try_wait().map_err(text)? {
            break ended;
        }
        if ronde_clock::now() >= until || stop.level() != StopLevel::Run {
            // It may have ended just now.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("no end within {} s", limit.as_secs()));
        }
        ronde_clock::pause(LOOK_EVERY);
    };
    if !ended.success() {
        return Err(format!("it failed ({ended})"));
    }
    let mut bytes = Vec::new();
    output.rewind().map_err(text)?;
    output
        .take(OUTPUT_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(text)?;
    String::from_utf8(bytes).map_err(|_| "its output is not UTF-8".to_owned())
}
