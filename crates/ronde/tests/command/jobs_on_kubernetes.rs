//! Jobs on Kubernetes: a cluster whose pods are processes of this machine (`crates/submit/tests/kubernetes_server.py`). Skipped
//! with a message where this user is not root.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Ended, RONDE, Running, TestFolder, send, until};

/// A run that lasts until it is ended.
pub(crate) const LONG: [&str; 4] = [
    "--set",
    "train.epochs=100000",
    "--set",
    "elastic.silence_s=0.5",
];
/// The table of the target.
const TARGET: &str = "[cluster]\nkind = \"kubernetes\"\nimage = \"registry.example.com/ronde:1\"\nclaim = \"results\"\n";

/// A cluster, ended when dropped.
pub(crate) struct TestCluster {
    pub(crate) dir: TestFolder,
    server: Child,
}

impl TestCluster {
    /// Returns `None` with a message where it cannot be started.
    pub(crate) fn new() -> Option<Self> {
        Self::with_store(&[])
    }

    /// Does the same with a Secret `store` that has these variables.
    pub(crate) fn with_store(variables: &[(&str, &str)]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            ronde_testing::skip("only root can start the pods of Kubernetes");
            return None;
        }
        let dir = TestFolder::new();
        let folder = dir.path().join("cluster");
        std::fs::create_dir(&folder).unwrap();
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../submit/tests/kubernetes_server.py"
        );
        let mut server = Command::new("python3")
            .arg(script)
            .arg(&folder)
            .arg(RONDE)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(server.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Some(Self { dir, server })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn ronde(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).wait()
    }

    fn start(&self, arguments: &[&str]) -> Running {
        let (state, config) = (self.path(".state"), self.path("cluster/config"));
        let variables = [
            ("XDG_STATE_HOME", state.to_str().unwrap()),
            ("KUBECONFIG", config.to_str().unwrap()),
        ];
        self.dir.start(RONDE, arguments, &variables)
    }

    /// Submits a run to a target with these settings.
    pub(crate) fn submit(&self, settings: &str, arguments: &[&str]) -> Ended {
        self.dir
            .write("targets.toml", &format!("{TARGET}{settings}\n"));
        let words = ["submit", "--targets", "targets.toml", "--on", "cluster"];
        self.ronde(&[&words, arguments].concat())
    }

    /// Lets requests of a kind fail, such as `PATCH-jobs`, or no longer.
    fn fault(&self, kind: &str, fault: Option<&str>) {
        let path = self.path(&format!("cluster/fault-{kind}"));
        match fault {
            Some(fault) => std::fs::write(path, fault).unwrap(),
            None => std::fs::remove_file(path).unwrap(),
        }
    }

    /// Returns the state of the cluster.
    pub(crate) fn state(&self) -> Value {
        let text = std::fs::read(self.path("cluster/state.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    /// Returns the running pods.
    pub(crate) fn pods(&self) -> Vec<Value> {
        let state = self.state();
        let pods = state["pods"].as_array().unwrap().iter();
        pods.filter(|pod| pod["phase"] == "Running")
            .cloned()
            .collect()
    }

    /// Returns the running pod with an index.
    pub(crate) fn pod(&self, index: &str) -> Value {
        let mut found = None;
        until("a pod runs", || {
            let pods = self.pods();
            found = pods
                .into_iter()
                .find(|pod| pod["index"] == index && pod["pid"].is_u64());
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits until the events of a job contain a text this many times.
    pub(crate) fn events(&self, job: &str, text: &str, times: usize) {
        until(text, || {
            let folders = self.dir.list("cluster/claims/results");
            let mut folders = folders.iter().filter(|folder| folder.starts_with(job));
            folders.next().is_some_and(|folder| {
                let path = format!("cluster/claims/results/{folder}/results/events.jsonl");
                std::fs::read_to_string(self.path(&path))
                    .is_ok_and(|events| events.matches(text).count() >= times)
            })
        });
    }

    /// Returns the listed state of a job, with its reason.
    pub(crate) fn job_state(&self, job: &str) -> String {
        let jobs = self.ronde(&["jobs"]).expect(0, &[]);
        let mut lines = jobs.stdout.lines().map(str::to_owned);
        lines.find(|line| line.starts_with(job)).unwrap()
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        // It ends its pods at the end of its input.
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}

#[test]
fn a_job_on_kubernetes_has_the_bits_of_a_run_and_is_fetched_and_removed() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let sets = ["--set", "train.epochs=2"];
    let plain = cluster
        .dir
        .run(&[&["train", "--json"], &sets[..]].concat())
        .blake3();
    let short = [&["-n", "3", "--name", "short"], &sets[..]].concat();
    cluster
        .submit("", &short)
        .expect(0, &["job short on cluster"]);
    let followed = cluster.ronde(&["logs", "-f", "short"]).expect(0, &[]);
    assert!(followed.stdout.contains("3 workers"), "{followed:#?}");
    cluster.ronde(&["wait", "short"]).expect(0, &["finished"]);
    cluster
        .ronde(&["fetch", "short", "--to", "copy"])
        .expect(0, &[]);
    let model = std::fs::read_to_string(cluster.path("copy/model.json")).unwrap();
    assert!(model.contains(&plain), "{model}");
    assert!(
        !cluster.path("copy/job").exists(),
        "the token stays where it is"
    );
    assert!(cluster.path("copy/logs/launcher.log").exists());
    cluster.ronde(&["jobs", "--remove", "short"]).expect(0, &[]);
    until("everything is deleted", || {
        let state = cluster.state();
        let is_empty = |kind: &str| state[kind].as_array().unwrap().is_empty();
        let secrets = state["secrets"].as_array().unwrap();
        ["jobs", "pods", "configmaps"].into_iter().all(is_empty) && secrets.len() == 1
    });
    // Its results stay in the volume, and a new job of its name is not taken for its continuation.
    let again = ["-n", "1", "--name", "short", "--set", "train.epochs=1"];
    cluster.submit("", &again).expect(0, &[]);
    cluster.ronde(&["wait", "short"]).expect(0, &["finished"]);
    let logs = cluster.ronde(&["logs", "short"]).expect(0, &[]);
    assert!(!logs.stdout.contains("resuming"), "{logs:#?}");
}

#[test]
fn a_job_on_kubernetes_loses_and_gains_pods_and_is_cancelled_with_a_checkpoint() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let long = [&["-n", "3", "--name", "long"], &LONG[..]].concat();
    cluster.submit("", &long).expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    let status = cluster.ronde(&["status", "long"]).expect(0, &[]);
    assert!(status.stdout.contains("3 of 3 workers"), "{status:#?}");
    // A pod dies, and another one joins with its index.
    let lost = cluster.pod("2");
    send(
        u32::try_from(lost["pid"].as_u64().unwrap()).unwrap(),
        Signal::KILL,
    );
    until("another pod has the index", || {
        cluster
            .pods()
            .iter()
            .any(|pod| pod["index"] == "2" && pod["name"] != lost["name"])
    });
    until("three workers train", || {
        let status = cluster.ronde(&["status", "long"]);
        status.stdout.contains("3 of 3 workers")
    });
    cluster.ronde(&["scale", "long", "2"]).expect(0, &[]);
    until("two pods are left", || cluster.pods().len() == 2);
    cluster.ronde(&["scale", "long", "4"]).expect(0, &[]);
    until("four workers train", || {
        let status = cluster.ronde(&["status", "long"]);
        status.stdout.contains("4 of 4 workers")
    });
    cluster
        .ronde(&["scale", "long", "999"])
        .expect(2, &["invalid number of workers 999"]);
    cluster
        .ronde(&["cancel", "long"])
        .expect(0, &["job long: cancelled"]);
    until("no pod is left", || cluster.pods().is_empty());
    let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
    assert!(logs.stdout.contains("checkpoint saved"), "{logs:#?}");
}

#[test]
fn an_evicted_launcher_resumes_in_another_pod_from_its_checkpoint() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let long = [&["-n", "2", "--name", "long"], &LONG[..]].concat();
    cluster.submit("", &long).expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    let first = cluster.pod("0");
    let name = first["name"].as_str().unwrap();
    std::fs::write(cluster.path(&format!("cluster/evict-{name}")), "").unwrap();
    until("another pod leads", || {
        cluster
            .pods()
            .iter()
            .any(|pod| pod["index"] == "0" && pod["name"] != first["name"])
    });
    cluster.events("long", "\"event\":\"checkpoint_loaded\"", 1);
    cluster.events("long", "step_committed", 5);
    until("the agent has joined the new launcher", || {
        let status = cluster.ronde(&["status", "long"]);
        status.stdout.contains("2 of 2 workers")
    });
    assert!(cluster.job_state("long").contains("running"));
    let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
    assert!(logs.stdout.contains("resuming"), "{logs:#?}");
    cluster
        .ronde(&["cancel", "--now", "long"])
        .expect(0, &["cancelled"]);
    assert!(cluster.pods().is_empty());
    assert!(cluster.job_state("long").contains("cancelled"));
}

#[test]
fn what_keeps_a_job_from_running_is_reported() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let run = ["-n", "1", "--name", "x", "--set", "train.epochs=1"];
    for (settings, problem) in [
        (
            "context = \"none\"",
            "there is no context `none`; it has: test, other",
        ),
        ("kubeconfig = \"none\"", "set `kubeconfig` and `context`"),
        ("context = \"other\"", "log in to the cluster again"),
        ("namespace = \"private\"", "status 403"),
        ("namespace = \"absent\"", "kubectl create namespace absent"),
        (
            "namespace = \"ending\"",
            "namespace `ending` is being deleted: wait",
        ),
        ("cpu = \"four\"", "quantities must match"),
        ("imag = \"x\"", "unknown field `imag`"),
    ] {
        let ended = cluster.submit(settings, &run);
        assert_ne!(ended.code, 0, "{settings}");
        assert!(ended.stderr.contains(problem), "{problem:?} in {ended:#?}");
        assert_eq!(ended.stderr.matches("error:").count(), 1, "{ended:#?}");
        assert!(ended.stderr.contains("help:"), "{ended:#?}");
        assert!(!ended.stderr.contains("test-token"), "{ended:#?}");
    }
    cluster.ronde(&["jobs"]).expect(0, &["no jobs"]);
    cluster.submit("cpu = \"99\"", &run).expect(0, &[]);
    until("its pod cannot be placed", || {
        cluster.job_state("x").contains("Insufficient cpu")
    });
    cluster.ronde(&["cancel", "x"]).expect(0, &["cancelled"]);
    cluster
        .submit("", &run)
        .expect(2, &["there is a job `x` already"]);
    std::fs::remove_dir_all(cluster.path(".state")).unwrap();
    cluster
        .submit("", &run)
        .expect(2, &["there is a Job `x` in namespace `default` already"]);
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
        .expect(2, &["failed (exit code 2): ", "gone.safetensors"]);
}

#[test]
fn the_documents_of_a_job_are_printed_without_its_secrets() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let run = ["-n", "1", "--name", "x", "--set", "train.epochs=1"];
    let preview = cluster
        .submit("", &[&run[..], &["--dry-run"]].concat())
        .expect(0, &[]);
    for word in [
        "kind: \"Job\"",
        "completionMode: \"Indexed\"",
        "kind: \"Secret\"",
        "(created by `ronde submit`)",
    ] {
        assert!(preview.stdout.contains(word), "{word} in {preview:#?}");
    }
    let documents = |form: &str| {
        let words = [&run[..], &["--dry-run", "-o", form]].concat();
        cluster.submit("", &words).expect(0, &[]).stdout
    };
    let lines = documents("json");
    let kinds: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].take())
        .collect();
    assert_eq!(kinds, ["Job", "Secret", "ConfigMap"]);
    let yaml = documents("yaml");
    assert!(yaml.starts_with("apiVersion: "), "{yaml}");
    assert_eq!(yaml.matches("\n---\n").count(), 2, "{yaml}");
    cluster
        .submit("", &[&run[..], &["-o", "yaml"]].concat())
        .expect(2, &["--dry-run"]);
}

