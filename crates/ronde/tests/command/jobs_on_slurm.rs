//! Jobs on Slurm: a controller and three nodes that this test starts on this machine. Skipped with a message where Slurm is
//! not installed or cannot be started.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;

use crate::ssh_hosts::skipped;
use crate::support::{Ended, RONDE, TestFolder, send, until};

/// The number of nodes.
pub(crate) const NODES: usize = 3;
/// A run that lasts until it is ended.
const LONG: [&str; 4] = [
    "--set",
    "train.epochs=100000",
    "--set",
    "elastic.silence_s=0.5",
];
/// The table of the cluster, without its settings.
const TARGET: &str = "[cluster]\nkind = \"slurm\"\n";

/// A cluster, ended when dropped.
pub(crate) struct SlurmCluster {
    pub(crate) dir: TestFolder,
    daemons: Vec<Child>,
}

/// Returns a free port. Another process may take it, which no test has seen.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl SlurmCluster {
    /// Returns `None` with a message where it cannot be started.
    pub(crate) fn new() -> Option<Self> {
        let programs = [
            "/usr/sbin/slurmctld",
            "/usr/sbin/slurmd",
            "/usr/sbin/munged",
        ];
        if let Some(missing) = programs.iter().find(|path| !Path::new(path).exists()) {
            skipped(&format!(
                "there is no {missing}; install slurmctld, slurmd and munge"
            ));
            return None;
        }
        let id = Command::new("id").arg("-u").output().unwrap();
        if id.stdout.trim_ascii() != b"0" {
            skipped("only root can start the nodes of Slurm");
            return None;
        }
        let mut cluster = Self {
            dir: TestFolder::new(),
            daemons: Vec::new(),
        };
        cluster.start();
        Some(cluster)
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
        let mut controller = Command::new("/usr/sbin/slurmctld");
        controller.arg("-D").arg("-f").arg(&config);
        self.daemon(controller, "slurmctld");
        for node in 1..=NODES {
            let mut daemon = Command::new("/usr/sbin/slurmd");
            daemon
                .args(["-D", "-N", &format!("n{node}"), "-f"])
                .arg(&config);
            self.daemon(daemon, &format!("slurmd_{node}"));
        }
        until("the nodes are idle", || {
            self.slurm("sinfo", &["-h", "-N", "-o", "%T"])
                .matches("idle")
                .count()
                == NODES
        });
    }

    fn configure(&self) {
        let host = Command::new("hostname").output().unwrap();
        let host = String::from_utf8(host.stdout).unwrap();
        let nodes: String = (1..=NODES)
            .map(|node| {
                format!(
                    "NodeName=n{node} NodeHostname={} NodeAddr=127.0.0.1 Port={} CPUs=4\n",
                    host.trim(),
                    free_port()
                )
            })
            .collect();
        let folder = self.dir.path().display();
        for name in ["state", "spool"] {
            std::fs::create_dir(self.path(name)).unwrap();
        }
        let text = format!(
            "ClusterName=test\nSlurmctldHost={}(127.0.0.1)\nSlurmctldPort={}\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\n\
             AuthInfo=socket={folder}/munge.socket\nCryptoType=crypto/munge\nStateSaveLocation={folder}/state\n\
             SlurmdSpoolDir={folder}/spool/%n\nSlurmctldPidFile={folder}/ctld.pid\nSlurmdPidFile={folder}/%n.pid\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nReturnToService=2\nSlurmdTimeout=10\nKillWait=5\n\
             SchedulerParameters=batch_sched_delay=0,sched_min_interval=0\nSlurmdParameters=config_overrides\nMpiDefault=none\n{nodes}\
             PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES\n",
            host.trim(),
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
        let mut command = Command::new("timeout");
        command
            .args(["20", program])
            .args(arguments)
            .env("SLURM_CONF", self.path("slurm.conf"));
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    }

    /// Runs `ronde` on the machine that submits.
    pub(crate) fn ronde(&self, arguments: &[&str]) -> Ended {
        let (state, config) = (self.path(".state"), self.path("slurm.conf"));
        let variables = [
            ("XDG_STATE_HOME", state.to_str().unwrap()),
            ("SLURM_CONF", config.to_str().unwrap()),
        ];
        self.dir.start(RONDE, arguments, &variables).wait()
    }

    /// Submits a run to a target with these settings.
    fn submit(&self, settings: &str, arguments: &[&str]) -> Ended {
        self.dir
            .write("targets.toml", &format!("{TARGET}{settings}\n"));
        let words = ["submit", "--targets", "targets.toml", "--on", "cluster"];
        self.ronde(&[&words, arguments].concat())
    }

    /// Returns the state of a job.
    fn state(&self, job: &str) -> String {
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
    fn events(&self, job: &str, text: &str, times: usize) {
        let path = self.path(&format!(".state/ronde/jobs/{job}/results/events.jsonl"));
        until(text, || {
            std::fs::read_to_string(&path).is_ok_and(|events| events.matches(text).count() >= times)
        });
    }

    /// Returns the number of the Slurm job.
    fn number(&self, job: &str) -> String {
        let record =
            std::fs::read(self.path(&format!(".state/ronde/jobs/{job}/job.json"))).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        record["placement"]["id"].to_string()
    }
}

/// Returns whether a process of this program exists.
fn runs(program: &Path) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut programs =
        entries.filter_map(|entry| std::fs::read_link(entry.path().join("exe")).ok());
    programs.any(|path| path == program)
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

#[test]
fn a_job_on_slurm_has_the_bits_of_a_run_and_loses_a_node() {
    let Some(cluster) = SlurmCluster::new() else {
        return;
    };
    let sets = ["--set", "train.epochs=2"];
    let plain = cluster
        .dir
        .run(&[&["train", "--json"], &sets[..]].concat())
        .blake3();
    let short = [&["-n", "3", "--name", "short"], &sets[..]].concat();
    cluster
        .submit("nodes = 3", &short)
        .expect(0, &["job short on cluster"]);
    cluster.ronde(&["wait", "short"]).expect(0, &["finished"]);
    cluster
        .ronde(&["fetch", "short", "--to", "copy"])
        .expect(0, &[]);
    let model = std::fs::read_to_string(cluster.path("copy/model.json")).unwrap();
    assert!(model.contains(&plain), "{model}");
    let script = std::fs::read_to_string(cluster.path(".state/ronde/jobs/short/job.sh")).unwrap();
    assert!(!script.contains("token"), "{script}");

    let long = [&["-n", "3", "--name", "long"], &LONG[..]].concat();
    cluster.submit("nodes = 3", &long).expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    let status = cluster.ronde(&["status", "long"]).expect(0, &[]);
    assert!(status.stdout.contains("3 of 3 workers"), "{status:#?}");
    cluster.slurm(
        "scontrol",
        &["update", "nodename=n3", "state=down", "reason=test"],
    );
    cluster.events("long", "\"event\":\"recovered\"", 1);
    assert_eq!(
        cluster.state("long"),
        "running",
        "the job continues in its allocation"
    );
    cluster
        .ronde(&["cancel", "long"])
        .expect(0, &["job long: cancelled"]);
    assert!(!cluster.slurm("squeue", &["-h"]).contains("long"));
    let program = cluster.path(".state/ronde/jobs/long/ronde");
    until("nothing is left on any node", || !runs(&program));
    let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
    assert!(logs.stdout.contains("checkpoint saved"), "{logs:#?}");
}

#[test]
fn a_preempted_job_is_queued_again_and_resumes_from_its_checkpoint() {
    let Some(cluster) = SlurmCluster::new() else {
        return;
    };
    let long = [&["-n", "2", "--name", "long"], &LONG[..]].concat();
    cluster
        .submit("nodes = 1", &long)
        .expect(0, &["job long on cluster"]);
    cluster.events("long", "step_committed", 5);
    let number = cluster.number("long");
    // As at the time limit: a signal to the batch script.
    cluster.slurm("scancel", &["--batch", "--signal=TERM", &number]);
    until("the job is queued again", || {
        cluster.state("long") == "queued"
    });
    // Instead of two minutes later. Slurm refuses an attempt that starts in the second in which the earlier one was ended.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let (job, start) = (
        format!("JobId={number}"),
        format!("StartTime=uts{}", since.as_secs() + 3),
    );
    until("the job starts again", || {
        // It ignores the time while the earlier attempt still completes.
        cluster.slurm("scontrol", &["update", &job, &start]);
        cluster.state("long") == "running"
    });
    cluster.events("long", "\"event\":\"checkpoint_loaded\"", 1);
    cluster.events("long", "step_committed", 5);
    assert_eq!(cluster.state("long"), "running");
    cluster
        .ronde(&["cancel", "--now", "long"])
        .expect(0, &["cancelled"]);
    assert_eq!(cluster.state("long"), "cancelled");
    for (settings, arguments, problem) in [
        ("nodes = 2\nslots = 1", ["-n", "3"], "2 nodes have 2 slots"),
        ("partition = \"none\"", ["-n", "1"], "invalid partition"),
    ] {
        let ended = cluster.submit(settings, &arguments);
        assert_ne!(ended.code, 0, "{ended:#?}");
        assert!(ended.stderr.contains(problem), "{problem:?} in {ended:#?}");
    }
    let failing = [
        "-n",
        "1",
        "--name",
        "failing",
        "--set",
        "model.init=gone.safetensors",
    ];
    cluster.submit("", &failing).expect(0, &[]);
    cluster
        .ronde(&["wait", "failing"])
        .expect(2, &["failed (exit code 2)"]);
}

