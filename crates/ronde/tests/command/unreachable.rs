//! Names that cannot be resolved yet, and hosts whose coordinator does not answer: the waits, and their ends.

use rustix::process::Signal;

use crate::open_jobs::{coordinators, join, status, the_coordinator};
use crate::support::{RONDE, Running, TestFolder, gone, send, until};

/// A name that no resolver knows.
const UNKNOWN: &str = "no-such-host.invalid";

/// Starts a job on this host and on host `b`, and returns its launcher and the agent of the other host.
fn on_two_hosts(dir: &TestFolder) -> (Running, Running) {
    let mut arguments = vec!["train", "--json", "--listen", "--here", "1", "-n", "2"];
    let sets = [
        "train.epochs=100000",
        "model.channels=4",
        "run.output=out",
        "elastic.lease_s=0.8",
        "elastic.silence_s=0.5",
    ];
    arguments.extend(sets.iter().flat_map(|set| ["--set", set]));
    let mut launcher = dir.start(RONDE, &arguments, &[]);
    until("the coordinator is there", || {
        let ended = dir.run(&["status", "out", "--json"]);
        ended.code == 0 && ended.stdout.contains("\"coordinator\":\"")
    });
    let mut agent = join(dir, "b", "out/job/token");
    agent.wait_stderr("host b joined", 1);
    launcher.after_steps(20);
    until("the worker of host b is a member", || {
        status(dir)["members"].as_array().unwrap().len() == 2
    });
    (launcher, agent)
}

fn end(dir: &TestFolder, launcher: Running) {
    drop(launcher);
    for pid in coordinators(dir) {
        send(pid, Signal::KILL);
    }
}

#[test]
fn a_host_without_contact_obeys_the_first_signal() {
    let dir = TestFolder::new();
    let (launcher, mut agent) = on_two_hosts(&dir);
    let workers = agent.workers();
    let coordinator = the_coordinator(&dir);
    send(coordinator, Signal::STOP);
    agent.wait_stderr("lost the coordinator", 1);
    agent.wait_stderr("this host waits for one for at most 750 s", 1);
    agent.wait_stderr("waiting for a coordinator, for at most", 1);
    agent.signal(Signal::TERM);
    let ended = agent.wait();
    assert_eq!(ended.code, 143, "{}", ended.stderr);
    assert!(ended.stderr.contains("no coordinator answers"));
    gone(workers.into_values());
    end(&dir, launcher);
}

#[test]
fn a_host_that_was_cut_off_learns_that_the_job_has_ended() {
    let dir = TestFolder::new();
    let (launcher, mut agent) = on_two_hosts(&dir);
    let workers = agent.workers();
    send(the_coordinator(&dir), Signal::STOP);
    agent.wait_stderr("lost the coordinator", 1);
    launcher.signal(Signal::KILL);
    end(&dir, launcher);
    agent
        .wait()
        .expect(3, &["the job has ended while this host was cut off"]);
    gone(workers.into_values());
}

#[test]
fn an_unknown_name_of_a_coordinator_is_waited_for_until_a_signal() {
    let dir = TestFolder::new();
    let token = format!("ronde-join-1.{}.{}", "ab".repeat(32), "cd".repeat(32));
    dir.write("token", &token);
    let address = format!("{UNKNOWN}:4711");
    let words = ["join", &address, "--token-file", "token", "--host", "b"];
    let mut agent = dir.start(RONDE, &words, &[]);
    agent.wait_stderr(&format!("cannot resolve the name `{UNKNOWN}`"), 1);
    agent.signal(Signal::TERM);
    agent
        .wait()
        .expect(143, &["waiting for a coordinator, for at most"]);
    dir.run(&["join", "b:port", "--token-file", "token"])
        .expect(2, &["invalid address `b:port`: expected HOST:PORT"]);
}

#[test]
fn an_unknown_name_of_rank_0_is_waited_for_as_long_as_for_other_ranks() {
    let dir = TestFolder::new();
    let words = [
        "train",
        "--set",
        "train.epochs=1",
        "--set",
        "comm.timeout_s=10",
    ];
    let start = |rank: &str| {
        let variables = [
            ("MASTER_ADDR", UNKNOWN),
            ("MASTER_PORT", "29612"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_WORLD_SIZE", "1"),
            ("LOCAL_RANK", "0"),
            ("RANK", rank),
            ("GROUP_RANK", rank),
        ];
        dir.start(RONDE, &words, &variables)
    };
    let problem = format!("cannot resolve the name `{UNKNOWN}`");
    let ranks = ["0", "1"].map(start);
    for (rank, what) in ranks.into_iter().zip(["the address", "rank 0 at"]) {
        let waits = format!("waiting for {what} {UNKNOWN}:29612");
        rank.wait().expect(3, &[&waits, &problem, "in time"]);
    }
}