#[test]
fn a_job_whose_submission_had_no_answer_is_deleted_or_keeps_its_record() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let long = |name| [&["-n", "1", "--name", name], &LONG[..]].concat();
    // Where the server answers again, nothing is left and the name is free.
    for kind in ["POST-jobs", "PATCH-jobs"] {
        cluster.fault(kind, Some("cut 1"));
        let ended = cluster.submit("", &long("x"));
        assert_ne!(ended.code, 0, "{ended:#?}");
        cluster.ronde(&["status", "x"]).expect(2, &["no job"]);
        until("the Job is deleted", || {
            cluster.state()["jobs"].as_array().unwrap().is_empty()
        });
    }
    // Where it does not, the record stays, with which the job is ended.
    for (name, cut, refused) in [
        ("posted", "POST-jobs", "GET-jobs"),
        ("started", "PATCH-jobs", "DELETE-jobs"),
    ] {
        cluster.fault(cut, Some("cut"));
        cluster.fault(refused, Some("503"));
        let ended = cluster.submit("", &long(name));
        assert_ne!(ended.code, 0, "{ended:#?}");
        let help = format!("`ronde cancel {name}` ends it");
        assert!(ended.stderr.contains(&help), "{ended:#?}");
        cluster.fault(cut, None);
        cluster.fault(refused, None);
        cluster
            .ronde(&["cancel", "--now", name])
            .expect(0, &["cancelled"]);
        assert!(cluster.pods().is_empty());
    }
}

