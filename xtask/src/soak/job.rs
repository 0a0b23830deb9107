//! [`SoakJob`]: one run of the built program, and its events.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::hosts::{CableCut, NamespacePair};
use super::layout::JobLayout;

/// The time limit for a coordinator to listen.
const LISTENS_MAX: Duration = Duration::from_secs(60);
/// The log files of the launcher and of the other host's agent.
const LOGS: [&str; 2] = ["stderr.log", "joined.log"];

/// A run that may be in progress.
pub(super) struct SoakJob {
    child: Child,
    /// The agent of the other host.
    joined: Option<Child>,
    lines: Receiver<String>,
    folder: PathBuf,
    hosts: Option<NamespacePair>,
    cut: Option<CableCut>,
}

impl SoakJob {
    /// Starts `ronde train` with the run file of a folder and `workers` workers; logs are written to the folder.
    pub(super) fn start(
        ronde: &Path,
        folder: &Path,
        workers: u32,
        layout: JobLayout,
        extra: &[&str],
    ) -> Result<Self> {
        let hosts = match layout {
            JobLayout::TwoHosts => Some(NamespacePair::new()?),
            _ => None,
        };
        let listen = format!("--listen={}", NamespacePair::ADDRESS);
        let (count, there) = (workers.to_string(), (workers / 2).to_string());
        let here = (workers - workers / 2).to_string();
        let mut arguments = vec!["train", "run.toml", "--json", "--workers", &count];
        match layout {
            JobLayout::Here => {}
            JobLayout::Open => arguments.extend(["--listen", "--here", &count]),
            JobLayout::TwoHosts => arguments.extend([&listen, "--here", &here]),
        }
        arguments.extend(extra);
        let prefix = |host| {
            hosts
                .as_ref()
                .map(|hosts: &NamespacePair| hosts.prefix(host))
        };
        let mut child = command(prefix(0), ronde, folder, &arguments)
            .stdout(Stdio::piped())
            .stderr(File::create(folder.join(LOGS[0])).context("making a log")?)
            .spawn()
            .with_context(|| format!("starting {}", ronde.display()))?;
        let lines = follow(&mut child)?;
        let mut job = Self {
            child,
            joined: None,
            lines,
            folder: folder.canonicalize()?,
            hosts,
            cut: None,
        };
        if layout == JobLayout::TwoHosts {
            job.join(ronde, &there)?;
        }
        Ok(job)
    }

    /// Joins the second host with `workers` workers.
    fn join(&mut self, ronde: &Path, workers: &str) -> Result<()> {
        let deadline = ronde_clock::now() + LISTENS_MAX;
        let address = loop {
            if let Some(address) = self.coordinator_address() {
                break address;
            }
            if self.ended()?.is_some() || ronde_clock::now() > deadline {
                bail!("no coordinator listens:\n{}", self.log_ends());
            }
            ronde_clock::pause(Duration::from_millis(20));
        };
        let arguments = ["join", &address, "--token-file", "out/job/token", "-n"];
        let arguments = [&arguments[..], &[workers, "--host", NamespacePair::OTHER]].concat();
        let hosts = self.hosts.as_ref().map(|hosts| hosts.prefix(1));
        let log = File::create(self.folder.join(LOGS[1])).context("making a log")?;
        let mut command = command(hosts, ronde, &self.folder, &arguments);
        let joined = command.stdout(Stdio::null()).stderr(log).spawn();
        self.joined = Some(joined.context("starting the agent of the other host")?);
        Ok(())
    }

    /// Returns the address of a coordinator on the first of two hosts.
    fn coordinator_address(&self) -> Option<String> {
        let mut all = std::fs::read_dir(self.folder.join("out/job/coordinators")).ok()?;
        let text = std::fs::read_to_string(all.next()?.ok()?.path()).ok()?;
        let address = text.split(' ').nth(1)?;
        address
            .starts_with(NamespacePair::ADDRESS)
            .then(|| address.into())
    }

