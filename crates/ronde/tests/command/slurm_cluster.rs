//! [`SlurmCluster`]: a controller and nodes of Slurm that a test starts on this machine.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::support::{Ended, RONDE, Running, TestFolder, until};
use crate::test_network::{TestNetwork, address};

/// The number of nodes.
pub(crate) const NODES: usize = 3;
/// The table of the cluster, without its settings.
const TARGET: &str = "[cluster]\nkind = \"slurm\"\n";

/// A cluster, ended when dropped.
pub(crate) struct SlurmCluster {
    pub(crate) dir: TestFolder,
    daemons: Vec<Child>,
    /// The network of the controller (host 0) and the nodes; `None`: all are on this machine's loopback network.
    network: Option<TestNetwork>,
}

/// Returns a free port. Another process may take it, which no test has seen.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl SlurmCluster {
    /// Returns `None` with a message where it cannot be started.
    pub(crate) fn new() -> Option<Self> {
        Self::create(false)
    }

    /// The same with nodes whose network can be cut.
    pub(crate) fn with_network() -> Option<Self> {
        Self::create(true)
    }

    fn create(has_network: bool) -> Option<Self> {
        let programs = [
            "/usr/sbin/slurmctld",
            "/usr/sbin/slurmd",
            "/usr/sbin/munged",
        ];
        if let Some(missing) = programs.iter().find(|path| !Path::new(path).exists()) {
            ronde_testing::skip(&format!(
                "there is no {missing}; install slurmctld, slurmd and munge"
            ));
            return None;
        }
        let id = Command::new("id").arg("-u").output().unwrap();
        if id.stdout.trim_ascii() != b"0" {
            ronde_testing::skip("only root can start the nodes of Slurm");
            return None;
        }
        let mut cluster = Self {
            dir: TestFolder::new(),
            daemons: Vec::new(),
            network: None,
        };
        if has_network {
            cluster.network = Some(TestNetwork::new(NODES + 1).or_else(|| {
                ronde_testing::skip("cannot create network namespaces");
                None
            })?);
        }
        cluster.start();
        Some(cluster)
    }

    /// Returns a command that runs a program on a host: the controller's is number 0.
    fn command(&self, host: usize, program: &str) -> Command {
        let Some(network) = &self.network else {
            return Command::new(program);
        };
        let [enter, namespace] = network.enter(host);
        let mut command = Command::new(enter);
        command.args([&namespace, program]);
        command
    }

    /// Returns the address of a host.
    fn address(&self, host: usize) -> String {
        match self.network {
            Some(_) => address(host),
            None => "127.0.0.1".to_owned(),
        }
    }

    /// Cuts the cable of a node, or repairs it with `up`.
    pub(crate) fn cable(&self, node: usize, state: &str) {
        self.network.as_ref().unwrap().cable(node, state);
    }

    /// Returns the processes of a program on a node with its own network.
    pub(crate) fn processes(&self, node: usize, program: &Path) -> Vec<u32> {
        let all = self.network.as_ref().unwrap().processes(node);
        let is_of = |pid: &u32| {
            std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == program)
        };
        all.into_iter().filter(is_of).collect()
    }

    /// Ends all processes of a node with its own network at once, as when it loses its power.
    pub(crate) fn power_off(&self, node: usize) {
        self.cable(node, "down");
        for pid in self.network.as_ref().unwrap().processes(node) {
            // It may have ended by itself.
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).output();
        }
    }

    /// Starts a node again that has lost its power.
    pub(crate) fn power_on(&mut self, node: usize) {
        self.cable(node, "up");
        self.start_node(node);
        let mut earlier = self.daemons.pop().unwrap();
        std::mem::swap(&mut self.daemons[1 + node], &mut earlier);
        earlier.wait().unwrap();
    }

    /// Returns the number of the node with the launcher of the only job that runs.
    pub(crate) fn first_node(&self) -> usize {
        let node = self.slurm("squeue", &["-h", "-t", "RUNNING", "-o", "%B"]);
        node.trim().trim_start_matches('n').parse().unwrap()
    }

    /// Returns the daemon of a node.
    pub(crate) fn daemon_of(&self, node: usize) -> u32 {
        self.daemons[1 + node].id()
    }

    fn start(&mut self) {
        // Both check the owners of the folders above their files.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.dir.path(), mode).unwrap();
        self.dir.write("munge.key", &"k".repeat(64));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(self.path("munge.key"), mode).unwrap();
        let socket = self.path("munge.socket");
        let mut munged = Command::new("/usr/sbin/munged");
        munged.arg("--foreground").arg("--force");
        for (option, file) in [
            ("key-file", "munge.key"),
            ("socket", "munge.socket"),
            ("pid-file", "munge.pid"),
            ("log-file", "munge.log"),
            ("seed-file", "munge.seed"),
        ] {
            munged.arg(format!("--{option}={}", self.path(file).display()));
        }
        self.daemon(munged, "munged");
        until("munged listens", || socket.exists());
        self.configure();
        let config = self.path("slurm.conf");
        let mut controller = self.command(0, "/usr/sbin/slurmctld");
        controller.arg("-D").arg("-f").arg(&config);
        self.daemon(controller, "slurmctld");
        (1..=NODES).for_each(|node| self.start_node(node));
        until("the nodes are idle", || {
            self.slurm("sinfo", &["-h", "-N", "-o", "%T"])
                .matches("idle")
                .count()
                == NODES
        });
    }

    fn start_node(&mut self, node: usize) {
        let mut daemon = self.command(node, "/usr/sbin/slurmd");
        daemon
            .args(["-D", "-N", &format!("n{node}"), "-f"])
            .arg(self.path("slurm.conf"));
        self.daemon(daemon, &format!("slurmd_{node}"));
    }

    fn configure(&self) {
        let host = Command::new("hostname").output().unwrap();
        let host = String::from_utf8(host.stdout).unwrap();
        let nodes: String = (1..=NODES)
            .map(|node| {
                format!(
                    "NodeName=n{node} NodeHostname={} NodeAddr={} Port={} CPUs=4\n",
                    host.trim(),
                    self.address(node),
                    free_port()
                )
            })
            .collect();
        let folder = self.dir.path().display();
        for name in ["state", "spool"] {
            std::fs::create_dir(self.path(name)).unwrap();
        }
        let text = format!(
            "ClusterName=test\nSlurmctldHost={}({})\nSlurmctldPort={}\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\n\
             AuthInfo=socket={folder}/munge.socket\nCryptoType=crypto/munge\nStateSaveLocation={folder}/state\n\
             SlurmdSpoolDir={folder}/spool/%n\nSlurmctldPidFile={folder}/ctld.pid\nSlurmdPidFile={folder}/%n.pid\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nReturnToService=2\nSlurmdTimeout=10\nKillWait=5\n\
             SchedulerParameters=batch_sched_delay=0,sched_min_interval=0\nSlurmdParameters=config_overrides\nMpiDefault=none\n{nodes}\
             PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES\n",
            host.trim(),
            self.address(0),
            free_port(),
        );
        self.dir.write("slurm.conf", &text);
    }

    fn daemon(&mut self, mut command: Command, name: &str) {
        let log = std::fs::File::create(self.path(&format!("{name}.log"))).unwrap();
        let also = log.try_clone().unwrap();
        let started = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(also)
            .spawn();
        self.daemons.push(started.unwrap());
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a command of Slurm and returns its output.
    pub(crate) fn slurm(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = self.command(0, "timeout");
        command
            .args(["20", program])
            .args(arguments)
            .env("SLURM_CONF", self.path("slurm.conf"));
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    }

    /// Runs `ronde` on the machine that submits.
    pub(crate) fn ronde(&self, arguments: &[&str]) -> Ended {
        self.start_ronde(arguments).wait()
    }

    /// Starts `ronde` on the machine that submits.
    pub(crate) fn start_ronde(&self, arguments: &[&str]) -> Running {
        let (state, config) = (self.path(".state"), self.path("slurm.conf"));
        let variables = [
            ("XDG_STATE_HOME", state.to_str().unwrap()),
            ("SLURM_CONF", config.to_str().unwrap()),
        ];
        let Some(network) = &self.network else {
            return self.dir.start(RONDE, arguments, &variables);
        };
        let [enter, namespace] = network.enter(0);
        let words = [&[&namespace, RONDE][..], arguments].concat();
        self.dir.start(&enter, &words, &variables)
    }

    /// Submits a run to a target with these settings.
    pub(crate) fn submit(&self, settings: &str, arguments: &[&str]) -> Ended {
        self.dir
            .write("targets.toml", &format!("{TARGET}{settings}\n"));
        let words = ["submit", "--targets", "targets.toml", "--on", "cluster"];
        self.ronde(&[&words, arguments].concat())
    }

    /// Returns the state of a job.
    pub(crate) fn state(&self, job: &str) -> String {
        let jobs = self.ronde(&["jobs", "--json"]).expect(0, &[]);
        let lines = jobs
            .stdout
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut found = lines.filter(|line| line["job"] == job);
        let found = found.next().unwrap();
        found["state"]["state"].as_str().unwrap().to_owned()
    }

    /// Waits until the events of a job contain a text this many times.
    pub(crate) fn events(&self, job: &str, text: &str, times: usize) {
        let path = self.path(&format!(".state/ronde/jobs/{job}/results/events.jsonl"));
        until(text, || {
            std::fs::read_to_string(&path).is_ok_and(|events| events.matches(text).count() >= times)
        });
    }

    /// Returns the number of the Slurm job.
    pub(crate) fn number(&self, job: &str) -> String {
        let record =
            std::fs::read(self.path(&format!(".state/ronde/jobs/{job}/job.json"))).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        record["placement"]["id"].to_string()
    }

    /// Starts a job that was queued again now, instead of two minutes later.
    pub(crate) fn start_again(&self, job: &str) {
        let number = format!("JobId={}", self.number(job));
        // Slurm refuses an attempt that starts in the second in which the earlier one was ended.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let start = format!("StartTime=uts{}", since.as_secs() + 3);
        until("the job starts again", || {
            // It ignores the time while the earlier attempt still completes.
            self.slurm("scontrol", &["update", &number, &start]);
            self.state(job) == "running"
        });
    }
}

impl Drop for SlurmCluster {
    fn drop(&mut self) {
        self.slurm("scancel", &["--full", "--signal=KILL", "--user=root"]);
        // The nodes first, so that the controller starts nothing else.
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
