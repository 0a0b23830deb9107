//! The output and the state of jobs whose disk is full, whose connection is lost, or that are cancelled early.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::jobs::{ronde, states};
use crate::ssh_hosts::SshHosts;
use crate::support::{RONDE, Running, TestFolder, until};

/// A run that lasts until it is ended.
const LONG: [&str; 4] = ["-n", "1", "--set", "train.epochs=100000"];

/// Starts `ronde` with the records of jobs in the folder of the test.
fn start(dir: &TestFolder, words: &[&str]) -> Running {
    let state = dir.path().join(".state");
    let variables = [("XDG_STATE_HOME", state.to_str().unwrap())];
    dir.start(RONDE, words, &variables)
}

/// A small disk.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Returns `None` with a message where it cannot be made.
    fn new(path: PathBuf) -> Option<Self> {
        std::fs::create_dir(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]);
        if !mount.arg(&path).status().is_ok_and(|ended| ended.success()) {
            ronde_testing::skip("cannot mount a disk");
            return None;
        }
        Some(Self(path))
    }

    /// Fills the disk, and the last block of the output of a job.
    fn fill(&self, output: &str) {
        let bytes = vec![b'\n'; 8 << 20];
        assert!(std::fs::write(self.0.join("fill"), &bytes).is_err());
        let mut output = std::fs::File::options()
            .append(true)
            .open(self.0.join(output))
            .unwrap();
        assert!(output.write_all(&bytes[..8192]).is_err());
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // What still has an open file on it keeps it until that is closed.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Waits until a job in a folder of a target has committed further steps.
fn steps(folder: &Path, times: usize) {
    let path = folder.join("results/events.jsonl");
    until("the job commits steps", || {
        let text = std::fs::read_to_string(&path);
        text.is_ok_and(|text| text.matches("step_committed").count() >= times)
    });
}

#[test]
fn a_full_disk_is_named_while_a_job_runs_and_after_its_end() {
    let dir = TestFolder::new();
    let Some(disk) = SmallDisk::new(dir.path().join("small")) else {
        return;
    };
    dir.write(
        "targets.toml",
        "[small]\nkind = \"local\"\nfolder = \"small\"\n",
    );
    let on = ["submit", "--targets", "targets.toml", "--on", "small"];
    ronde(&dir, &[&on[..], &["--name", "stays"], &LONG].concat()).expect(0, &[]);
    steps(&disk.0.join("stays"), 5);
    let short = [
        "-n",
        "1",
        "--set",
        "train.epochs=60",
        "--set",
        "elastic.enabled=false",
    ];
    ronde(&dir, &[&on[..], &["--name", "ends"], &short].concat()).expect(0, &[]);
    let mut followed = start(&dir, &["logs", "-f", "stays"]);
    disk.fill("ends/launcher/output.log");
    followed.wait_stderr("output.log: no storage space", 1);
    let full = format!(
        "job stays on small: running: the disk of {}",
        disk.0.display()
    );
    let status = ronde(&dir, &["status", "stays"]);
    assert!(status.stdout.contains(&full), "{status:#?}");
    ronde(&dir, &["logs", "stays"]).expect(0, &["is full", "free some space"]);
    // The model is written once there is space.
    disk.free();
    ronde(&dir, &["wait", "ends"]).expect(0, &[]);
    let model = disk.0.join("ends/results/model.safetensors");
    assert!(model.exists());
    let status = ronde(&dir, &["status", "stays"]).expect(0, &[]);
    assert!(
        status.stdout.contains("job stays on small: running\n"),
        "{status:#?}"
    );
    ronde(&dir, &["cancel", "stays"]).expect(0, &["job stays: cancelled"]);
    followed.wait().expect(0, &[]);
}

#[test]
fn the_first_output_of_a_rank_is_waited_for() {
    let dir = TestFolder::new();
    ronde(&dir, &[&["submit", "--name", "x"], &LONG[..]].concat()).expect(0, &[]);
    let mut logs = start(&dir, &["logs", "-f", "--rank", "0", "x"]);
    let never = start(&dir, &["logs", "-f", "--rank", "7", "x"]);
    let folder = dir.path().join(".state/ronde/jobs/x/results/logs");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("rank-0.log"), "hello\n").unwrap();
    logs.wait_stdout("hello", 1);
    ronde(&dir, &["cancel", "--now", "x"]).expect(0, &[]);
    assert_eq!(logs.wait().expect(0, &[]).stdout, "hello\n");
    never.wait().expect(2, &["rank 7 has printed nothing"]);
}