#[test]
fn a_job_whose_name_begins_with_a_digit_runs_on_kubernetes() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let short = ["-n", "2", "--name", "3d-unet", "--set", "train.epochs=1"];
    cluster.submit("", &short).expect(0, &[]);
    cluster.ronde(&["wait", "3d-unet"]).expect(0, &["finished"]);
}

#[test]
fn output_is_followed_over_failures_of_the_server_and_renewed_credentials() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let long = [&["-n", "2", "--name", "long"], &LONG[..]].concat();
    cluster.submit("", &long).expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    for kind in ["GET-jobs", "GET-pods"] {
        cluster.fault(kind, Some("503"));
    }
    let mut launcher = cluster.start(&["logs", "-f", "long"]);
    let mut rank = cluster.start(&["logs", "-f", "long", "--rank", "1"]);
    for following in [&mut launcher, &mut rank] {
        following.wait_stderr("status 503", 1);
    }
    for kind in ["GET-jobs", "GET-pods"] {
        cluster.fault(kind, None);
    }
    launcher.wait_stdout("2 workers", 1);
    // As when a token has expired: the next one is accepted.
    cluster.fault("GET-pods", Some("401 1"));
    let status = cluster.ronde(&["status", "long"]).expect(0, &[]);
    assert!(status.stdout.contains("2 of 2 workers"), "{status:#?}");
    cluster
        .ronde(&["cancel", "--now", "long"])
        .expect(0, &["cancelled"]);
    let (launcher, rank) = (launcher.wait(), rank.wait());
    for ended in [&launcher, &rank] {
        assert_eq!(ended.stderr.matches("status 503").count(), 1, "{ended:#?}");
    }
    assert_eq!(launcher.code, 0, "{launcher:#?}");
}

