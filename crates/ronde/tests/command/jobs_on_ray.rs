//! Jobs on a cluster of Ray that these tests start, with a token and two nodes on this machine. Skipped with a message where
//! `cargo xtask test` has not installed Ray.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::{Ended, RONDE, TestFolder, holds_within, until};

/// The token of the cluster.
const TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Held while there is a cluster.
static TURN: Mutex<()> = Mutex::new(());
/// How often a cluster that does not answer is started.
const TRIES: u32 = 3;
/// The time for a node to start.
const START_MAX: Duration = Duration::from_secs(90);

/// A cluster, ended when dropped.
struct RayCluster {
    dir: TestFolder,
    python: PathBuf,
    nodes: Vec<Child>,
    /// One cluster at a time.
    turn: Option<MutexGuard<'static, ()>>,
}

/// Returns a port that is free now, and that the system gives to no connection until it is used.
fn free_port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + (std::process::id() % 100) as u16 * 100;
    let ports = (0..100).map(|_| first + NEXT.fetch_add(1, Ordering::Relaxed) % 100);
    let mut free = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().unwrap().to_string()
}

impl RayCluster {
    /// Returns `None` with a message where Ray is not installed.
    fn new() -> Option<Self> {
        let target = Path::new(RONDE).parent().and_then(Path::parent).unwrap();
        let python = target.join("python-ray/bin/python3");
        if !python.exists() {
            ronde_testing::skip(&format!("there is no {}", python.display()));
            return None;
        }
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut turn = Some(turn);
        // Ray itself does not always start on a busy machine, and then ends after minutes.
        for _ in 0..TRIES {
            let mut cluster = Self {
                dir: TestFolder::new(),
                python: python.clone(),
                nodes: Vec::new(),
                turn: turn.take(),
            };
            if cluster.has_started() {
                return Some(cluster);
            }
            turn = cluster.turn.take();
        }
        panic!("Ray has not started in {TRIES} tries");
    }

    /// Starts the nodes. Returns whether they answer.
    fn has_started(&mut self) -> bool {
        self.dir.write("token", TOKEN);
        let (port, web) = (free_port(), free_port());
        let folder = self.dir.path().join("r").display().to_string();
        let head = ["--head", "--port", &port, "--dashboard-host", "127.0.0.1"];
        let more = [
            "--dashboard-port",
            &web,
            "--node-ip-address",
            "127.0.0.1",
            "--temp-dir",
            &folder,
        ];
        self.start(&[&head[..], &more[..]].concat());
        self.dir.write(
            "targets.toml",
            &format!(
                "[ray]\nkind = \"ray\"\naddress = \"http://127.0.0.1:{web}\"\ntoken_file = \"token\"\npython = \"{python}\"\n\
                 folder = \"{folder}/jobs\"\n\
                 [two]\nkind = \"ray\"\naddress = \"http://127.0.0.1:{web}\"\ntoken_file = \"token\"\npython = \"{python}\"\n\
                 folder = \"{folder}/jobs\"\nnodes = 2\nslots = 2\n\
                 [other]\nkind = \"ray\"\naddress = \"http://127.0.0.1:{web}\"\ntoken_file = \"targets.toml\"\n",
                python = self.python.display(),
                folder = self.dir.path().display(),
            ),
        );
        if !self.becomes_ready(0, |this| this.answers(&web)) {
            return false;
        }
        let address = format!("127.0.0.1:{port}");
        // With the folder of the first node, it would unpack the package of a job again and remove the files under the job.
        let other = self.dir.path().join("s").display().to_string();
        let second = ["--node-ip-address", "127.0.0.1", "--temp-dir", &other];
        self.start(&[&["--address", &address], &second[..]].concat());
        self.becomes_ready(1, |this| this.printed_by(1).contains("Ray runtime started"))
    }

    /// Waits until a node is ready. Returns false if it has ended or takes too long.
    #[expect(clippy::print_stderr, reason = "the reason of another try")]
    fn becomes_ready(&mut self, node: usize, is_ready: impl Fn(&Self) -> bool) -> bool {
        let mut is_up = false;
        holds_within(START_MAX, || {
            is_up = is_ready(self);
            is_up || !matches!(self.nodes[node].try_wait(), Ok(None))
        });
        if !is_up {
            eprintln!("node {node} did not start: {}", self.printed_by(node));
        }
        is_up
    }