#[test]
fn a_job_that_is_cancelled_while_it_is_submitted_is_not_reported_as_running() {
    let dir = TestFolder::new();
    let submitted = (0..20).find_map(|number| {
        let name = format!("x{number}");
        let words = [&["submit", "--name", &name], &LONG[..]].concat();
        let submitting = start(&dir, &words);
        let record = dir.path().join(".state/ronde/jobs").join(&name);
        until("the job has a record", || record.join("job.json").exists());
        submitting.signal(Signal::STOP);
        let cancelling = start(&dir, &["cancel", &name]);
        until("the job is marked as cancelled", || {
            record.join("cancelled.json").exists()
        });
        submitting.signal(Signal::CONT);
        let ended = submitting.wait();
        let cancelled = format!("job {name}: cancelled");
        cancelling.wait().expect(0, &[&cancelled]);
        // Code 0: its last look at the record came before it was stopped.
        (ended.code != 0).then_some((name, ended))
    });
    let (name, submitted) = submitted.expect("one of the submissions was cancelled");
    let submitted = submitted.expect(
        3,
        &[&format!(
            "job `{name}` was cancelled while it was submitted"
        )],
    );
    assert!(!submitted.stderr.contains("running"), "{submitted:#?}");
    assert!(!states(&dir).contains(&format!("{name} running")));
}

#[test]
fn names_of_jobs_that_do_not_exist_are_explained() {
    let dir = TestFolder::new();
    let words = [
        "submit",
        "--name",
        "digits-a",
        "-n",
        "1",
        "--set",
        "train.epochs=1",
    ];
    ronde(&dir, &words).expect(0, &[]);
    let near = "is it `digits-a`? `ronde jobs` lists the jobs";
    for command in ["status", "logs", "wait", "cancel", "fetch"] {
        ronde(&dir, &[command, "digit-a"]).expect(2, &[near]);
    }
    ronde(&dir, &["status", "other"]).expect(2, &["there is no job and no folder `other`"]);
    ronde(&dir, &["scale", "digit-a", "2"]).expect(2, &[near]);
}

#[test]
fn output_continues_after_a_connection_was_lost_and_data_without_a_job_is_removed() {
    let Some(hosts) = SshHosts::new(1) else {
        return;
    };
    hosts.targets(&[("gpus", "ssh_config", "hosts = [\"h1:1\"]")]);
    std::fs::create_dir(hosts.path("input")).unwrap();
    hosts.dir.run(&["init", "input/run.toml"]).expect(0, &[]);
    let run = hosts.path("input/run.toml").display().to_string();
    let on = ["--on", "gpus", "--name", "long", &run];
    hosts.submit(&[&on[..], &LONG].concat()).expect(0, &[]);
    let follow = |more: &[&str]| {
        let namespace = [
            "netns",
            "exec",
            &hosts.network.names[0],
            RONDE,
            "logs",
            "-f",
        ];
        let state = hosts.path(".state").display().to_string();
        let words = [&namespace[..], more, &["long"]].concat();
        hosts.dir.start("ip", &words, &[("XDG_STATE_HOME", &state)])
    };
    let (mut logs, mut rank) = (follow(&[]), follow(&["--rank", "5"]));
    let mut wait = {
        let state = hosts.path(".state").display().to_string();
        let words = [
            "netns",
            "exec",
            &hosts.network.names[0],
            RONDE,
            "wait",
            "long",
        ];
        hosts.dir.start("ip", &words, &[("XDG_STATE_HOME", &state)])
    };
    logs.wait_stdout("step ", 1);
    let output = hosts.path("remote/jobs/long/results/logs");
    std::fs::create_dir_all(&output).unwrap();
    std::fs::write(output.join("rank-5.log"), "one\n").unwrap();
    rank.wait_stdout("one", 1);
    hosts.network.cable(1, "down");
    for followed in [&mut logs, &mut rank, &mut wait] {
        followed.wait_stderr("until Ctrl-C", 1);
    }
    std::fs::rename(output.join("rank-5.log"), output.join("rank-5.1.log")).unwrap();
    std::fs::write(output.join("rank-5.log"), "two\n").unwrap();
    hosts.network.cable(1, "up");
    rank.wait_stdout("two", 1);
    hosts.ronde(&["cancel", "long"]).expect(0, &[]);
    assert_eq!(rank.wait().expect(0, &[]).stdout, "one\ntwo\n");
    let all = hosts.ronde(&["logs", "long"]).expect(0, &[]).stdout;
    assert_eq!(logs.wait().expect(0, &[]).stdout, all);
    wait.wait().expect(143, &["job long: cancelled"]);
    assert_eq!(hosts.dir.list("remote/inputs").len(), 1);
    hosts.ronde(&["jobs", "--remove", "long"]).expect(0, &[]);
    for folder in ["remote/inputs", "remote/bin", "remote/jobs", "remote/uses"] {
        assert_eq!(hosts.dir.list(folder), [""; 0], "{folder}");
    }
}