#[test]
fn a_launcher_on_a_node_that_slurm_has_lost_ends_before_another_one_trains() {
    let Some(cluster) = SlurmCluster::new() else {
        return;
    };
    let long = [&["-n", "2", "--name", "long"], &LONG[..]].concat();
    cluster.submit("nodes = 1", &long).expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    let number = cluster.number("long");
    let node = cluster.slurm("squeue", &["-h", "-o", "%B", "-j", &number]);
    let node: usize = node.trim().trim_start_matches('n').parse().unwrap();
    let path = cluster.path(".state/ronde/jobs/long/launcher/process.json");
    let first: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let first = u32::try_from(first["pid"].as_u64().unwrap()).unwrap();
    // The daemon of the node cannot end the task, which goes on training.
    let daemon = cluster.daemons[1 + node].id();
    send(daemon, Signal::STOP);
    let (name, number) = (format!("nodename=n{node}"), format!("JobId={number}"));
    cluster.slurm("scontrol", &["update", &name, "state=down", "reason=test"]);
    until("the job is queued again", || {
        cluster.state("long") == "queued"
    });
    let is_alive = || Path::new(&format!("/proc/{first}")).exists();
    assert!(is_alive(), "its task still runs");
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let start = format!("StartTime=uts{}", since.as_secs() + 3);
    until("the job starts on another node", || {
        cluster.slurm("scontrol", &["update", &number, &start]);
        cluster.state("long") == "running"
    });
    cluster.events("long", "\"event\":\"checkpoint_loaded\"", 1);
    cluster.events("long", "step_committed", 5);
    assert!(!is_alive(), "the first has ended");
    let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
    for words in [
        "still runs on a node that Slurm has lost",
        "saving a checkpoint",
    ] {
        assert!(logs.stdout.contains(words), "{words:?} in {logs:#?}");
    }
    send(daemon, Signal::CONT);
    cluster
        .ronde(&["cancel", "--now", "long"])
        .expect(0, &["cancelled"]);
}
