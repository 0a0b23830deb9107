//! [`RayAllocation`]: the work of a job's launcher inside of a job of Ray.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::package::INPUTS;
use crate::drain_sources;
use crate::error::SubmitError;
use crate::fetching::{copy_folder, create};
use crate::job_paths::JobPaths;
use crate::limited::wait;
use crate::process_folder::ProcessCommand;

/// The word that the address of the launcher's node replaces among its arguments.
pub(super) const ADDRESS_WORD: &str = "{address}";
/// The word that the folder of the run file replaces among the arguments of the launcher.
pub(super) const INPUTS_WORD: &str = "{inputs}";
/// The program that starts an agent on each other node.
const AGENTS: &str = include_str!("agents.py");
/// Time for the agents to end after the run.
const AGENT_GRACE: Duration = Duration::from_secs(15);
/// Time for Ray to unpack a package again.
const UNPACK_MAX: Duration = Duration::from_secs(30);
/// The largest depth of folders in the inputs.
const DEPTH_MAX: u32 = 64;
/// The folder of a job that has its program and its inputs.
const PACKAGE: &str = "package";
/// Time limit for the coordinator to listen.
const BEGIN_MAX: Duration = Duration::from_secs(600);

/// A job of Ray, as the arguments of its entrypoint describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RayAllocation {
    /// The number of nodes.
    pub nodes: u32,
    /// The largest number of workers on each.
    pub slots: u32,
    /// The processors of each.
    pub cpus: u32,
    /// The GPUs of each.
    pub gpus: u32,
    /// The bytes of memory of each; 0: not reserved.
    pub memory: u64,
    /// The Python that can import `ray`.
    pub python: String,
    /// The address of the head of the cluster, `host:port`, if Ray has named it.
    pub head: Option<String>,
    /// Where the end of a node is announced.
    pub drain_on: Vec<String>,
}

/// Copies this program, and the inputs that Ray has unpacked in `unpacked` if `words` name them, to the folder of a job. Returns
/// the folder with the copies, and the program in it. Ray unpacks a package again, and removes the earlier files, when another node
/// with the same folder of the session gets it; processes that start later then find no program.
///
/// # Errors
/// A file cannot be read or written.
pub fn keep_package(
    unpacked: &Path,
    words: &[String],
    paths: &JobPaths,
) -> Result<(PathBuf, PathBuf), SubmitError> {
    let package = paths.folder().join(PACKAGE);
    create(&package)?;
    let program = package.join("ronde");
    // The file of this process, also if its name has been removed.
    let copied = std::fs::copy("/proc/self/exe", &program);
    copied.map_err(SubmitError::file("write", &program))?;
    if words.iter().any(|word| word.contains(INPUTS_WORD)) {
        let (from, to) = (unpacked.join(INPUTS), package.join(INPUTS));
        let mut copied = Ok(());
        ronde_clock::wait_until(UNPACK_MAX, || {
            copied = copy_folder(&from, &to, &|_| false, DEPTH_MAX);
            copied.is_ok() && file_count(&from) == file_count(&to)
        });
        copied?;
    }
    Ok((package, program))
}

/// Removes the copies of [`keep_package`] after the end of a job.
pub fn remove_package(paths: &JobPaths) {
    // Files that cannot be removed take space, but do no harm.
    let _ = std::fs::remove_dir_all(paths.folder().join(PACKAGE));
}

/// Returns the number of files in a folder and in the folders within it.
fn file_count(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let counts = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => file_count(&entry.path()),
        _ => 1,
    });
    counts.sum()
}

impl RayAllocation {
    /// Returns the address of this node, at which the other nodes reach it.
    fn address(&self) -> IpAddr {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if self.nodes == 1 {
            return local;
        }
        // The address from which packets to the head are sent. Nothing is sent.
        let route = self.head.as_ref().and_then(|head| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
            socket.connect(head.as_str()).ok()?;
            Some(socket.local_addr().ok()?.ip())
        });
        route.unwrap_or(local)
    }

    /// Returns the command of the launcher with placeholders for addresses and folders; `package` is the
    /// folder of the unpacked package.
    #[must_use]
    pub fn launcher(&self, words: &[String], package: &Path) -> ProcessCommand {
        let inputs = package.join(INPUTS);
        let (address, folder) = (self.address().to_string(), inputs.display().to_string());
        let word = |word: &String| {
            let word = word.replace(ADDRESS_WORD, &address);
            word.replace(INPUTS_WORD, &folder)
        };
        ProcessCommand {
            arguments: words.iter().map(word).collect(),
            directory: match inputs.is_dir() {
                true => inputs.clone(),
                false => package.to_owned(),
            },
        }
    }

    /// Starts an agent on each other node once the coordinator listens, and ends them when `is_over` returns true.
    ///
    /// # Errors
    /// Python cannot be started, or the join token cannot be read.
    pub fn run_agents(
        &self,
        program: &Path,
        paths: &JobPaths,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), SubmitError> {
        if self.nodes < 2 {
            return Ok(());
        }
        let since = ronde_clock::unix_ms();
        let mut address = None;
        ronde_clock::wait_until(BEGIN_MAX, || {
            address = paths.coordinator(since);
            address.is_some() || is_over()
        });
        let Some(address) = address else {
            return Ok(());
        };
        let mut agents = self.start_agents(program, paths, &address)?;
        while !is_over() && matches!(agents.try_wait(), Ok(None)) {
            ronde_clock::pause(Duration::from_millis(50));
        }
        // They end with the job.
        wait(&mut agents, AGENT_GRACE);
        Ok(())
    }

    fn start_agents(
        &self,
        program: &Path,
        paths: &JobPaths,
        address: &str,
    ) -> Result<Child, SubmitError> {
        let failed = |problem: std::io::Error| SubmitError::Program {
            program: self.python.clone(),
            problem: format!(
                "{problem}\n  help: set `python` of the target to a Python on the nodes that can import ray"
            ),
        };
        let token = paths.token();
        let token = std::fs::read_to_string(&token).map_err(SubmitError::file("read", &token))?;
        let order = json!({
            "program": program,
            "address": address,
            // In the memory of Ray only, which no list shows.
            "token": token.trim(),
            "nodes": self.nodes - 1,
            "slots": self.slots,
            "cpus": self.cpus,
            "gpus": self.gpus,
            "memory": self.memory,
            "logs": paths.process_path(1),
            "more": drain_sources::words(&self.drain_on),
        });
        let mut child = Command::new(&self.python)
            .args(["-c", AGENTS])
            .stdin(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        if let Some(mut input) = child.stdin.take() {
            // A program that has ended reports why itself.
            let _ = input.write_all(order.to_string().as_bytes());
        }
        Ok(child)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_launcher_have_the_paths_of_its_node() {
        let allocation = RayAllocation {
            nodes: 1,
            slots: 2,
            cpus: 2,
            gpus: 0,
            memory: 0,
            python: "python3".to_owned(),
            head: None,
            drain_on: Vec::new(),
        };
        let dir = tempfile::tempdir().unwrap();
        let words = ["train", "{inputs}/run.toml", "--listen={address}"].map(str::to_owned);
        let command = allocation.launcher(&words, dir.path());
        let folder = dir.path().display();
        assert_eq!(command.arguments[1], format!("{folder}/inputs/run.toml"));
        assert_eq!(command.arguments[2], "--listen=127.0.0.1");
        assert_eq!(command.directory, dir.path());
    }
}