    /// Starts a node in a separate process group.
    fn start(&mut self, words: &[&str]) {
        let log = self
            .dir
            .path()
            .join(format!("node{}.log", self.nodes.len()));
        let log = File::create(log).unwrap();
        let node = Command::new(&self.python)
            .args([
                "-m",
                "ray.scripts.scripts",
                "start",
                "--block",
                "--num-cpus",
                "2",
            ])
            .args([
                "--disable-usage-stats",
                "--dashboard-agent-listen-port",
                &free_port(),
                // The workers of several nodes on a machine would otherwise get the same ports.
                "--min-worker-port=0",
                "--max-worker-port=0",
            ])
            .args(words)
            .env("RAY_AUTH_MODE", "token")
            .env("RAY_AUTH_TOKEN_PATH", self.dir.path().join("token"))
            .env("TMPDIR", self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        self.nodes.push(node);
    }

    /// Returns the output of a node.
    fn printed_by(&self, node: usize) -> String {
        let log = self.dir.path().join(format!("node{node}.log"));
        std::fs::read_to_string(log).unwrap_or_default()
    }

    fn answers(&self, port: &str) -> bool {
        let program = format!(
            "import urllib.request as r\n\
             q = r.Request('http://127.0.0.1:{port}/api/jobs/', headers={{'Authorization': 'Bearer {TOKEN}'}})\n\
             r.urlopen(q, timeout=5).read()"
        );
        let asked = Command::new(&self.python)
            .args(["-c", &program])
            .stderr(Stdio::null())
            .status();
        asked.is_ok_and(|status| status.success())
    }

    fn ronde(&self, arguments: &[&str]) -> Ended {
        let state = self.dir.path().join(".state");
        let variables = [("XDG_STATE_HOME", state.to_str().unwrap())];
        self.dir.start(RONDE, arguments, &variables).wait()
    }

    fn submit(&self, target: &str, arguments: &[&str]) -> Ended {
        let words = ["submit", "--targets", "targets.toml", "--on", target];
        self.ronde(&[&words, arguments].concat())
    }
}

impl Drop for RayCluster {
    #[expect(
        clippy::print_stderr,
        reason = "a failed test shows the output of the nodes"
    )]
    fn drop(&mut self) {
        if std::thread::panicking() {
            // These show the reason.
            for words in [["jobs"].as_slice(), &["status", "long"], &["logs", "long"]] {
                let shown = self.ronde(words);
                eprintln!("{words:?}: {}\n{}", shown.stdout, shown.stderr);
            }
            for node in 0..self.nodes.len() {
                eprintln!("node {node}: {}", self.printed_by(node));
            }
        }
        for node in self.nodes.iter_mut().rev() {
            if let Some(group) = Pid::from_raw(node.id().cast_signed()) {
                // It ends its processes after this signal; the rest is killed.
                let _ = kill_process_group(group, Signal::TERM);
                let _ = node.wait();
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
    }
}

#[test]
fn a_job_on_ray_has_the_bits_of_a_run_and_is_followed_fetched_and_removed() {
    let Some(cluster) = RayCluster::new() else {
        return;
    };
    let sets = ["--set", "train.epochs=2"];
    let plain = cluster.dir.run(&[&["train", "--json"], &sets[..]].concat());
    let plain = plain.blake3();
    let short = [&["-n", "2", "--name", "short"], &sets[..]].concat();
    cluster
        .submit("ray", &short)
        .expect(0, &["job short on ray"]);
    let followed = cluster.ronde(&["logs", "-f", "short"]).expect(0, &[]);
    assert!(followed.stdout.contains("2 workers"), "{followed:#?}");
    cluster.ronde(&["wait", "short"]).expect(0, &["finished"]);
    let logs = cluster.ronde(&["logs", "short"]).expect(0, &[]);
    assert_eq!(logs.stdout, followed.stdout);
    assert!(!logs.stdout.contains(TOKEN), "{logs:#?}");
    cluster
        .ronde(&["fetch", "short", "--to", "copy"])
        .expect(0, &[]);
    let copy = cluster.dir.path().join("copy");
    let model = std::fs::read_to_string(copy.join("model.json")).unwrap();
    assert!(model.contains(&plain), "{model}");
    assert!(!copy.join("job").exists(), "the token stays where it is");
    assert!(copy.join("logs/launcher.log").exists());
    cluster.ronde(&["jobs", "--remove", "short"]).expect(0, &[]);
    // A run that fails has its exit code, and a wrong token is not shown.
    let failing = [
        "-n",
        "1",
        "--name",
        "failing",
        "--set",
        "model.init=gone.safetensors",
    ];
    cluster.submit("ray", &failing).expect(0, &[]);
    cluster
        .ronde(&["wait", "failing"])
        .expect(2, &["failed (exit code 2)"]);
    let refused = cluster.submit("other", &["-n", "1"]);
    assert_ne!(refused.code, 0, "{refused:#?}");
    assert!(refused.stderr.contains("token"), "{refused:#?}");
    let large = cluster.submit(
        "ray",
        &["-n", "1", "--name", "wide", "--set", "workers.threads=1"],
    );
    large.expect(0, &[]);
    cluster.ronde(&["cancel", "--now", "wide"]).expect(0, &[]);
}

#[test]
fn a_job_on_two_nodes_of_ray_is_scaled_and_cancelled_with_a_checkpoint() {
    let Some(cluster) = RayCluster::new() else {
        return;
    };
    let long = [
        "-n",
        "4",
        "--name",
        "long",
        "--set",
        "train.epochs=100000",
        "--set",
        "elastic.silence_s=2",
    ];
    until("the job is submitted", || {
        cluster.submit("two", &long).code == 0
    });
    until("four workers train on two nodes", || {
        let status = cluster.ronde(&["status", "long"]);
        status.stdout.contains("4 of 4 workers") && status.stdout.contains("on ray-")
    });
    cluster.ronde(&["scale", "long", "3"]).expect(0, &[]);
    until("three workers train", || {
        let status = cluster.ronde(&["status", "long"]);
        status.stdout.contains("3 of 3 workers")
    });
    let rank = cluster.ronde(&["logs", "-f", "--rank", "0", "long"]);
    rank.expect(2, &["cannot follow the output of one rank on Ray"]);
    let listed = cluster.ronde(&["jobs"]).expect(0, &[]);
    assert!(listed.stdout.contains("running"), "{listed:#?}");
    cluster
        .ronde(&["cancel", "long"])
        .expect(0, &["job long: cancelled"]);
    let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
    assert!(logs.stdout.contains("checkpoint saved"), "{logs:#?}");
    let folder = cluster.dir.path().display().to_string();
    until("no worker is left", || {
        let listed = Command::new("pgrep")
            .args(["-f", &format!("{folder}.*ronde")])
            .output();
        let listed = String::from_utf8_lossy(&listed.unwrap().stdout).into_owned();
        let lines = listed
            .lines()
            .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
        !lines.into_iter().any(|name| name.trim() == "ronde")
    });
}