#[test]
fn another_pod_leads_when_the_node_of_the_leader_is_lost() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let saved = ["--set", "checkpoint.every_steps=20"];
    let long = [&["-n", "3", "--name", "long"], &LONG[..], &saved].concat();
    cluster.submit("", &long).expect(0, &[]);
    cluster.events("long", "checkpoint_saved", 1);
    // The processes of the pod are dead, and the server sees it as it was.
    let first = cluster.pod("0");
    let name = first["name"].as_str().unwrap();
    std::fs::write(cluster.path(&format!("cluster/lose-{name}")), "").unwrap();
    cluster.events("long", "checkpoint_loaded", 1);
    until("two workers train", || {
        let status = cluster.ronde(&["status", "long"]);
        status.stdout.contains("2 of 3 workers")
    });
    let jobs = cluster.ronde(&["jobs"]).expect(0, &[]);
    assert!(jobs.stdout.contains("running"), "{jobs:#?}");
    let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
    let words = "this pod leads the job now";
    assert!(logs.stdout.contains(words), "{logs:#?}");
    cluster
        .ronde(&["cancel", "long"])
        .expect(0, &["job long: cancelled"]);
    let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
    assert!(logs.stdout.contains("checkpoint saved"), "{logs:#?}");
}

#[test]
fn a_job_that_could_not_be_cancelled_is_not_listed_as_cancelled_when_it_fails() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let long = [&["-n", "1", "--name", "long"], &LONG[..]].concat();
    cluster.submit("", &long).expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    cluster.fault("PATCH-jobs", Some("503"));
    let refused = cluster.ronde(&["cancel", "--now", "long"]);
    assert_ne!(refused.code, 0, "{refused:#?}");
    let note = cluster.path(".state/ronde/jobs/long/cancelled.json");
    assert!(!note.exists());
    assert!(cluster.job_state("long").contains("running"));
    cluster.fault("PATCH-jobs", None);
    cluster
        .ronde(&["cancel", "--now", "long"])
        .expect(0, &["cancelled"]);
    assert!(note.exists());
}