    /// Returns the processes of the job's coordinators.
    fn coordinators(&self) -> Vec<Pid> {
        let job = self.folder.join("out/job");
        let leads = |pid: &Pid| {
            let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
            let line = String::from_utf8_lossy(&line.unwrap_or_default()).into_owned();
            let words: Vec<&str> = line.split('\0').collect();
            words.contains(&"coordinator") && words.iter().any(|word| Path::new(word) == job)
        };
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.filter_map(Pid::from_raw).filter(leads).collect()
    }

    /// Kills the coordinator; returns false if there is none.
    pub(super) fn kill_coordinator(&self) -> bool {
        let found = self.coordinators();
        let kill = |pid: &Pid| kill_process(*pid, Signal::KILL).is_ok();
        found.iter().filter(|pid| kill(pid)).count() > 0
    }

    /// Returns whether the cable is cut.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Cuts the cable between the hosts.
    pub(super) fn cut(&mut self, how: CableCut) -> Result<()> {
        self.cut = Some(how);
        self.hosts.as_ref().map_or(Ok(()), |hosts| hosts.cut(how))
    }

    /// Repairs the cable.
    pub(super) fn heal(&mut self) -> Result<()> {
        match (&self.hosts, self.cut.take()) {
            (Some(hosts), Some(how)) => hosts.heal(how),
            _ => Ok(()),
        }
    }

    /// Returns the next event, if there is one.
    pub(super) fn next(&self) -> Result<Option<Value>> {
        self.lines
            .try_recv()
            .ok()
            .map(|line| parse(&line))
            .transpose()
    }

    /// Returns the exit status, if the run has ended.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .context("checking for the end of a run")
    }

    /// Waits for the end; returns the exit status and the remaining events.
    pub(super) fn wait(mut self) -> Result<(ExitStatus, Vec<Value>)> {
        let status = self.child.wait().context("waiting for a run")?;
        Ok((status, self.rest()?))
    }

    /// Returns the remaining events of a run that has ended.
    pub(super) fn rest(&self) -> Result<Vec<Value>> {
        self.lines.iter().map(|line| parse(&line)).collect()
    }

    /// Returns the last lines of the logs.
    pub(super) fn log_ends(&self) -> String {
        log_ends(&self.folder)
    }
}

impl Drop for SoakJob {
    fn drop(&mut self) {
        // Usually all processes have already exited.
        for child in [&mut self.child].into_iter().chain(&mut self.joined) {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.kill_coordinator();
    }
}

/// Returns a command in a folder, without environment variables that would change a run.
fn command(prefix: Option<[&str; 4]>, ronde: &Path, folder: &Path, words: &[&str]) -> Command {
    let mut command = match prefix {
        Some([program, rest @ ..]) => {
            let mut command = Command::new(program);
            command.args(rest).arg(ronde);
            command
        }
        None => Command::new(ronde),
    };
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RONDE_") {
            command.env_remove(name);
        }
    }
    command.args(words).current_dir(folder).stdin(Stdio::null());
    command
}

/// Returns the lines of a process, read by a thread.
fn follow(child: &mut Child) -> Result<Receiver<String>> {
    let stdout = child.stdout.take().context("its output is a pipe")?;
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Ok(lines)
}

/// Returns the last lines of a run's logs.
pub(super) fn log_ends(folder: &Path) -> String {
    let texts = LOGS.map(|log| std::fs::read_to_string(folder.join(log)).unwrap_or_default());
    let end = |text: &String| -> Vec<String> {
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(20)..];
        last.iter().map(|line| (*line).to_owned()).collect()
    };
    texts.iter().flat_map(end).collect::<Vec<_>>().join("\n")
}

fn parse(line: &str) -> Result<Value> {
    serde_json::from_str(line).with_context(|| format!("parsing the event {line:?}"))
}
