//! [`SshHosts`]: hosts for tests of jobs over SSH, each with its own SSH server.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{Ended, RONDE, TestFolder, until};
use crate::test_network::{TestNetwork, address};

/// The server; it must be started by its full path.
const SSHD: &str = "/usr/sbin/sshd";

/// A submitting machine and hosts `h1`, `h2`, ... on one network, each with its own namespace. They share the disk.
pub(crate) struct SshHosts {
    pub(crate) dir: TestFolder,
    pub(crate) network: TestNetwork,
    pub(crate) servers: Vec<Child>,
}

impl SshHosts {
    /// Returns `None` with a message where it cannot be made.
    pub(crate) fn new(count: usize) -> Option<Self> {
        if !Path::new(SSHD).exists() {
            ronde_testing::skip("there is no /usr/sbin/sshd; install openssh-server");
            return None;
        }
        let Some(network) = TestNetwork::new(count + 1) else {
            ronde_testing::skip("cannot create network namespaces");
            return None;
        };
        let mut hosts = Self {
            dir: TestFolder::new(),
            network,
            servers: Vec::new(),
        };
        hosts.serve();
        Some(hosts)
    }

    /// Starts the servers, with new keys.
    fn serve(&mut self) {
        std::fs::create_dir_all("/run/sshd").unwrap();
        for key in ["host_key", "user_key", "other_key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(self.path(key));
            assert!(keygen.status().unwrap().success());
        }
        let read = |name: &str| std::fs::read_to_string(self.path(name)).unwrap();
        let no_shell = "command=\"/bin/echo This account is not available.\"";
        self.write(
            "authorized_keys",
            &format!(
                "{}{no_shell} {}",
                read("user_key.pub"),
                read("other_key.pub")
            ),
        );
        let host_key = read("host_key.pub");
        let known: String = (1..self.network.names.len())
            .map(|host| format!("[{}]:2222 {host_key}", address(host)))
            .collect();
        self.write("known_hosts", &known);
        for host in 1..self.network.names.len() {
            let config = format!(
                "Port 2222\nListenAddress {}\nHostKey {}\nAuthorizedKeysFile {}\nUsePAM no\nStrictModes no\nPidFile none\n\
                 PermitRootLogin yes\nSetEnv HOME={}\n",
                address(host),
                self.path("host_key").display(),
                self.path("authorized_keys").display(),
                self.path("home").display(),
            );
            self.write(&format!("sshd_{host}"), &config);
            let mut server = Command::new("ip");
            server
                .args([
                    "netns",
                    "exec",
                    &self.network.names[host],
                    SSHD,
                    "-D",
                    "-e",
                    "-f",
                ])
                .arg(self.path(&format!("sshd_{host}")))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(std::fs::File::create(self.path(&format!("sshd_{host}.log"))).unwrap());
            self.servers.push(server.spawn().unwrap());
        }
        self.configure("ssh_config", "user_key", "known_hosts");
        let servers =
            (1..self.network.names.len()).map(|host| self.path(&format!("sshd_{host}.log")));
        for log in servers {
            until("the SSH server listens", || {
                std::fs::read_to_string(&log).is_ok_and(|text| text.contains("Server listening"))
            });
        }
    }

    /// Writes a configuration of the SSH client.
    pub(crate) fn configure(&self, name: &str, key: &str, known_hosts: &str) {
        let hosts: String = (1..self.network.names.len())
            .map(|host| format!("Host h{host}\n  HostName {}\n", address(host)))
            .collect();
        let all = format!(
            "{hosts}Host *\n  Port 2222\n  User root\n  IdentityFile {}\n  IdentitiesOnly yes\n  UserKnownHostsFile {}\n  \
             GlobalKnownHostsFile /dev/null\n",
            self.path(key).display(),
            self.path(known_hosts).display(),
        );
        self.write(name, &all);
    }

    /// Writes the targets: a table for each name, with further lines.
    pub(crate) fn targets(&self, targets: &[(&str, &str, &str)]) {
        let text: String = targets
            .iter()
            .map(|(name, config, lines)| {
                let (folder, config) = (self.path("remote"), self.path(config));
                let folder = match lines.contains("folder =") {
                    true => String::new(),
                    false => format!("folder = {folder:?}\n"),
                };
                // A host that is cut off is noticed after six seconds, instead of fifteen.
                format!(
                    "[{name}]\nkind = \"ssh\"\n{folder}options = [\"-F\", {config:?}, \
                     \"-oServerAliveInterval=2\", \"-oConnectTimeout=5\"]\n{lines}\n"
                )
            })
            .collect();
        self.write("targets.toml", &text);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        self.dir.write(name, text);
    }

    /// Runs `ronde` on the submitting machine.
    pub(crate) fn ronde(&self, arguments: &[&str]) -> Ended {
        self.ronde_of("state", arguments)
    }

    /// The same for another user of that machine.
    pub(crate) fn ronde_of(&self, user: &str, arguments: &[&str]) -> Ended {
        let mut words = vec!["netns", "exec", &self.network.names[0], RONDE];
        words.extend(arguments);
        let state = self.path(&format!(".{user}"));
        self.dir
            .start("ip", &words, &[("XDG_STATE_HOME", state.to_str().unwrap())])
            .wait()
    }

    /// Submits a run with this file of targets.
    pub(crate) fn submit(&self, arguments: &[&str]) -> Ended {
        let targets = self.path("targets.toml");
        let mut words = vec!["submit", "--targets", targets.to_str().unwrap()];
        words.extend(arguments);
        self.ronde(&words)
    }

    /// Returns the states of all jobs of the submitting machine.
    pub(crate) fn states(&self) -> Vec<String> {
        let jobs = self.ronde(&["jobs", "--json"]).expect(0, &[]);
        let lines = jobs
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        lines
            .map(|job: Value| job["state"]["state"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Returns the leader of the session of a process of a job.
    pub(crate) fn leader(&self, job: &str, process: &str) -> u32 {
        let path = self.path(&format!("remote/jobs/{job}/{process}/process.json"));
        let process: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        u32::try_from(process["pid"].as_u64().unwrap()).unwrap()
    }

    /// Waits until the events of a job contain a text this many times.
    pub(crate) fn events(&self, job: &str, text: &str, times: usize) {
        let path = self.path(&format!("remote/jobs/{job}/results/events.jsonl"));
        until(text, || {
            std::fs::read_to_string(&path).is_ok_and(|events| events.matches(text).count() >= times)
        });
    }
}

impl Drop for SshHosts {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Makes a file executable.
pub(crate) fn make_executable(path: &Path) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(path, mode).unwrap();
}
